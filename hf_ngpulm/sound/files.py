"""Read audio files, whole or in pieces, as one channel of float32 samples at the model's sampling rate."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from .containers import HEAD, Unpacked, container_of
from .waves import Wave

FRAMES_AT_ONCE = 1 << 20  # frames per block; an hour of stereo thus needs little more memory than its mono samples
SLACK = 64  # number of samples by which a resampler's output may exceed the exact length
LONGEST = 24  # hours; a file whose header states more is refused before memory is allocated
RATES, MOST_CHANNELS = (1_000, 1_000_000), 256  # hertz, and channels; a header with other values is damaged or hostile
LEAST_READ = 0.95  # a file with a smaller share of the frames in its header (an estimate for MP3) counts as cut short


class Resampler:
    """Resample audio piece by piece. The joined pieces are the same as if the whole audio was resampled at once.

    Args:
        rate: input rate in hertz.
        wanted: output rate in hertz.
    """

    def __init__(self, rate: int, wanted: int) -> None:
        self._stream: Any = None
        if rate != wanted:
            import soxr

            self._stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")

    def __call__(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Resample a piece `[N]` to float32 `[M]`. The last piece's result includes the samples that the filter has delayed."""
        samples = np.ascontiguousarray(samples, dtype=np.float32)
        return samples if self._stream is None else self._stream.resample_chunk(samples, last=last)


def resample(samples: np.ndarray, rate: int, sampling_rate: int) -> np.ndarray:
    """Resample audio `[N]` to float32 `[M]`. Both rates are in hertz."""
    return Resampler(rate, sampling_rate)(samples, last=True)


