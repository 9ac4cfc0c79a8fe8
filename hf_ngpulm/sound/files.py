"""Audio files as recognisers take them: one channel, float32, at the model's rate; whole or in pieces."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from .containers import HEAD, Unpacked, container_of
from .waves import Wave

FRAMES_AT_ONCE = 1 << 20  # read, mixed and resampled together: an hour of stereo takes little more than its mono samples
SLACK = 64  # samples by which a resampler's count may differ from the exact one
LONGEST = 24  # hours; a header that says more is refused before the memory is allocated
RATES, MOST_CHANNELS = (1_000, 1_000_000), 256  # hertz; other headers are damaged or hostile
LEAST_READ = 0.95  # share of the header's frames (an estimate for MP3) below which a file counts as cut short


class Resampler:
    """Resamples in pieces, which together equal the resampled whole.

    Args:
        rate: input rate in hertz.
        wanted: output rate.
    """

    def __init__(self, rate: int, wanted: int) -> None:
        self._stream: Any = None
        if rate != wanted:
            import soxr

            self._stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")

    def __call__(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Return float32 `[N]` -> `[M]`; the last piece includes samples that were held back."""
        samples = np.ascontiguousarray(samples, dtype=np.float32)
        return samples if self._stream is None else self._stream.resample_chunk(samples, last=last)


def resample(samples: np.ndarray, rate: int, sampling_rate: int) -> np.ndarray:
    """Return float32 `[N]` -> `[M]`, from one rate in hertz to another."""
    return Resampler(rate, sampling_rate)(samples, last=True)


