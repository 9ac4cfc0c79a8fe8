"""Sort recordings into batches for the model, and load the batches ahead in another thread."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from .recognition import SHORTEST, Recogniser, RecognitionStep, cut_where_quiet
from .recordings import Recording, load_audio

BATCHES_PER_WINDOW = 64  # batches whose recordings are sorted by length together
AHEAD = 4  # the most items that wait
LONG, PIECE = 30.0, 10.0  # seconds; see `pieces_of`
T = TypeVar("T")


def audio_or_error(recording: Recording, sampling_rate: int) -> np.ndarray | str:
    """Return a recording's samples, float32 `[N]`. If the audio can't be read, return a line with the reason."""
    try:
        return load_audio(recording, sampling_rate)
    except (ValueError, OSError) as error:
        return " ".join(str(error).split())


def pieces_of(
    recordings: Iterable[Recording], rate: int, read: list[tuple[Recording, float]], unreadable: list[str],
    report: Callable[[str], None],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield the samples of recordings as inputs of a pipeline. Recordings of more than `LONG` seconds are cut at quiet places
    into pieces of at most `PIECE` seconds. Unreadable recordings are left out.

    Args:
        rate: sampling rate of the pipeline, hertz.
        read: a list to which a pair is added for each piece: the recording, and the piece's length in seconds.
        unreadable: a list to which the ids of unreadable recordings are added.
        report: called with a line about each unreadable recording.
    """
    for recording in recordings:
        audio = audio_or_error(recording, rate)
        if isinstance(audio, str):
            unreadable.append(recording.id)
            report(f"{recording.id}: {audio}; left out")
            continue
        for part in cut_where_quiet(audio, PIECE, rate) if len(audio) > LONG * rate else [audio]:
            read.append((recording, len(part) / rate))
            yield {"raw": np.pad(part, (0, max(0, round(SHORTEST * rate) - len(part)))), "sampling_rate": rate}


def batches(recordings: Sequence[Recording], batch_size: int, longest: float) -> Iterator[list[int]]:
    """Yield batches of recordings of similar length, as lists of recordings' numbers. Long recordings come first.

    The batches and thus the model's outputs don't depend on the number of processes.

    Args:
        recordings: the recordings. The files' headers are read to find the recordings' lengths.
        batch_size: number of recordings in a batch.
        longest: length in seconds above which a recording gets its own batch.
    """
    window = BATCHES_PER_WINDOW * batch_size
    for first in range(0, len(recordings), window):
        numbers = range(first, min(first + window, len(recordings)))
        # Recordings with unreadable headers come last; loading reports them.
        seconds = {number: -1.0 if math.isnan(length := recordings[number].seconds) else length for number in numbers}
        ordered = sorted(numbers, key=lambda number: (-seconds[number], number))
        long = [number for number in ordered if seconds[number] > longest]
        yield from ([number] for number in long)
        for start in range(len(long), len(ordered), batch_size):
            yield ordered[start : start + batch_size]


def steps(
    recordings: Sequence[Recording], chosen: Iterable[list[int]], recogniser: Recogniser, batch_size: int
) -> Iterator[RecognitionStep | None]:
    """Load batches of recordings, and make the features. Yield the steps of each batch, and None after each batch.

    Args:
        chosen: the batches, as lists of recordings' numbers.
        batch_size: number of chunks of a long recording in a step.
    """
    for numbers in chosen:
        whole: list[tuple[int, np.ndarray]] = []
        for number in numbers:
            audio = audio_or_error(recordings[number], recogniser.sampling_rate)
            if isinstance(audio, str):
                yield RecognitionStep(None, (number,), (0.0,), error=audio)
            elif not len(audio):
                yield RecognitionStep(None, (number,), (0.0,))
            elif recogniser.is_long(len(audio)):
                try:
                    yield from recogniser.steps_of_long(audio, number, batch_size)
                except ValueError as error:
                    yield RecognitionStep({}, (number,), (0.0,), chunked=True, refusal=error)
            else:
                whole.append((number, audio))
        if whole:
            of_whole = tuple(number for number, _ in whole)
            try:
                step = recogniser.step_of([audio for _, audio in whole], of_whole)
            except ValueError as error:
                step = RecognitionStep({}, of_whole, (0.0,) * len(whole), refusal=error)
            yield step
        yield None


def ahead(items: Iterator[T], most: int = AHEAD) -> Generator[T, None, None]:
    """Yield items that another thread makes in advance. `most`: maximum number of waiting items. When the generator is closed,
    the thread ends.
    """
    end: Any = object()
    with ThreadPoolExecutor(1, "ahead") as thread:
        made = deque(thread.submit(next, items, end) for _ in range(most))
        try:
            while (item := made.popleft().result()) is not end:
                made.append(thread.submit(next, items, end))
                yield item
        finally:
            for future in made:
                future.cancel()
