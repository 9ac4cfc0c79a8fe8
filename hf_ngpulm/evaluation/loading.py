"""Audio on its way to the model: in which order, in which batches, by which process; loaded ahead in a thread of its own."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .recognition import Recogniser, Step
from .recordings import Recording, load_audio

BATCHES_PER_WINDOW = 64  # recordings of so many batches are sorted by length together: enough, and their order needs no memory
AHEAD = 4  # steps that wait for the model at most


@dataclass(frozen=True)
class Loaded:
    """Recordings of a batch on their way, or what became of them.

    Args:
        numbers: of the recordings that this ends, in the order of the step's rows; those without audio and those that can't be
            read come without a step.
        seconds: of audio, of each.
        step: what the model is to be given.
        problem: why the one recording can't be read.
        ends_batch: whether this is the last of a batch.
    """

    numbers: tuple[int, ...]
    seconds: tuple[float, ...]
    step: Step | None = None
    problem: str | None = None
    ends_batch: bool = False


def audio_or_problem(recording: Recording, sampling_rate: int) -> np.ndarray | str:
    """Return a recording's samples, float32 `[N]`; or, in one line, why they can't be read."""
    try:
        return load_audio(recording, sampling_rate)
    except (ValueError, OSError) as error:
        return " ".join(str(error).split())


def batches(recordings: Sequence[Recording], batch_size: int, longest: float) -> Iterator[list[int]]:
    """Yield numbers of recordings in batches of similar length, the longest first.

    The batches are the same in whichever and however many processes they are made: so is what a model says of them.

    Args:
        recordings: of which headers are read as batches are asked for.
        batch_size: recordings of a batch; those of more than `longest` seconds have one for themselves.
    """
    window = BATCHES_PER_WINDOW * batch_size
    for first in range(0, len(recordings), window):
        numbers = range(first, min(first + window, len(recordings)))
        # Those whose header can't be read come last, and are told of when they are loaded.
        seconds = {number: -1.0 if math.isnan(found := recordings[number].seconds) else found for number in numbers}
        ordered = sorted(numbers, key=lambda number: (-seconds[number], number))
        long = [number for number in ordered if seconds[number] > longest]
        yield from ([number] for number in long)
        for start in range(len(long), len(ordered), batch_size):
            yield ordered[start : start + batch_size]


class Loader:
    """Loads batches of recordings ahead, and makes their features, in a thread.

    At most `AHEAD` steps wait, with their features; beside them there is the audio of one batch. A context manager, which ends
    the thread.

    Args:
        recordings: all of them.
        chosen: the batches to load.
        recogniser: makes the features.
        batch_size: chunks of a long recording in a step.
    """

    def __init__(
        self, recordings: Sequence[Recording], chosen: Iterator[list[int]], recogniser: Recogniser, batch_size: int
    ) -> None:
        self.recordings, self.chosen, self.recogniser, self.batch_size = recordings, chosen, recogniser, batch_size
        self._queue: queue.Queue[Loaded | BaseException | None] = queue.Queue(AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audio", daemon=True)

    def __enter__(self) -> Loader:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def __iter__(self) -> Iterator[Loaded]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def _run(self) -> None:
        try:
            for numbers in self.chosen:
                found = self._of_batch(numbers)
                item = next(found, None)
                while item is not None:
                    following = next(found, None)
                    if following is None:
                        item = Loaded(item.numbers, item.seconds, item.step, item.problem, ends_batch=True)
                    if not self._put(item):
                        return
                    item = following
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Loaded | BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def _of_batch(self, numbers: Sequence[int]) -> Iterator[Loaded]:
        rate = self.recogniser.sampling_rate
        whole: list[tuple[int, np.ndarray]] = []
        for number in numbers:
            audio = audio_or_problem(self.recordings[number], rate)
            if isinstance(audio, str):
                yield Loaded((number,), (0.0,), problem=audio)
                continue
            if not len(audio):
                yield Loaded((number,), (0.0,))
            elif self.recogniser.is_long(len(audio)):
                for step in self.recogniser.steps_of_long(audio, number, self.batch_size):
                    yield Loaded((number,), (len(audio) / rate,), step) if step.ends else Loaded((), (), step)
            else:
                whole.append((number, audio))
        if whole:
            step = self.recogniser.step_of([audio for _, audio in whole], [number for number, _ in whole])
            yield Loaded(step.numbers, tuple(len(audio) / rate for _, audio in whole), step)


def shares(total: float, weights: Sequence[float]) -> list[float]:
    """Return a sum, divided by weights."""
    whole = sum(weights)
    return [total * weight / whole if whole else total / len(weights) for weight in weights]
