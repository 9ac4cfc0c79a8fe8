"""Decode the audio of all clients in one thread."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from ..audio import StreamingRecognizer
from ..audio.events import final_event, partial_event
from ..decoding.partials import Partial
from ..errors import StreamError
from ..grammar.grammar import Grammar
from .attention import AttentionRecognizer
from .contexts import ContextMaker
from .limits import PhraseBudget

log = logging.getLogger(__name__)
KEPT_CONTEXTS = 128  # compiled phrase lists to keep after their last use; a list of 500 phrases takes 0.5 MB
DECODING = "hf-ngpulm-decoding"  # the name of the thread
_CLOSE = 0.01  # seconds; pieces of audio that arrive closer together count as one arrival


class Session:
    """Hold a client's stream. The client's connection and the decoding thread share this object.

    Args:
        settings: arguments of `StreamingRecognizer.open`. The phrases are a result of `StreamingRecognizer.context`.
        deliver: called with each event of the stream. An event is a dictionary with a `type`: `partial`, `final` or `room`
            (audio has been decoded). The last event has the type `done`, or the type `failed` with `code` and `reason`.
        loop: the event loop that calls `deliver`.
        endpoints: whether the recogniser's endpoints end utterances.
        words: whether `final` events have words besides the text.

    Attributes:
        backlog: number of undecoded samples.
        work: seconds of decoding so far. Each stream of a step gets an equal share of the step's time.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        deliver: Callable[[dict[str, Any]], None],
        loop: asyncio.AbstractEventLoop,
        endpoints: bool = True,
        words: bool = True,
    ) -> None:
        self.settings, self.deliver, self.loop, self.endpoints, self.words = settings, deliver, loop, endpoints, words
        self.backlog = 0
        self.work = 0.0
        self._received, self._arrivals = 0, deque[tuple[int, float]]()  # total samples; (total samples, time) of arrivals
        # Connections write these for the decoding thread, under the engine's lock.
        self.pieces: list[np.ndarray] = []
        self.context: tuple[Any] | None = None
        self.ended = False
        # Only the decoding thread uses this.
        self.sid: int | None = None

    def arrived(self, count: int) -> None:
        """Record the arrival time of `count` samples."""
        self._received += count
        now = time.monotonic()
        if self._arrivals and now - self._arrivals[-1][1] < _CLOSE:
            self._arrivals[-1] = self._received, self._arrivals[-1][1]
        else:
            self._arrivals.append((self._received, now))

    def lag(self, waiting: int) -> float:
        """Return the seconds since the arrival of the last decoded sample. `waiting`: number of samples that aren't decoded."""
        while self._arrivals and self._arrivals[0][0] < self._received - waiting:
            self._arrivals.popleft()
        return time.monotonic() - self._arrivals[0][1] if self._arrivals else 0.0

    def taken(self) -> tuple[list[np.ndarray], tuple[Any] | None, bool]:
        """Take the audio and the context that the client has sent since the last call.

        Returns:
            Three items. The first has the pieces of audio, each float32 `[N]`. The second is a tuple with the new context; None
            without a new context. The third says whether the audio has ended.
        """
        news = self.pieces, self.context, self.ended
        self.pieces, self.context = [], None
        return news


