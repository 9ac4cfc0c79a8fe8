"""Read the utterances of a tuning dataset, and store a model's outputs for repeated decoding."""

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
from ..loading import audio_or_error
from ..recordings import Recording

CPU = torch.device("cpu")  # explicit, because users can change torch's default device


@dataclass(frozen=True)
class TuningUtterance:
    """Hold an utterance of a dataset."""

    number: int  # the utterance's place in the dataset, starting at 0
    item: Any  # the row of the dataset
    text: str | None  # the transcript; None if it is unknown
    entities: tuple[str, ...]  # important phrases in the transcript
    problems: list[str] = field(default_factory=list)  # reasons why `samples` couldn't read the audio

    @classmethod
    def of(cls, number: int, item: Any) -> TuningUtterance:
        """Make an utterance from a row of a dataset.

        Args:
            number: the row's place in the dataset.
            item: a `Recording`, or a mapping with `text`, with audio or a model's outputs, and optionally with `entities`.

        Raises:
            ValueError: the row, the text or the entities have a wrong type.
        """
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
        """Return the model's outputs `[T, C]` in the field `name`. If the utterance lacks this field, return None. Raises
        ValueError if the outputs aren't a floating point tensor with two dimensions.
        """
        outputs = None if isinstance(self.item, Recording) else self.item.get(name)
        if outputs is not None and not (isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.dtype.is_floating_point):
            shape = f"{outputs.dtype} {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(
                f"number {self.number} of the dataset: {name} should be a floating point tensor [T, C], got {shape}"
            )
        return outputs

    def samples(self, sampling_rate: int) -> np.ndarray:
        """Return the audio, float32 `[N]`. If reading fails, append the reason to `problems`, and return an empty array."""
        audio = audio_or_error(self._recording(sampling_rate), sampling_rate)
        if isinstance(audio, str):
            self.problems.append(audio)
            return np.empty(0, dtype=np.float32)
        return audio

    def _recording(self, sampling_rate: int) -> Recording:
        if isinstance(self.item, Recording):
            return self.item
        audio, rate = self.item.get("audio"), self.item.get("sampling_rate")
        if isinstance(audio, Mapping):  # the format of `datasets` and pipelines
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
    """Stores tensors by number within a `with` block. A restored tensor equals the stored tensor bit for bit.

    Args:
        memory: memory limit for tensors, in bytes or as a text such as "2G". Further tensors are stored in a temporary file.
        folder: folder of the temporary file; None for the system's folder.
    """

    def __init__(self, memory: int | str = "2G", folder: str | os.PathLike[str] | None = None) -> None:
        self.room = parse_bytes(memory)
        self.on_disk = 0  # bytes
        self._kept: list[Tensor | tuple[int, torch.dtype, torch.Size]] = []  # a tensor, or its place in the file, dtype, shape
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # `__exit__` closes it

    def __enter__(self) -> KeptTensors:
        return self

    def __exit__(self, *error: Any) -> None:
        self._kept.clear()
        self._file.close()

    def add(self, tensor: Tensor) -> int:
        """Store a tensor, and return its number."""
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
