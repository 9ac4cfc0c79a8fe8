"""Encode the audio of many streams to frames for a decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..decoding.families import usual


class Samples:
    """Hold the latest samples of a recording. Positions count from the beginning of the recording.

    Attributes:
        received: the number of samples so far.
        ended: whether the recording has ended.
    """

    def __init__(self) -> None:
        self.received = 0
        self.ended = False
        self._first = 0  # position of the first sample that is held
        self._pieces: deque[np.ndarray] = deque()

    def append(self, samples: np.ndarray) -> None:
        if len(samples):
            self._pieces.append(samples.astype(np.float32))  # a copy, since the caller may reuse the array
            self.received += len(samples)

    def slice(self, begin: int, end: int) -> np.ndarray:
        """Return the samples from `begin` to `end`, at most to the recording's end. Samples at negative positions are 0."""
        whole = np.concatenate([np.zeros(max(0, -begin), dtype=np.float32), *self._pieces])
        first = self._first if begin >= 0 else begin
        return whole[begin - first : max(0, min(end, self.received) - first)]

    def forget(self, before: int) -> None:
        """Drop every stored piece of audio that lies entirely before a position."""
        while self._pieces and self._first + len(self._pieces[0]) <= before:
            self._first += len(self._pieces.popleft())


class StreamEncoder(ABC):
    """Encode the next chunks of several streams as one batch. Each stream has a number, its id.

    Attributes:
        sampling_rate: rate of the audio, in hertz.
        chunk_seconds: length of a chunk, in seconds.
        latency_seconds: longest delay of a frame, in seconds. It is the length of the chunk and of the audio that the encoder
            needs after the chunk.
    """

    sampling_rate: int
    chunk_seconds: float
    latency_seconds: float

    def __init__(self) -> None:
        self.audio: dict[int, Samples] = {}
        self.done: dict[int, int] = {}  # frames, or chunks, of each stream so far

    def open(self, sid: int) -> None:
        self.audio[sid], self.done[sid] = Samples(), 0

    def close(self, sid: int) -> None:
        del self.audio[sid], self.done[sid]

    @abstractmethod
    def ready(self, sid: int) -> bool:
        """Return whether a stream has enough audio for its next frames. After the audio's end, return whether frames remain."""

    @abstractmethod
    def waiting(self, sid: int) -> int:
        """Return the number of a stream's samples that aren't encoded yet."""

    @abstractmethod
    def encode(self, sids: Sequence[int]) -> list[Tensor]:
        """Encode the next chunk of each stream. All streams must be `ready`. An error leaves the streams unchanged.

        Returns:
            For each stream, its next frames `[T, D]` (transducers) or logits `[T, C]` (CTC models).
        """


def extract(extractor: Any, samples: np.ndarray) -> Any:
    """Return the features of a piece of audio, as tensors for a batch with one row."""
    return usual(extractor([samples], sampling_rate=extractor.sampling_rate, padding=True, return_tensors="pt"))


def extract_batch(extractor: Any, pieces: list[np.ndarray]) -> dict[str, Tensor]:
    """Return the features of several pieces of audio, padded to the length of the longest piece.

    The extractor gets one piece at a time. A single call is slower, because the spectra of all pieces don't fit into a core's
    cache.
    """
    features = [extract(extractor, samples) for samples in pieces]

    def padded(name: str) -> Tensor:
        value = 0.0 if name == "attention_mask" else extractor.padding_value
        return pad_sequence([each[name][0] for each in features], batch_first=True, padding_value=value)

    return {name: padded(name) for name in features[0]}
