"""A model's outputs for some recordings, kept for many decodings."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...ngrams.counting import parse_bytes

CPU = torch.device("cpu")  # not the default device, whatever that is


class KeptTensors:
    """Tensors by number. Those that memory has no room for lie in a temporary file; all come back bit for bit.

    Use it as a context manager, so that the file is gone when it ends, however it ends.

    Args:
        memory: how much may be held in memory, in bytes or as "2G".
        folder: where the file goes; the system's folder for temporary files by default.
    """

    def __init__(self, memory: int | str = "2G", folder: str | os.PathLike[str] | None = None) -> None:
        self.room = parse_bytes(memory)
        self.folder = folder
        self.on_disk = 0  # bytes
        self._file: Any = None
        self._kept: list[Tensor | tuple[int, torch.dtype, torch.Size]] = []

    def __enter__(self) -> KeptTensors:
        return self

    def __exit__(self, *error: Any) -> None:
        self._kept.clear()
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, tensor: Tensor) -> int:
        """Keep a tensor; its number."""
        tensor = tensor.detach().to(CPU).contiguous()
        if tensor.nbytes <= self.room:
            self.room -= tensor.nbytes
            self._kept.append(tensor)
        else:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  # closed where this ends
            self._kept.append((self.on_disk, tensor.dtype, tensor.shape))
            self._file.seek(self.on_disk)
            self._file.write(tensor.flatten().view(torch.uint8).numpy().data)
            self.on_disk += tensor.nbytes
        return len(self._kept) - 1

    def shape(self, number: int) -> torch.Size:
        kept = self._kept[number]
        return kept.shape if isinstance(kept, Tensor) else kept[2]

    def __getitem__(self, number: int) -> Tensor:
        kept = self._kept[number]
        if isinstance(kept, Tensor):
            return kept
        begin, dtype, shape = kept
        size = shape.numel() * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype, device=CPU)
        self._file.seek(begin)
        raw = np.frombuffer(bytearray(self._file.read(size)), dtype=np.uint8)
        return torch.from_numpy(raw).view(dtype).view(shape)
