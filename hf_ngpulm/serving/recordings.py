"""Whole recordings: many at once, of any length, decoded in batches."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch

from ..audio import StreamingRecognizer
from .attention import AttentionRecognizer
from .connection import timeout
from .engine import Engine, Session
from .limits import Limits

BATCH = 16  # recordings that a step takes
# Seconds of audio in a step on the CPU. With more, activations are so large that malloc asks the system for each, which takes
# half of the time.
BATCH_SECONDS = 100.0
CHUNK_SECONDS, CONTEXT_SECONDS = 30.0, 5.0
WAITING_SECONDS = 60.0  # of audio of a recording that waits to be decoded
PIECE_SECONDS, PIECES = 10.0, 3  # of audio that are read, and how many at a time
LOOK_SECONDS = 0.5  # between looks at whether the client is still there
MOST_SEARCHES = 4  # numbers of beams for which there are recognisers at the same time
MOST_LANES = 4  # engines that have the same search, on the CPU

Lane: TypeAlias = tuple["int | None", int]  # a number of beams, and which of the engines that have it


class Failure(Exception):
    """A recording can't be transcribed; the message is for the client.

    Args:
        code: as websockets have it: 1008 if the recording is to blame.
    """

    def __init__(self, message: str, code: int = 1008) -> None:
        super().__init__(message)
        self.code = code


class Recordings:
    """Transcribes recordings: each is a stream of an engine, with chunks so long that most recordings are one chunk.

    A step takes a chunk of each of `BATCH` recordings, so nobody waits for the whole of another's long one. Each number of
    beams has engines of its own, a few numbers at a time. On the CPU it has several, and the busy ones share torch's threads:
    two batches in parallel take less time than one after the other with twice the threads, which mostly wait for each other
    between a model's many small operations.

    Args:
        recognizer: has the model and the search.
        watch: see `Engine`.
    """

    def __init__(
        self,
        recognizer: StreamingRecognizer | AttentionRecognizer,
        limits: Limits,
        watch: Callable[[int, float, list[float]], None] | None = None,
    ) -> None:
        self.recognizer, self.limits, self.watch = recognizer, limits, watch
        self._engines: dict[Lane, Engine] = {}  # the one used last at the end
        self._users: Counter[Lane] = Counter()
        self._making = threading.Lock()
        self._threads = torch.get_num_threads()
        is_shared = isinstance(recognizer, StreamingRecognizer) and recognizer.model.device.type == "cpu"
        self._lanes = min(MOST_LANES, self._threads) if is_shared else 1

    @property
    def sound(self) -> bool:
        """Return whether all engines are."""
        return all(engine.sound for engine in list(self._engines.values()))

    def stop(self, seconds: float | None = None) -> bool:
        """Stop all engines; see `Engine.stop`."""
        engines = list(self._engines.values())
        for engine in engines:
            engine.stop(0.0)  # all are told before one is waited for
        until = time.monotonic() + (seconds or 0.0)
        return all([engine.stop(seconds and max(0.0, until - time.monotonic())) for engine in engines])

    @contextlib.asynccontextmanager
    async def engine(self, num_beams: int | None) -> AsyncIterator[Engine]:
        """Lend the engine for a number of beams, None for the server's own, to the `with` block.

        Raises:
            ValueError: the search has no such number of beams.
        """
        lane = num_beams, min(range(self._lanes), key=lambda number: self._users[num_beams, number])
        self._users[lane] += 1
        try:
            engine = self._engines.pop(lane, None)
            if engine is None:
                engine = await asyncio.to_thread(self._engine, lane)
            else:
                self._engines[lane] = engine
            self._share_threads()
            yield engine
        finally:
            self._users[lane] -= 1
            self._share_threads()
            dropped = self._dropped()  # all before the first stops: a new client gets none of them
            for engine in dropped:
                await asyncio.to_thread(engine.stop)

    def _dropped(self) -> list[Engine]:
        """Remove and return idle engines: those of all but the `MOST_SEARCHES` numbers of beams that were used last."""
        lately = dict.fromkeys(beams for beams, _ in reversed(list(self._engines)))
        used = {beams for (beams, _), users in self._users.items() if users}
        idle = [beams for beams in lately if beams not in used]
        kept = used | set(idle[: max(0, MOST_SEARCHES - len(used))])
        return [self._engines.pop(lane) for lane in list(self._engines) if lane[0] not in kept]

    def _share_threads(self) -> None:
        busy = sum(map(bool, self._users.values()))
        for engine in list(self._engines.values()):
            engine.threads = max(1, self._threads // max(1, busy))

    def _engine(self, lane: Lane) -> Engine:
        with self._making:
            engine = self._engines.pop(lane, None)
            if engine is None:
                beams = {} if lane[0] is None else {"num_beams": lane[0]}
                recognizer = self.recognizer.for_recordings(self.limits.uploads, CHUNK_SECONDS, CONTEXT_SECONDS, **beams)
                utterance = self.limits.audio_seconds + PIECE_SECONDS  # a recording is one
                seconds = BATCH_SECONDS if recognizer.model.device.type == "cpu" else None
                engine = Engine(recognizer, 0.02, utterance, BATCH, seconds, self.limits.work_seconds, watch=self.watch)
                engine.start()
            self._engines[lane] = engine
            return engine


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in another thread; a cancelled caller waits for its end, so that its file stays open until then."""
    future = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        raise