def read_audio(path: str | os.PathLike[str], sampling_rate: int) -> np.ndarray:
    """Read a file, mix its channels, and resample it if need be.

    Args:
        path: a file that libsndfile opens (WAV, FLAC, Ogg, MP3 ...), or with PyAV WebM and MP4 (M4A).
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
        source: a path, or an open binary file, of a kind that `read_audio` takes.
        sampling_rate: in hertz.
        name: the source's name in errors; by default its path.
        offset, duration: the part to read, in seconds; without a duration, all after `offset`.

    Returns:
        Samples, float32 `[N]`; none, if the file has none.

    Raises:
        ValueError: the file isn't audio, is damaged or cut short, holds infinite samples or NaN, or ends before the part.
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder.
    """
    name = name or str(source)
    with _opened(source, name) as file:
        if file.frames is None:
            return _part_unpacked(file, sampling_rate, name, offset, duration)
        rate = file.samplerate
        begin = round(offset * rate)
        wanted = file.frames - begin if duration is None else round(duration * rate)
        # Durations in manifests are rounded, by less than half a second.
        if wanted < 0 or begin + wanted > file.frames + rate // 2:
            raise _too_short(name, file.frames / rate, offset, duration)
        wanted = min(wanted, file.frames - begin)
        if wanted > LONGEST * 3600 * rate:
            raise ValueError(f"{name}: says it lasts {wanted / rate / 3600:.0f} h; damaged, or to be cut ({LONGEST} h at most)")
        if begin:
            file.seek(begin)
        resampled = Resampler(rate, sampling_rate)
        # Filled piece by piece: putting pieces together at the end would take twice the memory.
        samples = np.empty(-(-wanted * sampling_rate // rate) + SLACK, dtype=np.float32)
        read = done = 0
        while True:
            block = file.read(min(FRAMES_AT_ONCE, wanted - read), dtype="float32", always_2d=True)
            read += len(block)
            is_last = not len(block) or read == wanted
            piece = checked_samples(resampled(_mixed(block), is_last), name)
            samples[done : done + len(piece)] = piece
            done += len(piece)
            if is_last:
                break
        if read < LEAST_READ * wanted:
            raise ValueError(f"{name}: is damaged: it ends after {read} of {wanted} samples")
    return samples[:done]


def _part_unpacked(file: Unpacked, sampling_rate: int, name: str, offset: float, duration: float | None) -> np.ndarray:
    """Return the same of a file whose length shows only at its end."""
    rate, at = file.samplerate, 0
    begin, most = round(offset * rate), LONGEST * 3600 * rate
    end = None if duration is None else begin + round(duration * rate)
    resampled, pieces = Resampler(rate, sampling_rate), []
    while (end is None or at < end) and len(block := file.read(FRAMES_AT_ONCE)):
        part = block[max(0, begin - at) : None if end is None else end - at, 0]
        pieces.append(checked_samples(resampled(part), name))
        at += len(block)
        if at - begin > most:
            raise ValueError(f"{name}: is longer than {LONGEST} h, as much as is read at once; to be cut")
    if at < begin or (end is not None and at < end - rate // 2):
        raise _too_short(name, at / rate, offset, duration)
    return np.concatenate([*pieces, resampled(np.zeros(0, dtype=np.float32), last=True)])


def _too_short(name: str, seconds: float, offset: float, duration: float | None) -> ValueError:
    which = "" if duration is None else f" that takes {duration:g} s"
    return ValueError(f"{name}: has {seconds:.2f} s, too few for the part from {offset:g} s{which}")


def file_pieces(
    path: str | os.PathLike[str] | IO[bytes],
    sampling_rate: int,
    seconds: float = 0.1,
    in_real_time: bool = False,
    name: str | None = None,
    give_up: Callable[[], bool] = lambda: False,
) -> Iterator[np.ndarray]:
    """Read a file in pieces, its channels mixed; it may be longer than the memory.

    Args:
        path: a path or an open binary file, of a kind that `read_audio` takes.
        sampling_rate: of the pieces, in hertz.
        seconds: the length of a piece, at most `FRAMES_AT_ONCE` samples of the file.
        in_real_time: whether pieces come at the pace of speech.
        name: the file's name in errors; by default its path.
        give_up: called by another thread while a process decodes WebM or MP4; returns whether the rest isn't wanted.

    Yields:
        Float32 `[N]`.

    Raises:
        ValueError: the file isn't audio, is damaged, or holds no samples, infinite ones or NaN.
        FileNotFoundError: there is no such file.
    """
    name = name or str(path)
    begin, heard = time.monotonic(), 0
    with _opened(path, name, give_up) as file:
        rate, resampled = file.samplerate, Resampler(file.samplerate, sampling_rate)
        size = min(max(1, round(rate * seconds)), max(1, FRAMES_AT_ONCE // file.channels))
        while len(samples := file.read(size, dtype="float32", always_2d=True)):
            heard += len(samples)
            if in_real_time:
                time.sleep(max(0.0, begin + heard / rate - time.monotonic()))
            yield checked_samples(resampled(_mixed(samples)), name)
    if not heard:
        raise ValueError(f"{name}: holds no samples")
    yield resampled(np.zeros(0, dtype=np.float32), last=True)


def _mixed(samples: np.ndarray) -> np.ndarray:
    """Return the mean of channels, `[N, C]` -> `[N]`."""
    return samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)


def checked_samples(samples: np.ndarray, name: str) -> np.ndarray:
    """Return samples; refuse infinite ones and NaN."""
    if not np.isfinite(samples).all():
        raise ValueError(f"{name}: holds samples that are infinite or not a number")
    return samples


@contextlib.contextmanager
def _opened(
    source: str | os.PathLike[str] | IO[bytes], name: str, give_up: Callable[[], bool] = lambda: False
) -> Iterator[Any]:
    """Open a file; errors have its name."""
    import soundfile

    if isinstance(source, str | os.PathLike):
        if not os.path.exists(source):
            raise FileNotFoundError(f"{source}: no such audio file")
        if os.path.isdir(source):
            raise IsADirectoryError(f"{source}: a folder; name the audio files in it")
    try:
        with _reader(source, name, give_up) as file:
            if not RATES[0] <= file.samplerate <= RATES[1] or file.channels > MOST_CHANNELS:
                raise ValueError(
                    f"{name}: says it has {file.channels} channels at {file.samplerate} Hz; damaged, or to be converted "
                    f"({MOST_CHANNELS} channels at most, {RATES[0]:,} to {RATES[1]:,} Hz)"
                )
            yield file
    except (soundfile.SoundFileError, OSError) as error:
        why = getattr(error, "error_string", error)  # without the source, which an open file has no name for
        raise ValueError(f"{name}: can't be read as audio: {why}") from None


def _reader(source: str | os.PathLike[str] | IO[bytes], name: str, give_up: Callable[[], bool]) -> Any:
    """Return a reader with the methods of `soundfile.SoundFile`."""
    import soundfile

    head = _head(source)
    form = container_of(head)
    if form is not None:
        return Unpacked(source, form, name, give_up)
    return (Wave.opened(source) if head.startswith(b"RIFF") else None) or soundfile.SoundFile(source)


def _head(source: str | os.PathLike[str] | IO[bytes]) -> bytes:
    """Return the first bytes of a source, and leave it at its begin."""
    if isinstance(source, str | os.PathLike):
        if not os.path.isfile(source):  # a pipe can't go back
            return b""
        with open(source, "rb") as file:
            return file.read(HEAD)
    source.seek(0)
    head = source.read(HEAD)
    source.seek(0)
    return head
