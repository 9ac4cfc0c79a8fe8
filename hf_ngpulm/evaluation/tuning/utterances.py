"""What weights are tuned on: recordings, or a model's outputs for them, with their transcripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..loading import audio_or_problem
from ..recordings import Recording


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
        """Make one of a row of a dataset: a `Recording`, or a mapping with `text`, perhaps `entities`, and audio or outputs.

        Raises:
            ValueError: it is something else, or these are.
        """
        if not isinstance(item, Recording | Mapping):
            raise ValueError(
                f"number {number} of the dataset should be a mapping with text and audio (or a model's outputs), or a "
                f"Recording; got {type(item).__name__}"
            )
        text, entities = (_of(item, name) for name in ("text", "entities"))
        if text is not None and not isinstance(text, str):
            raise ValueError(f"number {number} of the dataset: text should be a transcript, got {text!r}")
        entities = () if entities is None else entities
        if isinstance(entities, str) or not isinstance(entities, Iterable):
            raise ValueError(f"number {number} of the dataset: entities should be a list of phrases, got {entities!r}")
        return cls(number, item, text, tuple(entities))

    def outputs(self, name: str) -> Tensor | None:
        """Return a model's outputs for it, `[T, ...]`, if the dataset has them.

        Raises:
            ValueError: they aren't frames of one recording.
        """
        found = _of(self.item, name)
        if found is None:
            return None
        if not isinstance(found, Tensor) or found.dim() != 2 or not found.dtype.is_floating_point:
            shape = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"number {self.number} of the dataset: {name} should be a floating point tensor [T, C], got {shape}"
            )
        return found

    def samples(self, sampling_rate: int) -> np.ndarray:
        """Return its audio, float32 `[N]`; none if it can't be read, which is then among `problems`.

        Raises:
            ValueError: the dataset has none for it.
        """
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
        if isinstance(audio, list):
            audio = np.asarray(audio)
        if isinstance(audio, str):
            audio = Path(audio)
        if not isinstance(audio, np.ndarray | bytes | Path):
            raise ValueError(
                f"number {self.number} of the dataset: audio should be a path, bytes of a file, or samples; "
                f"got {'none' if audio is None else type(audio).__name__} (the row has {', '.join(map(str, self.item))})"
            )
        rate = sampling_rate if rate is None else int(rate)
        return Recording(str(self.item.get("id", self.number)), audio, rate)


def _of(item: Any, name: str) -> Any:
    return getattr(item, name, None) if isinstance(item, Recording) else item.get(name)
