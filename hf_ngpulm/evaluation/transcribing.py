"""Transcribe any number of recordings on a cluster, or as a step of a pipeline of jobs. Results are lines of JSON.

Consecutive recordings form groups, and each group is divided into batches of limited duration. The groups, the batches and thus
the transcripts don't depend on the number of workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..common.cluster import Actors, Cluster, InProcess
from ..common.extras import needed
from ..common.files import write_beside
from ..decoding.families import is_seq2seq
from ..pipelines.loading import load_pipeline
from .loading import audio_or_error
from .recognition import SHORTEST, faint_noise
from .recordings import Recordings

GROUP = 64  # recordings in a group
BATCH_SECONDS = 240.0
ROWS = 65536  # rows that are written to Parquet at a time
OPEN = ("slots", "explanation")  # results whose types depend on the grammar
BEGIN = b'{"audio": '  # the beginning of each line


class Transcriber:
    """Transcribes groups of recordings. The model is loaded for the first group, so a new transcriber can be pickled and sent.

    Args:
        model: folder or Hub id of the recogniser.
        recordings: all recordings.
        settings: settings of the pipeline: `lm`, `num_beams` ... and `device`, `dtype`.
        options: options of the pipeline's calls: `return_timestamps`, `chunk_length_s`.
        batch_seconds: maximum seconds of audio in a batch, including padding.
    """

    def __init__(
        self,
        model: str,
        recordings: Recordings,
        settings: dict[str, Any],
        options: dict[str, Any],
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        self.model, self.recordings, self.settings, self.options = model, recordings, settings, options
        self.batch_seconds = batch_seconds
        self._asr: Any = None

    def groups(self, done: set[str], rank: int = 0, world_size: int = 1) -> list[list[int]]:
        """Return this process's groups, as lists of recordings' numbers. The process gets group `rank`, and then every
        `world_size`-th group. If `done` has the ids of all recordings in a group, the group is left out.
        """
        every = range(len(self.recordings))
        groups = [list(every[first : first + GROUP]) for first in range(GROUP * rank, len(every), GROUP * world_size)]
        return [group for group in groups if any(self.recordings.described(number).id not in done for number in group)]

    def __call__(self, group: list[int]) -> list[dict[str, Any]]:
        """Return a result for each recording of a group.

        A result has the recording's id as "audio", and the entries of the pipeline's result. If a recording can't be read, or
        the pipeline refuses the recording, the result has the reason as "error" instead of these entries.

        Raises:
            ValueError: the pipeline refuses the settings.
        """
        if self._asr is None:
            self._asr = load_pipeline(self.model, **self.settings)
        asr, options = self._asr, dict(self.options)
        if options.get("return_timestamps") and not is_seq2seq(asr.model) and asr._forward_params.get("ngram_decoder") is None:
            options["num_beams"] = 1  # this project's search has times for every tokenizer, the stock pipeline doesn't
        rate = asr.feature_extractor.sampling_rate
        ids = {number: self.recordings.described(number).id for number in group}
        results: dict[str, dict[str, Any]] = {}
        samples: dict[int, np.ndarray] = {}
        for number in group:
            audio = audio_or_error(self.recordings[number], rate)
            if isinstance(audio, str) or not len(audio):
                results[ids[number]] = {"error": audio if len(audio) else f"{ids[number]}: holds no samples"}
            else:
                samples[number] = audio
        for batch in batches_by_seconds({number: len(each) / rate for number, each in samples.items()}, self.batch_seconds):
            results |= transcribed(asr, {ids[number]: samples[number] for number in batch}, len(batch), options)
        return [{"audio": id, **results[id]} for id in ids.values()]


def transcribe_into(
    output: str | os.PathLike[str],
    transcriber: Transcriber,
    cluster: Cluster,
    actors: Actors | None = None,
    share: tuple[int, int] = (0, 1),
    beside: Iterable[Path] = (),
) -> Iterator[dict[str, Any]]:
    """Append the result of each recording to a file as a line of JSON, and yield the results.

    A killed run can be started again, because recordings that already have a line in the file are left out. If a recording
    can't be read, or the recogniser refuses it, the result has "error".

    Args:
        share: this process's rank and the number of processes, if several processes share the groups. Each process has its own
            file.
        beside: files of the other processes. Recordings with a line in these files are left out, too.

    Raises:
        ValueError: a file has lines that aren't results.
    """
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    with open(output, "a+b") as file:
        file.seek(0)
        done, size = _done(output, file.read())
        file.truncate(size)
        for path in beside:
            done |= _done(path, path.read_bytes())[0]
        for results in cluster.each(transcriber, transcriber.groups(done, *share), actors or Actors()):
            new = [result for result in results if result["audio"] not in done]
            lines = (json.dumps(result, ensure_ascii=False) + "\n" for result in new)
            file.write("".join(lines).encode())
            file.flush()
            done.update(result["audio"] for result in new)
            yield from new


def _done(path: str | os.PathLike[str], content: bytes) -> tuple[set[str], int]:
    """Return the ids of the recordings with a result in a file, and the size of the file's complete lines in bytes. The last
    line of a killed run may be incomplete. Raises ValueError if a line isn't a result. `path`: the file, for messages.
    """
    whole = content[: content.rfind(b"\n") + 1]
    rest = content[len(whole) :]
    try:
        if rest[: len(BEGIN)] != BEGIN[: len(rest)]:
            raise ValueError
        return {json.loads(line)["audio"] for line in whole.splitlines()}, len(whole)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: has lines that aren't results of recordings; name another file") from None


class TranscriptionStep:
    """Transcribe recordings as a step of a pipeline of jobs. Executors of the library datatrove can run the step.

    Each of `world_size` tasks transcribes its share of the recordings into `folder/RANK.jsonl`. Recordings with a line in any
    file of the folder are left out, so a killed run can resume with another `world_size`. On Slurm, call
    `run(None, SLURM_PROCID, SLURM_NTASKS)`.
    """

    def __init__(self, transcriber: Transcriber, folder: str | os.PathLike[str]) -> None:
        self.transcriber, self.folder = transcriber, folder

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Yield `data` unchanged. Then transcribe this task's remaining recordings, and yield the results."""
        yield from data or ()
        output = Path(self.folder, f"{rank:05}.jsonl")
        beside = [path for path in Path(self.folder).glob("[0-9]*.jsonl") if path != output]
        yield from transcribe_into(output, self.transcriber, InProcess(), share=(rank, world_size), beside=beside)

    __call__ = run


