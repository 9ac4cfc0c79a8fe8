"""WAV files of the plainest kind, 16 bits a sample after a header of 44 bytes, read without a library that calls back."""

from __future__ import annotations

import os
import struct
from typing import IO, Any

import numpy as np

_HEADER = struct.Struct("<4sI4s 4sIHHIIHH 4sI")


class Wave:
    """Read such a file as `soundfile.SoundFile` does, with the same samples.

    Args:
        file: open at its first sample.
        frames, channels, samplerate: as its header has them.
        closes: whether leaving closes the file.
    """

    def __init__(self, file: IO[bytes], frames: int, channels: int, samplerate: int, closes: bool) -> None:
        self.frames, self.channels, self.samplerate = frames, channels, samplerate
        self._file, self._left, self._closes = file, frames, closes

    @classmethod
    def opened(cls, source: str | os.PathLike[str] | IO[bytes]) -> Wave | None:
        """Return what reads a source; None for what is to be read otherwise, as it was.

        Each field of the header has to fit the others and the file's length: what is damaged isn't guessed at here.
        """
        is_path = isinstance(source, str | os.PathLike)
        file: IO[bytes] = open(source, "rb") if isinstance(source, str | os.PathLike) else source  # noqa: SIM115 - closed below
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(_HEADER.size)
        if len(head) == _HEADER.size:
            riff, length, form, fmt, fmt_length, kind, channels, rate, speed, width, bits, data, count = _HEADER.unpack(head)
            is_plain = (riff, form, fmt, data, fmt_length, kind, bits) == (b"RIFF", b"WAVE", b"fmt ", b"data", 16, 1, 16)
            fits = (length, width, speed, count) == (size - 8, 2 * channels, 2 * channels * rate, size - _HEADER.size)
            if is_plain and fits and channels and count % width == 0:
                return cls(file, count // width, channels, rate, is_path)
        if is_path:
            file.close()
        else:
            file.seek(0)
        return None

    def __enter__(self) -> Wave:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._closes:
            self._file.close()

    def seek(self, frame: int) -> None:
        self._file.seek(_HEADER.size + 2 * self.channels * frame)
        self._left = self.frames - frame

    def read(self, frames: int, dtype: str = "float32", always_2d: bool = True) -> np.ndarray:
        """Return the next samples, float32 `[frames, C]`; fewer only at the end."""
        count = min(frames, self._left)
        self._left -= count
        samples = np.frombuffer(self._file.read(2 * self.channels * count), dtype="<i2")
        return (samples.astype(np.float32) / 32768).reshape(-1, self.channels)
