"""Read audio from microphones, piece by piece."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..sound.files import Resampler

MOST_QUEUED = 600  # most pieces of audio that wait to be decoded


def microphone_pieces(sampling_rate: int, seconds: float = 0.1, device: int | str | None = None) -> Iterator[np.ndarray]:
    """Yield the audio of a microphone until the caller closes the iterator.

    Args:
        sampling_rate: rate of the pieces, in hertz.
        seconds: the length of a piece.
        device: number or name of the input; None for the system's default input.

    Yields:
        The samples of a piece, float32 `[N]`.

    Raises:
        ValueError: there is no such microphone, it can't be opened, or the caller takes pieces too slowly.
        ModuleNotFoundError: sounddevice isn't installed.
    """
    try:
        import sounddevice
    except OSError as error:  # PortAudio itself is missing
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
                    raise ValueError("decoding is slower than real time; use a smaller model or beam")
                yield resample(pieces.get())
    except sounddevice.PortAudioError as error:
        raise ValueError(f"the microphone can't be used: {error}") from None