def read_audio(path: str | os.PathLike[str], sampling_rate: int) -> np.ndarray:
    """Read a file, average its channels, and resample it if necessary.

    Args:
        path: a file that libsndfile reads (WAV, FLAC, Ogg, MP3 ...); if PyAV is installed, also WebM and MP4 (M4A).
        sampling_rate: rate of the result, in hertz.

    Returns:
        Samples, float32 `[N]`.

    Raises:
        ValueError: the file isn't audio, is damaged, or holds no samples.
        FileNotFoundError: there is no such file.
        IsADirectoryError: the path is a folder.
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
    """Read a file or a part of it, average its channels, and resample it if necessary.

    Args:
        source: a path, or an open binary file, in a format that `read_audio` reads.
        sampling_rate: rate of the result, in hertz.
        name: the source's name in error messages; by default its path.
        offset, duration: start and length of the audio to read, in seconds. Without a duration, all audio after `offset` is
            read.

    Returns:
        Samples, float32 `[N]`; empty if the file has no samples.

    Raises:
        ValueError: the file isn't audio, is damaged or cut short, has infinite samples or NaN, or ends before the part.
        FileNotFoundError: there is no such file.
        IsADirectoryError: the path is a folder.
    """
    name = name or str(source)
    with _opened(source, name) as file:
        if file.frames is None:
            return _part_unpacked(file, sampling_rate, name, offset, duration)
        rate = file.samplerate
        begin = round(offset * rate)
        wanted = file.frames - begin if duration is None else round(duration * rate)
        # Durations in manifests may be rounded up, by less than half a second.
        if wanted < 0 or begin + wanted > file.frames + rate // 2:
            raise _too_short(name, file.frames / rate, offset, duration)
        wanted = min(wanted, file.frames - begin)
        if wanted > LONGEST * 3600 * rate:
            raise ValueError(
                f"{name}: the header says {wanted / rate / 3600:.0f} h, but at most {LONGEST} h can be read at once: cut the "
                "file, unless it is damaged"
            )
        if begin:
            file.seek(begin)
        resampled = Resampler(rate, sampling_rate)
        # The array is filled piece by piece. Joining pieces at the end would need twice the memory.
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
            raise ValueError(f"{name}: damaged: ends after {read} of {wanted} samples")
    return samples[:done]


def _part_unpacked(file: Unpacked, sampling_rate: int, name: str, offset: float, duration: float | None) -> np.ndarray:
    """Read a part of a file whose length is unknown before the end. Return the part's samples, as `decode_audio` does."""
    rate, at = file.samplerate, 0
    begin, most = round(offset * rate), LONGEST * 3600 * rate
    end = None if duration is None else begin + round(duration * rate)
    resampled, pieces = Resampler(rate, sampling_rate), []
    while (end is None or at < end) and len(block := file.read(FRAMES_AT_ONCE)):
        part = block[max(0, begin - at) : None if end is None else end - at, 0]
        pieces.append(checked_samples(resampled(part), name))
        at += len(block)
        if at - begin > most:
            raise ValueError(f"{name}: longer than {LONGEST} h, the most that can be read at once: cut it")
    if at < begin or (end is not None and at < end - rate // 2):
        raise _too_short(name, at / rate, offset, duration)
    return np.concatenate([*pieces, resampled(np.zeros(0, dtype=np.float32), last=True)])


def _too_short(name: str, seconds: float, offset: float, duration: float | None) -> ValueError:
    end = "" if duration is None else f" to {offset + duration:g} s"
    return ValueError(f"{name}: has only {seconds:.2f} s, but the part from {offset:g} s{end} was requested")


def file_pieces(
    path: str | os.PathLike[str] | IO[bytes],
    sampling_rate: int,
    seconds: float = 0.1,
    in_real_time: bool = False,
    name: str | None = None,
    give_up: Callable[[], bool] = lambda: False,
) -> Iterator[np.ndarray]:
    """Read a file in pieces, and average its channels. The file may be larger than the memory.

    Args:
        path: a path or an open binary file, in a format that `read_audio` reads.
        sampling_rate: rate of the pieces, in hertz.
        seconds: the length of a piece, in seconds. A piece has at most `FRAMES_AT_ONCE` samples of the file.
        in_real_time: whether pieces are yielded at the speed of the recorded speech.
        name: the file's name in error messages; by default its path.
        give_up: function that another thread calls while a process decodes WebM or MP4. It returns True to end the process.

    Yields:
        The samples of a piece, float32 `[N]`.

    Raises:
        ValueError: the file isn't audio, is damaged, holds no samples, or holds infinite samples or NaN.
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
    """Return the mean of the channels, `[N, C]` -> `[N]`."""
    return samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)


def checked_samples(samples: np.ndarray, name: str) -> np.ndarray:
    """Return the samples unchanged. Raises ValueError if a sample is infinite or NaN."""
    if not np.isfinite(samples).all():
        raise ValueError(f"{name}: holds samples that are infinite or not a number")
    return samples


@contextlib.contextmanager
def _opened(
    source: str | os.PathLike[str] | IO[bytes], name: str, give_up: Callable[[], bool] = lambda: False
) -> Iterator[Any]:
    """Open a file for reading. Error messages call the file `name`. `give_up`: as for `file_pieces`."""
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
                    f"{name}: the header says {file.channels} channels at {file.samplerate} Hz; convert the file to at most "
                    f"{MOST_CHANNELS} channels at {RATES[0]:,} to {RATES[1]:,} Hz, unless it is damaged"
                )
            yield file
    except (soundfile.SoundFileError, OSError) as error:
        why = getattr(error, "error_string", error)  # without the source, because an open file may have no name
        raise ValueError(f"{name}: can't be read as audio: {why}") from None


def _reader(source: str | os.PathLike[str] | IO[bytes], name: str, give_up: Callable[[], bool]) -> Any:
    """Return a reader with the methods of `soundfile.SoundFile`. Error messages call the source `name`. `give_up`: as for
    `file_pieces`.
    """
    import soundfile

    head = head_of(source)
    form = container_of(head)
    if form is not None:
        return Unpacked(source, form, name, give_up)
    return (Wave.opened(source) if head.startswith(b"RIFF") else None) or soundfile.SoundFile(source)


def head_of(source: str | os.PathLike[str] | IO[bytes]) -> bytes:
    """Return the first bytes of a source. Rewind an open file to its beginning."""
    if isinstance(source, str | os.PathLike):
        if not os.path.isfile(source):  # a pipe can't be rewound
            return b""
        with open(source, "rb") as file:
            return file.read(HEAD)
    source.seek(0)
    head = source.read(HEAD)
    source.seek(0)
    return head
