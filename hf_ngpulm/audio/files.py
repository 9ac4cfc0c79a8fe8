"""Audio files as the recognisers want them: one channel, float32, at the model's sampling rate."""

from __future__ import annotations

import os
from typing import IO, Any

import numpy as np

FRAMES_AT_ONCE = 1 << 20  # read, mixed and resampled together: an hour of stereo takes little more than its mono samples
SLACK = 64  # samples by which a resampler's count may differ from the exact one
LONGEST = 24  # hours; a header that says more is taken for damaged, before so much memory is asked for
LEAST_READ = 0.95  # of the frames that a header promises (which it only estimates for MP3); a file with fewer is cut short


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
        IsADirectoryError: it is a folder.
    """
    samples = decode_audio(path, sampling_rate)
    if not len(samples):
        raise ValueError(f"{path}: holds no samples")
    return samples


def decode_audio(
    source: str | os.PathLike[str] | IO[bytes],
    sampling_rate: int,
    name: str | None = None,
    offset: float = 0.0,
    duration: float | None = None,
) -> np.ndarray:
    """Read a file or a part of one, mix its channels, and resample it if need be.

    Args:
        source: a path, or a file open for reading bytes; anything libsndfile opens.
        sampling_rate: in hertz.
        name: what errors call the source; its path if left out.
        offset, duration: the part that is wanted, in seconds; all that follows `offset` if there is no duration.

    Returns:
        Samples, float32 `[N]`; none, if the file has none.

    Raises:
        ValueError: it isn't audio, is damaged or cut short, holds infinite samples or NaN, or ends before the part does.
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder.
    """
    import soundfile

    if isinstance(source, str | os.PathLike):
        name = name or str(source)
        if not os.path.exists(source):
            raise FileNotFoundError(f"{source}: no such audio file")
        if os.path.isdir(source):
            raise IsADirectoryError(f"{source}: a folder; name the audio files in it")
    try:
        with soundfile.SoundFile(source) as file:
            rate = file.samplerate
            begin = round(offset * rate)
            wanted = file.frames - begin if duration is None else round(duration * rate)
            # Durations in manifests are rounded; half a second too much is not.
            if wanted < 0 or begin + wanted > file.frames + rate // 2:
                raise ValueError(
                    f"{name}: has {file.frames / rate:.2f} s, too few for the part from {offset:g} s"
                    + ("" if duration is None else f" that takes {duration:g} s")
                )
            wanted = min(wanted, file.frames - begin)
            if wanted > LONGEST * 3600 * rate:
                raise ValueError(
                    f"{name}: says it lasts {wanted / rate / 3600:.0f} h; damaged, or to be cut ({LONGEST} h at most)"
                )
            if begin:
                file.seek(begin)
            stream = _resampling(rate, sampling_rate)
            # Filled piece by piece: putting pieces together at the end would take twice the memory.
            samples = np.empty(-(-wanted * sampling_rate // rate) + SLACK, dtype=np.float32)
            read = done = 0
            while read < wanted:
                block = file.read(min(FRAMES_AT_ONCE, wanted - read), dtype="float32", always_2d=True)
                if not len(block):
                    break
                read += len(block)
                mono = np.ascontiguousarray(block.mean(axis=1), dtype=np.float32)
                done = _append(samples, done, mono if stream is None else stream.resample_chunk(mono), name)
            if read < LEAST_READ * wanted:
                raise ValueError(f"{name}: is damaged: it ends after {read} of {wanted} samples")
            if stream is not None:
                done = _append(samples, done, stream.resample_chunk(np.zeros(0, dtype=np.float32), last=True), name)
    except (soundfile.SoundFileError, OSError) as error:
        raise ValueError(f"{name}: can't be read as audio: {error}") from None
    return samples[:done]


def _append(samples: np.ndarray, done: int, piece: np.ndarray, name: str | None) -> int:
    """Put a piece after what is there; how much is there then."""
    samples[done : done + len(piece)] = checked_samples(piece, name or "audio")
    return done + len(piece)


def checked_samples(samples: np.ndarray, name: str) -> np.ndarray:
    """Return samples that are all finite."""
    if not np.isfinite(samples).all():
        raise ValueError(f"{name}: holds samples that are infinite or not a number")
    return samples


def resample(samples: np.ndarray, rate: int, sampling_rate: int) -> np.ndarray:
    """Return float32 `[N]` -> `[M]`, from one rate in hertz to another."""
    if rate == sampling_rate:
        return samples
    import soxr

    return np.ascontiguousarray(soxr.resample(samples, rate, sampling_rate), dtype=np.float32)


def _resampling(rate: int, sampling_rate: int) -> Any:
    """Return what resamples piece by piece, None if the rates are the same."""
    if rate == sampling_rate:
        return None
    import soxr

    return soxr.ResampleStream(rate, sampling_rate, 1, dtype="float32")
