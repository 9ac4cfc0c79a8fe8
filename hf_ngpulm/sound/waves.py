"""Read 16-bit WAV files with the standard library. For open files, libsndfile is slower, because each read calls Python."""

from __future__ import annotations

import contextlib
import os
import wave
from typing import IO, Any

import numpy as np


class Wave:
    """Read a 16-bit WAV file with the methods of `soundfile.SoundFile`. The samples are the same as with libsndfile.

    Args:
        reader: the standard library's reader of the file.
        file: the file to close at the end of the `with` block; None leaves it open.
    """

    def __init__(self, reader: wave.Wave_read, file: IO[bytes] | None) -> None:
        self.frames, self.channels, self.samplerate = reader.getnframes(), reader.getnchannels(), reader.getframerate()
        self._reader, self._file = reader, file

    @classmethod
    def opened(cls, source: str | os.PathLike[str] | IO[bytes]) -> Wave | None:
        """Open a 16-bit WAV file. If the file is of another kind, or if the header contradicts the file's length, return None.
        In this case `source` is rewound to the beginning, so that libsndfile can read it.
        """
        file: IO[bytes] = open(source, "rb") if isinstance(source, str | os.PathLike) else source  # noqa: SIM115 - closed below
        own = None if file is source else file
        size = file.seek(0, os.SEEK_END)
        file.seek(4)
        says = int.from_bytes(file.read(4), "little") + 8
        file.seek(0)
        with contextlib.suppress(wave.Error, EOFError, RuntimeError):  # RuntimeError: a chunk ends within its fields
            reader = wave.open(file)  # noqa: SIM115 - `file` is closed instead
            end = file.tell() + 2 * reader.getnchannels() * reader.getnframes()
            if says == size and reader.getsampwidth() == 2 and end <= size:
                return cls(reader, own)
        if own is not None:
            own.close()
        else:
            file.seek(0)
        return None

    def __enter__(self) -> Wave:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._file is not None:
            self._file.close()

    def seek(self, frame: int) -> None:
        self._reader.setpos(frame)

    def read(self, frames: int, dtype: str = "float32", always_2d: bool = True) -> np.ndarray:
        """Return the next samples, float32 `[frames, C]`. At the end of the file, there may be fewer samples."""
        samples = np.frombuffer(self._reader.readframes(frames), dtype="<i2")
        return (samples.astype(np.float32) / 32768).reshape(-1, self.channels)
