"""Define recordings with transcripts, for evaluation and tuning."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..sound.files import checked_samples, decode_audio, resample


@dataclass(frozen=True, eq=False)
class Recording:
    """Hold a recording, or a part of a recording.

    Args:
        id: name of the recording. Recordings that are read together have different ids.
        audio: a path, the bytes of a file, or samples. Samples are `[N]` or `[channels, N]`, integers in the full range of
            their type, or floats.
        sampling_rate: rate of samples, in hertz; None for files, because a file contains its rate.
        text: the transcript; None if it is unknown, "" if the recording has no words.
        entities: important phrases in the transcript, such as names (see `hf_ngpulm.evaluation.entity_errors`).
        offset, duration: begin and length of the recording within the audio, in seconds. Without a duration, the recording ends
            where the audio ends.
    """

    id: str
    audio: Path | np.ndarray | bytes = field(repr=False)
    sampling_rate: int | None = None
    text: str | None = None
    entities: tuple[str, ...] = ()
    offset: float = 0.0
    duration: float | None = None

    @property
    def seconds(self) -> float:
        """Return the length of the recording in seconds. For a file, read the header. If this fails, return NaN."""
        if self.duration is not None:
            return self.duration
        if isinstance(self.audio, np.ndarray):
            return max(self.audio.shape[-1] / self.sampling_rate - self.offset, 0.0) if self.sampling_rate else math.nan
        import soundfile

        try:
            about = soundfile.info(io.BytesIO(self.audio) if isinstance(self.audio, bytes) else self.audio)
        except (soundfile.SoundFileError, OSError, TypeError):
            return math.nan
        return max(about.frames / about.samplerate - self.offset, 0.0)


class Recordings(Sequence[Recording]):
    """Hold a sequence of recordings. A recording of a dataset is read when it is accessed.

    Args:
        source: name of the source, for messages.
        rows: recordings, or a sequence of items that `made` converts to recordings.
        fingerprint: a hash that identifies the data.
        made: function that makes a recording from its number and row; None if rows are recordings.
        described: function that makes a recording without audio from its number; None if rows have no audio.
    """

    def __init__(
        self,
        source: str,
        rows: Any,
        fingerprint: str,
        made: Callable[[int, Any], Recording] | None = None,
        described: Callable[[int], Recording] | None = None,
    ) -> None:
        self.source, self.fingerprint = source, fingerprint
        self._rows, self._made, self._described = rows, made, described

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"number {number} of {len(self)} recordings")
        number %= len(self)
        row = self._rows[number]
        return row if self._made is None else self._made(number, row)

    def described(self, number: int) -> Recording:
        """Return a recording with id, transcript and entities. The audio may be missing."""
        return self[number] if self._described is None else self._described(number)


def listed(source: str, recordings: Iterable[Recording], limit: int | None = None) -> Recordings:
    """Return the first `limit` recordings, or all recordings if `limit` is None. The result has unique ids, and a fingerprint
    that doesn't depend on transcripts.

    Raises:
        ValueError: there are no recordings.
    """
    rows: list[Recording] = []
    taken: set[str] = set()
    digest = hashlib.blake2b(digest_size=16)
    for recording in itertools.islice(recordings, limit):
        recording = replace(recording, id=unique(recording.id, taken))
        rows.append(recording)
        audio = Path(recording.audio).name if isinstance(recording.audio, str | Path) else len(recording.audio)
        digest.update(repr((recording.id, audio, recording.offset, recording.duration, recording.entities)).encode())
    if not rows:
        raise ValueError(f"{source}: holds no recordings")
    return Recordings(source, rows, digest.hexdigest())


def unique(name: str, taken: set[str]) -> str:
    """Add a name to `taken`, and return the name. If the name is already taken, use "name#2", "name#3" ... instead."""
    names = itertools.chain([name], (f"{name}#{number}" for number in itertools.count(2)))
    free = next(each for each in names if each not in taken)
    taken.add(free)
    return free


def load_audio(recording: Recording, sampling_rate: int) -> np.ndarray:
    """Return a recording's samples at `sampling_rate` hertz, float32 `[N]`. The channels are averaged.

    Long files are read and resampled in blocks, so memory holds little more than the result.

    Raises:
        ValueError: the file isn't audio, is damaged, ends before the recording begins, or contains NaN or infinity.
        FileNotFoundError: there is no such file.
    """
    audio = recording.audio
    if isinstance(audio, bytes):
        return decode_audio(io.BytesIO(audio), sampling_rate, recording.id, recording.offset, recording.duration)
    if not isinstance(audio, np.ndarray):
        return decode_audio(audio, sampling_rate, None, recording.offset, recording.duration)
    rate = recording.sampling_rate
    if rate is None or audio.ndim not in (1, 2):
        raise ValueError(
            f"{recording.id}: samples should be an array [N] or [channels, N] with a sampling_rate, got the shape "
            f"{list(audio.shape)} and the rate {rate}"
        )
    if audio.dtype.kind not in "iuf":
        raise ValueError(f"{recording.id}: samples should be integers or floats, got {audio.dtype}")
    begin = round(recording.offset * rate)
    end = None if recording.duration is None else begin + round(recording.duration * rate)
    audio = audio[..., begin:end]
    if audio.dtype.kind == "f":
        samples = audio.astype(np.float32)
    else:
        middle = 0 if audio.dtype.kind == "i" else (np.iinfo(audio.dtype).max + 1) / 2
        samples = ((audio - np.float64(middle)) / (-float(np.iinfo(audio.dtype).min) or middle)).astype(np.float32)
    mono = samples if samples.ndim == 1 else samples.mean(axis=0, dtype=np.float32)
    return resample(checked_samples(np.ascontiguousarray(mono), recording.id), rate, sampling_rate)