class Engine:
    """Decode the audio of all clients with one recogniser, in one thread.

    If a client has sent a whole chunk of audio, the next step decodes this chunk. Chunks that arrive at about the same time
    share a step, because the thread begins one step per tick. If a whole chunk waits after a step, the next step begins
    immediately. Another thread, `contexts`, compiles phrases.

    Args:
        recognizer: the recogniser. From now on, only the engine may use it.
        tick: seconds from the beginning of a step to the beginning of the next step. If a whole chunk waits, the next step
            begins sooner.
        utterance_seconds: see `Limits`.
        most, seconds: maximum number of streams, and maximum seconds of audio, in a step; see `StreamingRecognizer.step`.
        work_seconds: maximum seconds of decoding for a stream.
        defaults: default settings of streams and contexts.
        watch: called after each step with the number of streams, the duration of the step, and the lag of each stream. The
            duration and the lags are in seconds.
        read: function that reads a grammar from a client's text; see `ContextMaker`.

    Attributes:
        threads: the number of torch threads for a step. The number may be changed at any time.
        sound: False if the engine has failed to free a stream.
    """

    def __init__(
        self,
        recognizer: StreamingRecognizer | AttentionRecognizer,
        tick: float = 0.08,
        utterance_seconds: float = 300.0,
        most: int | None = None,
        seconds: float | None = None,
        work_seconds: float = math.inf,
        defaults: dict[str, Any] | None = None,
        watch: Callable[[int, float, list[float]], None] | None = None,
        read: Callable[[str, PhraseBudget], Awaitable[Grammar]] | None = None,
    ) -> None:
        self.recognizer: Any = recognizer  # an AttentionRecognizer has the methods that recordings need
        self.defaults = defaults or {}
        self.contexts = ContextMaker(lambda **settings: recognizer.context(**{**self.defaults, **settings}), read)
        self.tick, self.most, self.seconds, self.work_seconds, self.watch = tick, most, seconds, work_seconds, watch
        self.utterance_frames = utterance_seconds / (recognizer.frame_seconds or 0.01)
        self.threads = torch.get_num_threads()
        self.sound = True
        self._sessions: list[Session] = []  # the sessions that connections have entered; under the lock
        self._streams: dict[int, Session] = {}  # open streams; only the decoding thread uses them
        self._unsent: list[tuple[Session, dict[str, Any]]] = []  # only the decoding thread uses it
        self._changed = threading.Condition()
        self._is_new = self._stopping = False
        self._thread = threading.Thread(target=self._run, name=DECODING, daemon=True)

    def start(self) -> None:
        self.recognizer.keep_contexts(KEPT_CONTEXTS)
        # Each client is told about its own phrases. Python would show the warning only once for all clients.
        warnings.filterwarnings("ignore", message="the tokenizer can't write")
        self.contexts.start()
        self._thread.start()

    def stop(self, seconds: float | None = None) -> bool:
        """End the threads, and close all streams.

        Args:
            seconds: the longest time to wait for the current step; None waits until it ends.

        Returns:
            Whether the decoding thread has ended. If not, the thread ends after its current step, or with the process.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(seconds)
        self.contexts.stop()
        return not self._thread.is_alive()

    # Methods for connections, in any thread

    def enter(self, session: Session) -> None:
        with self._changing():
            self._sessions.append(session)

    def leave(self, session: Session) -> None:
        """Remove a session, and free its stream even if the stream hasn't ended."""
        with self._changing():
            if session in self._sessions:
                self._sessions.remove(session)

    def push(self, session: Session, samples: np.ndarray) -> None:
        """Queue audio, float32 `[N]` at the recogniser's rate."""
        with self._changing():
            session.pieces.append(samples)
            session.backlog += len(samples)
            session.arrived(len(samples))

    def set_context(self, session: Session, context: Any) -> None:
        """Replace the compiled context of a session before the next step. None removes the context."""
        with self._changing():
            session.context = (context,)

    def end(self, session: Session) -> None:
        """Mark the audio of a session as complete. The engine decodes the remaining audio, and delivers `done`."""
        with self._changing():
            session.ended = True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock while the `with` block changes sessions, then wake the decoding thread."""
        with self._changed:
            yield
            self._is_new = True
            self._changed.notify()

    # Methods of the decoding thread

    def _run(self) -> None:
        busy, threads = False, 0
        while True:
            begin = time.monotonic()
            with self._changed:
                while not (busy or self._is_new or self._stopping):
                    self._changed.wait()
                if self._stopping:
                    break
                self._is_new = False
                sessions = [(session, session.taken()) for session in self._sessions]
            if threads != self.threads:  # torch keeps this number per thread
                threads = self.threads
                torch.set_num_threads(threads)
            try:
                busy = self._round(sessions)
            except Exception:
                log.exception("decoding failed; all streams of this step are closed")
                busy = False
                for session in list(self._streams.values()):
                    self._fail(session, 1011, "decoding failed")
            self._send()
            if not busy:
                time.sleep(max(0.0, begin + self.tick - time.monotonic()))
        for session in list(self._streams.values()):
            self._free(session)

    def _round(self, sessions: list[tuple[Session, Any]]) -> bool:
        """Take the new audio of clients, and decode one step. Return whether more audio can be decoded. `sessions`: pairs of a
        session and the result of `session.taken`.
        """
        present = {id(session) for session, _ in sessions}
        for session in list(self._streams.values()):
            if id(session) not in present:
                self._free(session)
        for session, said in sessions:
            try:
                self._listen(session, *said)
            except ValueError as error:
                self._fail(session, 1008, str(error))
            except Exception:
                log.exception("a client's stream is closed")
                self._fail(session, 1011, "the server failed")
        self._send()
        begin = time.monotonic()
        try:
            partials = self.recognizer.step(self.most, self.seconds)
        except StreamError as error:
            partials = error.partials
            for sid in error.problems:
                self._fail(self._streams[sid], 1008, "the audio can't be decoded: the model's outputs for it are broken")
        seconds = time.monotonic() - begin
        lags = [self._tell(sid, partial, seconds / len(partials)) for sid, partial in partials.items()]
        if lags and self.watch is not None:
            self.watch(len(lags), seconds, lags)
        ready = set(self.recognizer.ready())
        for session, (_, _, ended) in sessions:
            if ended and session.sid is not None and session.sid not in ready:
                self._finish(session, session.sid)
        return bool(ready)

    def _listen(self, session: Session, pieces: list[np.ndarray], context: tuple[Any] | None, ended: bool) -> None:
        if session.sid is None:
            session.sid = self.recognizer.open(**{**self.defaults, **session.settings})
            self._streams[session.sid] = session
        if context is not None:
            self.recognizer.set_context(session.sid, context[0])
        if pieces:
            self.recognizer.push(session.sid, np.concatenate(pieces))
        if ended:
            self.recognizer.end(session.sid)

    def _tell(self, sid: int, partial: Partial, seconds: float) -> float:
        """Deliver the partial result of a stream. Return the stream's lag in seconds. `seconds`: the stream's share of the
        step's time.
        """
        session, recognizer = self._streams[sid], self.recognizer
        self._say(session, partial_event(recognizer, sid, partial))
        if (partial.endpoint and session.endpoints) or partial.frames >= self.utterance_frames:
            begin = time.monotonic()
            try:
                self._deliver_final(session, recognizer.utterance_begin(sid), recognizer.reset(sid))
            except ValueError as error:  # the rescorer can't read the transcript
                self._fail(session, 1008, str(error))
                return 0.0
            seconds += time.monotonic() - begin  # a second look at phrases takes time, too
        ahead = round((recognizer.latency_seconds - recognizer.chunk_seconds) * recognizer.sampling_rate)
        with self._changed:
            session.backlog = sum(map(len, session.pieces)) + recognizer.encoder.waiting(sid)
            lag = session.lag(max(0, session.backlog - ahead))
        self._say(session, {"type": "room"})
        session.work += seconds
        if session.work > self.work_seconds:
            self._fail(session, 1008, f"decoding took more than {self.work_seconds:g} s, the limit for a recording")
        return lag

    def _finish(self, session: Session, sid: int) -> None:
        begin = self.recognizer.utterance_begin(sid)
        self._forget(session)
        try:
            self._deliver_final(session, begin, self.recognizer.close(sid))
        except ValueError as error:  # the rescorer can't read the transcript; the stream is closed
            self._say(session, {"type": "failed", "code": 1008, "reason": str(error)})
            return
        self._say(session, {"type": "done"})

    def _deliver_final(self, session: Session, begin: float, hypotheses: list[Any]) -> None:
        final = final_event(hypotheses, begin, session.words)
        if final is not None:
            self._say(session, final)

    def _say(self, session: Session, event: dict[str, Any]) -> None:
        self._unsent.append((session, event))

    def _send(self) -> None:
        """Deliver all events with one call per event loop, because each call wakes a thread that interrupts this thread."""
        unsent, self._unsent = self._unsent, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Session, dict[str, Any]]]] = {}
        for session, event in unsent:
            by_loop.setdefault(session.loop, []).append((session, event))
        for loop, said in by_loop.items():
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(_deliver, said)

    def _fail(self, session: Session, code: int, reason: str) -> None:
        self._free(session)
        self._say(session, {"type": "failed", "code": code, "reason": reason})

    def _free(self, session: Session) -> None:
        sid = session.sid
        self._forget(session)
        if sid is not None:
            try:
                self.recognizer.discard(sid)
            except Exception as error:
                if isinstance(error, ValueError) and not isinstance(error, StreamError):
                    return  # the rescorer can't read the transcript; the stream is closed
                log.exception("a stream couldn't be freed")
                self.sound = False

    def _forget(self, session: Session) -> None:
        """Remove a session from the engine. The session's connection calls `leave` later."""
        if session.sid is not None:
            del self._streams[session.sid]
        with self._changed:
            session.sid = None
            if session in self._sessions:
                self._sessions.remove(session)


def _deliver(said: list[tuple[Session, dict[str, Any]]]) -> None:
    for session, event in said:
        try:
            session.deliver(event)
        except Exception:
            log.exception("an event can't be delivered to a client")
