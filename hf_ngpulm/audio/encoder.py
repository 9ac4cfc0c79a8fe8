"""What turns the audio of many streams into frames for a decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .samples import Samples


class StreamEncoder(ABC):
    """Encoders of streams, by their numbers. A chunk of each of several streams is encoded as one batch.

    Args:
        sampling_rate: in hertz.
        chunk_seconds: how much audio a chunk has.
        latency_seconds: how far behind the audio its frames are at most: a chunk and what must be heard after it.
    """

    sampling_rate: int
    chunk_seconds: float
    latency_seconds: float

    def __init__(self) -> None:
        self.audio: dict[int, Samples] = {}

    def open(self, sid: int) -> None:
        self.audio[sid] = Samples()

    def close(self, sid: int) -> None:
        del self.audio[sid]

    @abstractmethod
    def ready(self, sid: int) -> bool:
        """Return whether all is there that its next frames need. After the end of its audio: whether frames are left."""

    @abstractmethod
    def waiting(self, sid: int) -> int:
        """Return samples whose frames haven't been made."""

    @abstractmethod
    def encode(self, sids: Sequence[int]) -> list[Tensor]:
        """Return the next frames of some streams, all of them `ready`: `[T, D]` each, or logits `[T, C]`.

        Where this fails, the streams are as they were.
        """


def extract(extractor: Any, pieces: list[np.ndarray], **settings: Any) -> Any:
    """Return what a feature extractor makes of several pieces of audio, as tensors, the short ones padded."""
    return extractor(pieces, sampling_rate=extractor.sampling_rate, padding=True, return_tensors="pt", **settings)
