"""Recordings with transcripts: what a recogniser is evaluated on, and its weights are tuned on."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np

from ..audio import checked_samples, decode_audio, resample


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording, or a part of one.

    Args:
        id: names it; unique among those that were read together.
        audio: a file, the bytes of one, or samples: `[N]` or `[channels, N]`, integers in their full range or floats.
        sampling_rate: of samples, in hertz; files say it themselves.
        text: what was said; None if that isn't known, "" if nothing was.
        entities: phrases in it that matter, such as names (see `hf_ngpulm.evaluation.entity_errors`).
        offset, duration: the part of the file, in seconds; all that follows `offset` if there is no duration.
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
        """How long it is, by its header; NaN if that can't be read, or the file isn't there."""
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
    """Recordings in their order; those of a dataset are read when they are asked for.

    Args:
        source: where they come from, for messages.
        rows: recordings, or anything with a length whose items `made` turns into recordings.
        made: of a number and a row; the rows are recordings if left out.
        fingerprint: says which recordings these are; other data have another one.
    """

    def __init__(self, source: str, rows: Any, fingerprint: str, made: Any = None) -> None:
        self.source, self.fingerprint = source, fingerprint
        self._rows, self._made = rows, made

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> Recording: ...
    @overload
    def __getitem__(self, number: slice) -> list[Recording]: ...
    def __getitem__(self, number: int | slice) -> Recording | list[Recording]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"number {number} of {len(self)} recordings")
        number %= len(self)
        row = self._rows[number]
        return row if self._made is None else self._made(number, row)

    def __iter__(self) -> Iterator[Recording]:
        return (self[i] for i in range(len(self)))


def read_recordings(
    source: str | os.PathLike[str],
    *,
    split: str | None = None,
    config: str | None = None,
    audio_field: str | None = None,
    text_field: str | None = None,
    entities_field: str = "entities",
    limit: int | None = None,
) -> Recordings:
    """Recordings and their transcripts, of whatever holds them.

    Args:
        source: one of
            a manifest: JSON lines (`.jsonl`, `.json`, `.ndjson`) or a table with a header (`.tsv`, `.csv`). Fields: the audio
            ("audio", or NeMo's "audio_filepath", "file_name", "path", "file", "wav"; relative paths lie beside the manifest),
            the transcript (see `text_field`), and, where there are any, entities (a list; in tables separated by ";" or a
            JSON list), "id", and NeMo's "offset" and "duration" in seconds;
            a folder of audio files, also in folders within, with `metadata.jsonl` or `metadata.csv` as Hugging Face's
            audiofolder has it, LibriSpeech's `*.trans.txt`, or a `.txt` beside each file;
            a folder saved by `datasets`, a Parquet file, or a folder of these;
            the id of a dataset on the Hub, `org/name` or `org/name:config`.
        split: of a dataset on the Hub or in a folder; "test" by default if there is one, or the only one. Of a folder of
            audio: the folder within.
        config: of a dataset on the Hub.
        audio_field, text_field, entities_field: fields or columns. By default the transcript is the first there is of "text",
            "sentence", "transcription", "transcript", "normalized_text", "raw_transcription".
        limit: only the first so many.

    Raises:
        FileNotFoundError: there is no such file, nor could it be a dataset.
        ValueError: no recordings, a field that is missing or isn't what it should be: names the place.
    """
    from . import recording_sources

    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit should be a whole number above 0, got {limit!r}")
    fields = recording_sources.Fields(audio_field, text_field, entities_field)
    return recording_sources.recordings_of(os.fspath(source), fields, split, config, limit)


def load_audio(recording: Recording, sampling_rate: int) -> np.ndarray:
    """Samples of a recording: channels mixed, resampled, float32 `[N]`; none if it has none.

    Long files are read and resampled in blocks, so that memory holds little more than the result.

    Raises:
        ValueError: it isn't audio, is damaged or too short for its part, or holds infinite samples or NaN.
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
