"""Stream with an encoder for whole recordings. The encoder gets a window of audio around each chunk (buffered streaming)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.checks import check, number
from ..decoding.families import encoded, frame_lengths
from .encoder import StreamEncoder, extract, extract_batch

_PROBE = 16  # frames
MOST_SECONDS = 600.0


class BufferedEncoder(StreamEncoder):
    """Encode a chunk together with audio before and after the chunk, and keep only the frames of the chunk.

    Windows begin at whole frames, so no frame is lost or repeated between two chunks. The windows of all streams form one
    batch. A model without an attention mask can't ignore padding. For such a model, windows of each length form a separate
    batch. If a window covers the whole recording, the frames are the same as in offline recognition. Otherwise the frames
    differ, because the encoder gets less audio, and because many feature extractors normalise over the window.

    Args:
        model: a CTC model or a transducer.
        extractor: the model's feature extractor.
        chunk_seconds, left_seconds, right_seconds: lengths of the chunk, of the audio before the chunk, and of the audio after
            the chunk, rounded to whole frames.

    Raises:
        ValueError: a length is out of range, the model's frames aren't evenly spaced, or the model can't compute its number of
            frames from a number of samples.
    """

    def __init__(self, model: Any, extractor: Any, chunk_seconds: float, left_seconds: float, right_seconds: float) -> None:
        super().__init__()
        self.model, self.extractor = model, extractor
        self.sampling_rate = extractor.sampling_rate
        # `stride` is the number of samples per frame; the first frame needs `overhang` more (or fewer) samples.
        needed = [self._samples_for(frames) for frames in (_PROBE, 2 * _PROBE)]
        self.stride, rest = divmod(needed[1] - needed[0], _PROBE)
        if rest or self.stride <= 0:
            raise ValueError(f"{type(model).__name__} can't be streamed: its frames aren't evenly spaced")
        self.overhang = needed[0] - _PROBE * self.stride
        seconds = self.stride / self.sampling_rate
        lengths = {"chunk_seconds": chunk_seconds, "left_seconds": left_seconds, "right_seconds": right_seconds}
        for name, value in lengths.items():
            least = 1e-9 if name == "chunk_seconds" else 0
            check(name, value, number(least, MOST_SECONDS, f"from 0 to {MOST_SECONDS:g} (a chunk above 0)"))
        self.chunk = max(1, round(chunk_seconds / seconds))
        self.left, self.right = (round(value / seconds) for value in (left_seconds, right_seconds))
        self.chunk_seconds = self.chunk * seconds
        self.latency_seconds = max((self.chunk + self.right) * self.stride, self._enough(self.chunk)) / self.sampling_rate
        self._has_mask = "attention_mask" in extract(extractor, np.zeros(needed[1], dtype=np.float32))

    def ready(self, sid: int) -> bool:
        audio, done = self.audio[sid], self.done[sid]
        if audio.ended and audio.received >= self._enough(done + 1):
            return True
        return audio.received >= self._window_end(done)

    def waiting(self, sid: int) -> int:
        return max(0, self.audio[sid].received - self.done[sid] * self.stride)

    def encode(self, sids: Sequence[int]) -> list[Tensor]:
        windows: list[np.ndarray] = []
        cuts: list[tuple[int, int | None]] = []
        for sid in sids:
            audio, done = self.audio[sid], self.done[sid]
            first, end = max(0, done - self.left), self._window_end(done)
            is_last = audio.received < end
            windows.append(audio.slice(first * self.stride, end))
            cuts.append((done - first, None if is_last else done - first + self.chunk))
        frames = self._frames(windows)
        chunks = [of_window[begin:end] for of_window, (begin, end) in zip(frames, cuts)]
        for sid, chunk, (_, whole) in zip(sids, chunks, cuts):
            if whole is not None and len(chunk) != self.chunk:
                raise RuntimeError(f"{type(self.model).__name__} made {len(chunk)} frames instead of {self.chunk}")
            self.done[sid] += len(chunk)
            self.audio[sid].forget((self.done[sid] - self.left) * self.stride)
        return chunks

    def _enough(self, frames: int) -> int:
        """Return a number of samples that is enough for `frames` frames of the model."""
        return max(1, frames * self.stride + self.overhang)

    def _window_end(self, done: int) -> int:
        """Return the position, in samples, at which a chunk's window ends. The chunk begins at frame `done`."""
        return max((done + self.chunk + self.right) * self.stride, self._enough(done + self.chunk))

    def _frames(self, windows: list[np.ndarray]) -> list[Tensor]:
        """Return the frames of each window, `[T, D]`."""
        if self._has_mask:
            return self._frames_of_batch(windows)
        frames: dict[int, Tensor] = {}
        by_length = sorted(range(len(windows)), key=lambda place: len(windows[place]))
        for _, group in groupby(by_length, key=lambda place: len(windows[place])):
            places = list(group)
            frames |= zip(places, self._frames_of_batch([windows[place] for place in places]))
        return [frames[place] for place in range(len(windows))]

    def _frames_of_batch(self, windows: list[np.ndarray]) -> list[Tensor]:
        inputs = extract_batch(self.extractor, windows)
        features = inputs[self.model.main_input_name].to(self.model.device, self.model.dtype)
        mask = inputs.get("attention_mask")
        frames, lengths = encoded(self.model, features, None if mask is None else mask.to(self.model.device))
        if lengths is None:
            return list(frames)
        return [of_row[:length] for of_row, length in zip(frames, lengths.tolist())]

    def _samples_for(self, frames: int) -> int:
        """Return the smallest number of samples from which the model makes `frames` frames. The search is a bisection."""
        low, high = 0, 256
        while self._count(high) < frames:
            low, high = high, 2 * high
            if high > self.sampling_rate * MOST_SECONDS:
                raise ValueError(f"{type(self.model).__name__} can't be streamed: it makes too few frames from audio")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._count(middle) >= frames else (middle, high)
        return high

    def _count(self, samples: int) -> int:
        """Return the number of frames that the model makes from a number of samples."""
        try:
            inputs = extract(self.extractor, np.sin(np.arange(samples, dtype=np.float32)))
        except (ValueError, RuntimeError, AssertionError):  # some extractors refuse audio shorter than one analysis window
            return 0
        mask = inputs.get("attention_mask")
        size = inputs[self.model.main_input_name].shape[1] if mask is None else int(mask.sum())
        lengths = frame_lengths(self.model, torch.tensor([size]))
        if lengths is None:
            raise ValueError(
                f"{type(self.model).__name__} can't be streamed: it has no _get_feat_extract_output_lengths, which computes "
                "the number of its frames"
            )
        return int(lengths[0])
