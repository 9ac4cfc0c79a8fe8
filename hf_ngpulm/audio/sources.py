"""Where audio comes from piece by piece: files and microphones."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from .resampling import Resampler

MOST_QUEUED = 600  # pieces of a microphone's audio that wait to be decoded


def file_pieces(
    path: str | os.PathLike[str], sampling_rate: int, seconds: float = 0.1, in_real_time: bool = False
) -> Iterator[np.ndarray]:
    """Read a file in pieces, its channels mixed; it may be longer than the memory.

    Args:
        path: anything libsndfile opens.
        sampling_rate: of the pieces, in hertz.
        seconds: the length of a piece.
        in_real_time: whether a piece comes no sooner than a microphone would have heard it.

    Yields:
        Float32 `[N]`.

    Raises:
        ValueError: the file isn't audio, is damaged, or holds no samples.
        FileNotFoundError: there is no such file.
    """
    import soundfile

    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: no such audio file")
    begin, heard = time.monotonic(), 0
    try:
        with soundfile.SoundFile(path) as file:
            rate, resample = file.samplerate, Resampler(file.samplerate, sampling_rate)
            size = max(1, round(rate * seconds))
            while len(samples := file.read(size, dtype="float32", always_2d=True)):
                heard += len(samples)
                if in_real_time:
                    time.sleep(max(0.0, begin + heard / rate - time.monotonic()))
                yield resample(samples.mean(axis=1))
    except soundfile.SoundFileError as error:
        raise ValueError(f"{path}: can't be read as audio: {error}") from None
    if not heard:
        raise ValueError(f"{path}: holds no samples")
    yield resample(np.zeros(0, dtype=np.float32), last=True)


def microphone_pieces(sampling_rate: int, seconds: float = 0.1, device: int | str | None = None) -> Iterator[np.ndarray]:
    """Listen to a microphone, until the caller stops asking.

    Args:
        sampling_rate: of the pieces, in hertz.
        seconds: the length of a piece.
        device: number or name of the input; None for the system's own choice.

    Yields:
        Float32 `[N]`.

    Raises:
        ValueError: there is no such microphone, it can't be opened, or it is heard faster than it is decoded.
        ModuleNotFoundError: sounddevice isn't installed.
    """
    import queue

    try:
        import sounddevice
    except OSError as error:  # the library behind it
        raise ValueError(f"a microphone needs PortAudio ({error}); on Debian: apt install libportaudio2") from None
    pieces: queue.Queue[np.ndarray] = queue.Queue(MOST_QUEUED)
    lost = False

    def hear(samples: np.ndarray, *_: Any) -> None:
        nonlocal lost
        try:
            pieces.put_nowait(samples[:, 0].copy())
        except queue.Full:
            lost = True

    try:
        rate = int(sounddevice.query_devices(device, "input")["default_samplerate"])
        resample = Resampler(rate, sampling_rate)
        stream = sounddevice.InputStream(
            samplerate=rate, blocksize=round(rate * seconds), device=device, channels=1, dtype="float32", callback=hear
        )
        with stream:
            while True:
                if lost:
                    raise ValueError("the microphone is heard faster than it is decoded; take a smaller model or beam")
                yield resample(pieces.get())
    except sounddevice.PortAudioError as error:
        raise ValueError(f"no microphone to listen to: {error}") from None
