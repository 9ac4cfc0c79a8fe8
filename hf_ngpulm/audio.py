"""Audio files as the recognisers want them: one channel, float32, at the model's sampling rate."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def read_audio(path: str | os.PathLike[str], sampling_rate: int) -> np.ndarray:
    """Read a file, mix its channels, and resample it if need be.

    Args:
        path: anything libsndfile opens (WAV, FLAC, Ogg, MP3 ...).
        sampling_rate: in hertz.

    Returns:
        Samples, float32 `[N]`.

    Raises:
        ValueError: the file isn't audio, is damaged, or holds no samples.
        FileNotFoundError: there is no such file.
    """
    import soundfile

    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: no such audio file")
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise ValueError(f"{path}: can't be read as audio: {error}") from None
    if samples.shape[0] == 0:
        raise ValueError(f"{path}: holds no samples")
    mono: Any = samples.mean(axis=1)
    if rate != sampling_rate:
        import soxr

        mono = soxr.resample(mono, rate, sampling_rate)
    return np.ascontiguousarray(mono, dtype=np.float32)
