"""Transcribe whole recordings of any length. Many recordings share a batch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch

from ..audio import StreamingRecognizer
from ..grammar.grammar import Grammar
from .attention import AttentionRecognizer
from .connection import timeout
from .engine import Engine, Session
from .limits import Limits, PhraseBudget

BATCH = 16  # most recordings in a step
# Seconds of audio in a step on the CPU. With longer batches, malloc requests each (large) activation from the system, and these
# requests take half of the time.
BATCH_SECONDS = 100.0
CHUNK_SECONDS, CONTEXT_SECONDS = 30.0, 5.0
WAITING_SECONDS = 60.0  # most seconds of a recording's audio that wait to be decoded
PIECE_SECONDS, PIECES = 10.0, 3  # length of a piece of audio, and number of pieces that are read at a time
LOOK_SECONDS = 0.5  # between checks that the client is still connected
MOST_SEARCHES = 4  # different beam widths that have recognisers at the same time
MOST_LANES = 4  # engines with the same beam width, on the CPU

Lane: TypeAlias = tuple["int | None", int]  # a beam width, and the number of the engine among those with that beam width


class Failure(Exception):
    """Report that a recording can't be transcribed. The message is for the client.

    Args:
        code: a websocket close code. If the recording is the cause of the failure, the code is 1008.
    """

    def __init__(self, message: str, code: int = 1008) -> None:
        super().__init__(message)
        self.code = code


class RecordingEngines:
    """Transcribes recordings. Each recording is a stream of an engine. Chunks are long, so most recordings have a single chunk.

    A step decodes a chunk of several recordings (at most `BATCH`), so no client waits for the whole recording of another
    client. Each beam width has its own engines, for a few beam widths at a time. On the CPU, a beam width has several engines,
    and the busy engines share torch's threads. Two parallel batches take less time than two successive batches with twice the
    threads, because threads wait for each other between a model's many small operations.

    Args:
        recognizer: the recogniser with the model and the search.
        watch, read: see `Engine`.
    """

    def __init__(
        self,
        recognizer: StreamingRecognizer | AttentionRecognizer,
        limits: Limits,
        watch: Callable[[int, float, list[float]], None] | None = None,
        read: Callable[[str, PhraseBudget], Awaitable[Grammar]] | None = None,
    ) -> None:
        self.recognizer, self.limits, self.watch, self.read = recognizer, limits, watch, read
        self._engines: dict[Lane, Engine] = {}  # in order of last use, the latest at the end
        self._users: Counter[Lane] = Counter()
        self._making = threading.Lock()
        self._threads = torch.get_num_threads()
        is_shared = isinstance(recognizer, StreamingRecognizer) and recognizer.model.device.type == "cpu"
        self._lanes = min(MOST_LANES, self._threads) if is_shared else 1

    @property
    def sound(self) -> bool:
        """Return whether all engines are sound; see `Engine`."""
        return all(engine.sound for engine in list(self._engines.values()))

    def stop(self, seconds: float | None = None) -> bool:
        """Stop all engines; see `Engine.stop`."""
        engines = list(self._engines.values())
        for engine in engines:
            engine.stop(0.0)  # tell all engines to stop before waiting for the first
        until = time.monotonic() + (seconds or 0.0)
        return all([engine.stop(seconds and max(0.0, until - time.monotonic())) for engine in engines])

    @contextlib.asynccontextmanager
    async def engine(self, num_beams: int | None) -> AsyncIterator[Engine]:
        """Lend an engine to the `with` block.

        Args:
            num_beams: the beam width; None for the server's beam width.

        Raises:
            ValueError: the search doesn't support this beam width.
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
            dropped = self._dropped()  # removed before the first is stopped, so that no new client gets one that stops
            for engine in dropped:
                await asyncio.to_thread(engine.stop)

    def _dropped(self) -> list[Engine]:
        """Keep the engines of busy beam widths. If fewer than `MOST_SEARCHES` beam widths are busy, also keep the
        engines of the latest idle beam widths, up to this limit. Remove and return all other engines.
        """
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
                utterance = self.limits.audio_seconds + PIECE_SECONDS  # a recording is one utterance
                seconds = BATCH_SECONDS if recognizer.model.device.type == "cpu" else None
                engine = Engine(
                    recognizer, 0.02, utterance, BATCH, seconds, self.limits.work_seconds, watch=self.watch, read=self.read
                )
                engine.start()
            self._engines[lane] = engine
            return engine


async def _in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in another thread, and wait until the function ends. Even if the caller is cancelled, wait, so that the
    file that the function reads stays open.
    """
    future = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        raise


class Take:
    """Decodes one recording with an engine, within a `with` block.

    Args:
        settings: arguments of `StreamingRecognizer.open`.
        check: called from time to time. This function stops the decoding by raising an error.
        words: whether final events have words besides the text.

    Attributes:
        seconds: seconds of audio so far.
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
        """Read the recording. Yield partial events and the final event.

        Args:
            pieces: audio, each piece float32 `[N]` at the recogniser's rate.
            turns: a context manager that is entered for each read. If it is given, another thread reads. If it is None, this
                thread reads. A change of thread takes as long as reading a few seconds of uncompressed samples.

        Raises:
            Failure: the recording is too long, or its decoding failed.
            ValueError: the iteration over `pieces` raised this error.
            Exception: any error of `check`.
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
        """Pass audio, float32 `[N]` at the recogniser's rate, to the engine. Raises Failure if the recording is longer than
        `Limits.audio_seconds`.
        """
        self.seconds += len(samples) / self.engine.recognizer.sampling_rate
        if self.seconds > self.limits.audio_seconds:
            raise Failure(f"the recording is longer than {self.limits.audio_seconds:g} s, the limit; cut it")
        if len(samples):
            self.engine.push(self._session, samples)

    async def room(self) -> None:
        """Wait until `has_room` is true."""
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
