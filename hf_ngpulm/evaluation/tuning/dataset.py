"""Hold what weights are tuned on: recordings, or a model's outputs for them, with their transcripts; kept outputs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...ngrams.counting import parse_bytes
from ..loading import audio_or_problem
from ..recordings import Recording

CPU = torch.device("cpu")  # not the default device, whatever that is


@dataclass(frozen=True)
class Utterance:
    """One of a dataset.

    Args:
        number: its place in the dataset.
        item: what the dataset holds.
        text: what was said; None if that isn't known.
        entities: phrases that matter in it.
        problems: why its audio can't be read, once `samples` has found that it can't.
    """

    number: int
    item: Any
    text: str | None
    entities: tuple[str, ...]
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, number: int, item: Any) -> Utterance:
        """Make one of a row of a dataset: a `Recording`, or a mapping with `text`, perhaps `entities`, and audio or outputs."""
        if not isinstance(item, Recording | Mapping):
            raise ValueError(
                f"number {number} of the dataset should be a mapping with text and audio (or a model's outputs), or a "
                f"Recording; got {type(item).__name__}"
            )
        values: Any = vars(item) if isinstance(item, Recording) else item
        text, entities = values.get("text"), values.get("entities")
        if text is not None and not isinstance(text, str):
            raise ValueError(f"number {number} of the dataset: text should be a transcript, got {text!r}")
        if isinstance(entities, str) or not isinstance(entities, Iterable | None):
            raise ValueError(f"number {number} of the dataset: entities should be a list of phrases, got {entities!r}")
        return cls(number, item, text, tuple(entities or ()))

    def outputs(self, name: str) -> Tensor | None:
        """Return a model's outputs for it, `[T, C]`, if the dataset has them."""
        found = None if isinstance(self.item, Recording) else self.item.get(name)
        if found is not None and not (isinstance(found, Tensor) and found.dim() == 2 and found.dtype.is_floating_point):
            shape = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"number {self.number} of the dataset: {name} should be a floating point tensor [T, C], got {shape}"
            )
        return found

    def samples(self, sampling_rate: int) -> np.ndarray:
        """Return its audio, float32 `[N]`; none if it can't be read, which is then among `problems`."""
        found = audio_or_problem(self._recording(sampling_rate), sampling_rate)
        if isinstance(found, str):
            self.problems.append(found)
            return np.empty(0, dtype=np.float32)
        return found

    def _recording(self, sampling_rate: int) -> Recording:
        if isinstance(self.item, Recording):
            return self.item
        audio, rate = self.item.get("audio"), self.item.get("sampling_rate")
        if isinstance(audio, Mapping):  # as `datasets` and pipelines have it
            rate = audio.get("sampling_rate", rate)
            audio = next((audio[name] for name in ("array", "raw", "bytes", "path") if audio.get(name) is not None), None)
        if isinstance(audio, Tensor):
            audio = audio.detach().cpu().numpy()
        audio = np.asarray(audio) if isinstance(audio, list) else Path(audio) if isinstance(audio, str) else audio
        if not isinstance(audio, np.ndarray | bytes | Path):
            raise ValueError(
                f"number {self.number} of the dataset: audio should be a path, bytes of a file, or samples; "
                f"got {'none' if audio is None else type(audio).__name__} (the row has {', '.join(map(str, self.item))})"
            )
        return Recording(str(self.item.get("id", self.number)), audio, sampling_rate if rate is None else int(rate))


class KeptTensors:
    """Tensors by number, within a `with` block. Those beyond `memory` (bytes, or "2G") lie in a temporary file in `folder`; all
    come back bit for bit."""

    def __init__(self, memory: int | str = "2G", folder: str | os.PathLike[str] | None = None) -> None:
        self.room = parse_bytes(memory)
        self.on_disk = 0  # bytes
        self._kept: list[Tensor | tuple[int, torch.dtype, torch.Size]] = []  # or where in the file it begins, and its kind
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed where this ends

    def __enter__(self) -> KeptTensors:
        return self

    def __exit__(self, *error: Any) -> None:
        self._kept.clear()
        self._file.close()

    def add(self, tensor: Tensor) -> int:
        """Keep a tensor; its number."""
        tensor = tensor.detach().to(CPU).contiguous()
        if tensor.nbytes <= self.room:
            self.room -= tensor.nbytes
            self._kept.append(tensor)
        else:
            self._kept.append((self.on_disk, tensor.dtype, tensor.shape))
            self._file.seek(self.on_disk)
            self.on_disk += self._file.write(tensor.flatten().view(torch.uint8).numpy().data)
        return len(self._kept) - 1

    def shape(self, number: int) -> torch.Size:
        kept = self._kept[number]
        return kept.shape if isinstance(kept, Tensor) else kept[2]

    def __getitem__(self, number: int) -> Tensor:
        kept = self._kept[number]
        if isinstance(kept, Tensor):
            return kept
        begin, dtype, shape = kept
        self._file.seek(begin)
        raw = bytearray(self._file.read(shape.numel() * dtype.itemsize))
        return torch.frombuffer(raw, dtype=dtype).view(shape) if raw else torch.empty(shape, dtype=dtype, device=CPU)
