"""Transcribe any number of recordings on a cluster, or as a step of a pipeline of jobs. Results are lines of JSON.

Recordings are divided into groups of neighbours, and a group into batches by its seconds of audio. Groups and batches don't
depend on who transcribes them, so transcripts don't either.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..common.cluster import Actors, Cluster, InProcess
from ..decoding.families import is_seq2seq
from ..pipelines.loading import load_pipeline
from .loading import audio_or_problem
from .recognition import SHORTEST
from .recordings import Recordings

GROUP = 64  # recordings, of which batches are made
BATCH_SECONDS = 240.0
BEGIN = b'{"audio": '  # of each line


class Transcriber:
    """Transcribes groups of recordings. The model is loaded at the first group, so that this object can be sent to machines.

    Args:
        model: folder or Hub id of the recogniser.
        recordings: all recordings.
        settings: settings of the pipeline: `lm`, `num_beams` ... and `device`, `dtype`.
        options: options of its calls: `return_timestamps`, `chunk_length_s`.
        batch_seconds: seconds of audio in a batch, with the silence that pads it.
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
        """Return every `world_size`-th group of numbers of recordings, without groups whose ids are all among `done`."""
        every = range(len(self.recordings))
        groups = [list(every[first : first + GROUP]) for first in range(GROUP * rank, len(every), GROUP * world_size)]
        return [group for group in groups if any(self.recordings.described(number).id not in done for number in group)]

    def __call__(self, group: list[int]) -> list[dict[str, Any]]:
        """Return a result for each recording of a group: its id as "audio", and what the pipeline returns; or "problem", a line
        that says why it can't be read."""
        if self._asr is None:
            self._asr = load_pipeline(self.model, **self.settings)
        asr, options = self._asr, dict(self.options)
        if options.get("return_timestamps") and not is_seq2seq(asr.model) and asr._forward_params.get("ngram_decoder") is None:
            options["num_beams"] = 1  # the stock pipeline has times for some tokenizers only
        rate = asr.feature_extractor.sampling_rate
        audio = {number: audio_or_problem(self.recordings[number], rate) for number in group}
        found: dict[int, dict[str, Any]] = {}
        for number, each in audio.items():
            if isinstance(each, str):
                found[number] = {"problem": each}
        samples = {
            number: np.pad(each, (0, max(0, round(SHORTEST * rate) - len(each))))
            for number, each in audio.items()
            if not isinstance(each, str)
        }
        for batch in batches_by_seconds({number: len(each) / rate for number, each in samples.items()}, self.batch_seconds):
            inputs = ({"raw": samples[number], "sampling_rate": rate} for number in batch)
            found |= dict(zip(batch, asr(inputs, batch_size=len(batch), **options)))
        return [{"audio": self.recordings.described(number).id, **found[number]} for number in group]


def transcribe_into(
    output: str | os.PathLike[str],
    transcriber: Transcriber,
    cluster: Cluster,
    actors: Actors | None = None,
    share: tuple[int, int] = (0, 1),
    beside: Iterable[Path] = (),
) -> Iterator[dict[str, Any]]:
    """Append the result of each recording to a file as a line of JSON, and yield the results.

    Recordings that have a line already are left out, so a killed run can be started again. Recordings that can't be read get no
    line; their results have "problem".

    Args:
        share: which groups of recordings are meant, and of how many such shares, if several processes have a file each.
        beside: files of other processes; recordings that have a line there are left out, too.

    Raises:
        ValueError: a file has something else than results.
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
            lines = (json.dumps(result, ensure_ascii=False) + "\n" for result in new if "problem" not in result)
            file.write("".join(lines).encode())
            file.flush()
            done.update(result["audio"] for result in new)
            yield from new


def _done(path: str | os.PathLike[str], content: bytes) -> tuple[set[str], int]:
    """Return the ids of the recordings that have a line in a file's content, and the bytes of all whole lines. A killed run may
    have left half a line after them. Raises ValueError if there is anything else.
    """
    whole = content[: content.rfind(b"\n") + 1]
    rest = content[len(whole) :]
    try:
        if rest[: len(BEGIN)] != BEGIN[: len(rest)]:
            raise ValueError
        return {json.loads(line)["audio"] for line in whole.splitlines()}, len(whole)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: has other lines than results of recordings; name another file") from None


class TranscriptionStep:
    """A step of a pipeline of jobs, in the shape that datatrove's executors call: each of `world_size` tasks transcribes its
    share of the recordings into `folder/RANK.jsonl`. Recordings that have a line in any file of the folder are left out, so a
    killed run may go on with another `world_size`. On Slurm, call `run(None, SLURM_PROCID, SLURM_NTASKS)`.
    """

    def __init__(self, transcriber: Transcriber, folder: str | os.PathLike[str]) -> None:
        self.transcriber, self.folder = transcriber, folder

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Yield `data` unchanged, and then the results of this task's recordings that have none yet."""
        yield from data or ()
        output = Path(self.folder, f"{rank:05}.jsonl")
        beside = [path for path in Path(self.folder).glob("[0-9]*.jsonl") if path != output]
        yield from transcribe_into(output, self.transcriber, InProcess(), share=(rank, world_size), beside=beside)

    __call__ = run


def batches_by_seconds(seconds: dict[int, float], most: float) -> Iterator[list[int]]:
    """Yield batches of recordings of similar length, the longest first. A batch's number of recordings times its longest is at
    most `most` seconds, but it has one recording at least.

    Args:
        seconds: length of each recording, by its number.
    """
    batch: list[int] = []
    for number in sorted(seconds, key=lambda number: (-seconds[number], number)):
        if batch and seconds[batch[0]] * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