class Take:
    """One recording on its way through an engine, within a `with` block.

    Args:
        settings: for `StreamingRecognizer.open`.
        check: called now and then; raises to give the recording up.
        words: whether words are wanted, and not the text alone.

    Attributes:
        seconds: of audio so far.
    """

    def __init__(
        self, engine: Engine, settings: dict[str, Any], limits: Limits, check: Callable[[], Any], words: bool = True
    ) -> None:
        self.engine, self.limits, self.check = engine, limits, check
        self.seconds = 0.0
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._session = Session(settings, self._events.put_nowait, loop, endpoints=False, words=words)

    def __enter__(self) -> Take:
        self.engine.enter(self._session)
        return self

    def __exit__(self, *_: Any) -> None:
        self.engine.leave(self._session)

    async def events(
        self, pieces: Iterable[np.ndarray], turns: contextlib.AbstractAsyncContextManager[Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the recording's partial events and its final one, while it is read.

        Args:
            pieces: float32 `[N]` at the recogniser's rate.
            turns: entered for each read, which another thread does. None reads in this thread: changing threads costs as much
                as reading a few seconds of plain samples.

        Raises:
            Failure: it is too long, or the model can't hear it.
            ValueError: from `pieces`.
            Exception: from `check`.
        """
        reading: Iterator[np.ndarray] = iter(pieces)
        is_more = True
        while is_more:
            self.check()
            if turns is None:
                read = list(islice(reading, PIECES))
            else:
                async with turns:
                    read = await _in_thread(lambda: list(islice(reading, PIECES)))
            is_more = len(read) == PIECES
            for piece in read:
                self.push(piece)
            while not self.has_room or not self._events.empty():
                event = await self._event()
                if event["type"] != "room":
                    yield event
        self.engine.end(self._session)
        while (event := await self._event())["type"] != "done":
            if event["type"] != "room":
                yield event

    @property
    def has_room(self) -> bool:
        return self._session.backlog <= WAITING_SECONDS * self.engine.recognizer.sampling_rate

    def push(self, samples: np.ndarray) -> None:
        """Take audio at the recogniser's rate."""
        self.seconds += len(samples) / self.engine.recognizer.sampling_rate
        if self.seconds > self.limits.audio_seconds:
            raise Failure(f"the recording is longer than {self.limits.audio_seconds:g} s, as long as it may be; cut it")
        if len(samples):
            self.engine.push(self._session, samples)

    async def room(self) -> None:
        """Wait until more audio may be pushed."""
        while not self.has_room:
            await self._event()

    async def _event(self) -> dict[str, Any]:
        while True:
            self.check()
            try:
                async with timeout(LOOK_SECONDS):
                    event = await self._events.get()
            except asyncio.TimeoutError:
                continue
            if event["type"] == "failed":
                raise Failure(event["reason"], event["code"])
            return event