def transcribed(asr: Any, audio: Mapping[str, np.ndarray], batch_size: int, options: dict[str, Any]) -> dict[str, Any]:
    """Transcribe recordings, and return the results by the recordings' names. If the pipeline refuses a recording, the result
    has the reason as "error".

    Args:
        audio: samples `[N]` of each recording, by name.
        options: options of the pipeline's call.

    Raises:
        ValueError: the pipeline refuses even faint noise, so its settings are wrong.
    """
    rate = asr.feature_extractor.sampling_rate

    def run(some: Iterable[np.ndarray]) -> list[dict[str, Any]]:
        padded = (np.pad(each, (0, max(0, round(SHORTEST * rate) - len(each)))) for each in some)
        return list(asr(({"raw": each, "sampling_rate": rate} for each in padded), batch_size=batch_size, **options))

    try:
        return dict(zip(audio, run(audio.values())))
    except ValueError as error:
        if len(audio) == 1:
            run([faint_noise(rate)])
            return {name: {"error": " ".join(f"{name}: {error}".split())} for name in audio}
    return {name: transcribed(asr, {name: each}, batch_size, options)[name] for name, each in audio.items()}


def write_parquet(lines: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Convert a file with a result per line of JSON to a Parquet file in the same order.

    If a result lacks an entry, the column has null. The columns in `OPEN` contain JSON.

    Raises:
        ValueError: the values of a column have no common type.
        ImportError: pyarrow isn't installed.
    """
    with needed("eval", "Parquet files"):
        import pyarrow
        from pyarrow.parquet import ParquetWriter

    def blocks() -> Iterator[list[dict[str, Any]]]:
        with open(lines, encoding="utf-8") as file:
            while block := list(map(json.loads, islice(file, ROWS))):
                for row in block:
                    row |= {name: json.dumps(row[name], ensure_ascii=False) for name in OPEN if name in row}
                yield block

    schema = pyarrow.schema([("audio", pyarrow.string()), ("text", pyarrow.string()), ("error", pyarrow.string())])
    try:
        for block in blocks():
            names = dict.fromkeys(name for row in block for name in row)
            table = pyarrow.table({name: pyarrow.array([row.get(name) for row in block]) for name in names})
            schema = pyarrow.unify_schemas([schema, table.schema], promote_options="permissive")
        with write_beside(output) as beside, ParquetWriter(beside, schema) as writer:
            for block in blocks():
                writer.write_table(pyarrow.Table.from_pylist(block, schema))
    except pyarrow.ArrowException as error:
        raise ValueError(f"{lines}: can't be written as Parquet: {error}") from None


def batches_by_seconds(seconds: dict[int, float], most: float) -> Iterator[list[int]]:
    """Yield batches of recordings of similar length. Long recordings come first.

    Args:
        seconds: length of each recording in seconds, by the recording's number.
        most: maximum duration of a batch in seconds. A batch's duration is its number of recordings times the length of its
            longest recording. A recording that is longer than the maximum has its own batch.
    """
    batch: list[int] = []
    for number in sorted(seconds, key=lambda number: (-seconds[number], number)):
        if batch and seconds[batch[0]] * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
