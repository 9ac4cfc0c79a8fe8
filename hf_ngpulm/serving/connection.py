"""One client: from its hello to its transcript."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from typing import Any

import numpy as np
from aiohttp import WSCloseCode, WSMsgType, web

from ..sound.files import Resampler
from . import messages
from .engine import Engine, Session
from .limits import Limits, PhraseBudget
from .problems import Problem
from .requests import Voices

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # asyncio.wait_for, before 3.12, loses cancellations: who is cancelled goes on for ever

log = logging.getLogger(__name__)
SHUTTING_DOWN = "the server is shutting down"
_REASON = 120  # bytes of a reason that fit in a close frame


class Connection:
    """Carries a client's messages to the engine, and what the engine says to the client.

    Two tasks: one reads, and waits while too much of the client's audio waits to be decoded, so that the network slows the
    client down; one writes. Of partials only the latest is sent. The transport is cut off when the client doesn't read.
    """

    def __init__(
        self,
        ws: web.WebSocketResponse,
        engine: Engine,
        limits: Limits,
        transport: asyncio.Transport | None,
        budget: PhraseBudget | None = None,
        voices: Voices | None = None,
    ) -> None:
        self.voices = voices or Voices()
        self.ws, self.engine, self.limits, self.transport = ws, engine, limits, transport
        self.session: Session | None = None
        self._loop = asyncio.get_running_loop()
        self._room, self._news = asyncio.Event(), asyncio.Event()
        self._unsent: deque[dict[str, Any]] = deque()
        self._budget = budget or PhraseBudget(limits)
        self._farewell: int = WSCloseCode.OK
        self._ended = False

    async def run(self) -> tuple[int, str]:
        """Serve until the client leaves, or has to; return with what code and reason it is to be closed."""
        writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            return (writer if writer.done() else reader).result()
        except messages.ProtocolError as error:
            return WSCloseCode.POLICY_VIOLATION, str(error)
        except (asyncio.TimeoutError, ConnectionError):  # it doesn't read
            self._cut()
            return WSCloseCode.OK, ""
        except Exception:
            log.exception("a client's connection is closed")
            return WSCloseCode.INTERNAL_ERROR, "the server failed"
        finally:
            if self.session is not None:
                self.engine.leave(self.session)
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)

    def shut_down(self) -> None:
        """Decode what the client has sent, tell it, and close."""
        self._farewell = WSCloseCode.GOING_AWAY
        if self.session is None:
            self._deliver({"type": "failed", "code": WSCloseCode.GOING_AWAY, "reason": SHUTTING_DOWN})
        elif not self._ended:
            self._ended = True
            self.engine.end(self.session)

    def abort(self) -> None:
        """Close at once, without a word."""
        self._deliver({"type": "failed", "code": WSCloseCode.GOING_AWAY, "reason": ""})
        self._cut()

    async def _read(self) -> tuple[int, str]:
        hello = messages.hello(messages.parse(await self._text(self.limits.hello_seconds)), self.limits)
        if hello.lm is not None:
            hello.settings.update(self._of_lm(hello))
        recognizer = self.engine.recognizer
        resample = Resampler(hello.sample_rate, recognizer.sampling_rate)
        if hello.settings.get("phrases"):
            hello.settings["phrases"] = await self._context(hello.settings)
        self.session = Session(hello.settings, self._deliver, self._loop)
        self.engine.enter(self.session)
        while True:
            message = await self._receive(None if self._ended else self.limits.idle_seconds)
            if message is None or self._is_gone():
                return WSCloseCode.OK, ""  # what a client that is gone has sent before isn't decoded
            if self._ended and self._farewell == WSCloseCode.GOING_AWAY:
                continue
            if self._ended:
                raise messages.ProtocolError("a message after the end")
            if message.type == WSMsgType.BINARY:
                await self._push(self.session, resample(messages.samples(message.data, hello.encoding)))
                continue
            said = messages.parse(message.data)
            if said["type"] == "set_context":
                weights = {name: value for name, value in hello.settings.items() if name != "phrases"}
                context = await self._context({**weights, **messages.set_context(said, self.limits)})
                self.engine.set_context(self.session, context)
            elif said["type"] == "end":
                self._ended = True
                rest = resample(messages.samples(b"", hello.encoding), last=True)
                if len(rest):
                    self.engine.push(self.session, rest)
                self.engine.end(self.session)
            else:
                raise messages.ProtocolError(f"unknown type: {said['type'][:40]}")

    def _of_lm(self, hello: messages.Hello) -> dict[str, Any]:
        """Return settings for the language model that a client names."""
        given = {name: hello.settings[name] for name in ("lm_weight",) if name in hello.settings}
        try:
            return self.voices.settings({"lm": hello.lm, **given}, self.limits, self.engine.recognizer)
        except Problem as problem:
            raise messages.ProtocolError(problem.message) from None

    async def _push(self, session: Session, samples: np.ndarray) -> None:
        """Hand audio on, and wait until the client has no more waiting to be decoded than it may."""
        if len(samples):
            self.engine.push(session, samples)
        while session.backlog > self.limits.buffered_seconds * self.engine.recognizer.sampling_rate and not self._is_gone():
            self._room.clear()
            await self._room.wait()

    async def _context(self, settings: dict[str, Any]) -> Any:
        """Return what the client's stream is to follow; nothing that comes after it is read before it is there."""
        texts = [phrase if isinstance(phrase, str) else phrase[0] for phrase in settings["phrases"] or ()]
        cost = self._budget.cost(len(texts), sum(len(text.encode()) for text in texts))
        await asyncio.sleep(self._budget.take(cost))
        if not texts:
            return None
        try:
            return await self.engine.contexts.of(settings, cost)
        except ValueError as error:
            raise messages.ProtocolError(str(error)) from None

    async def _text(self, seconds: float) -> str:
        message = await self._receive(seconds)
        if message is None or message.type != WSMsgType.TEXT:
            raise messages.ProtocolError("the first message should be of the type hello")
        return message.data

    async def _receive(self, seconds: float | None) -> Any:
        """Return the next message; None when the client has left (or broken the protocol of websockets itself)."""
        try:
            async with timeout(seconds):
                message = await self.ws.receive()
        except asyncio.TimeoutError:
            raise messages.ProtocolError(f"nothing was said for {seconds:g} s") from None
        return message if message.type in (WSMsgType.BINARY, WSMsgType.TEXT) else None

    def _deliver(self, event: dict[str, Any]) -> None:
        if event["type"] == "room":
            self._room.set()
            return
        if self._unsent and self._unsent[-1]["type"] == "partial" and event["type"] in ("partial", "final"):
            self._unsent.pop()
        self._unsent.append(event)
        self._news.set()
        if len(self._unsent) > self.limits.unsent:
            self._cut()

    async def _write(self) -> tuple[int, str]:
        while True:
            while not self._unsent:
                self._news.clear()
                await self._news.wait()
            event = self._unsent.popleft()
            if event["type"] == "failed":
                return event["code"], event["reason"]
            for message in self._messages(event):
                async with timeout(self.limits.send_seconds):
                    await self.ws.send_json(message)
            if event["type"] == "done" and self._is_over():
                return self._farewell, SHUTTING_DOWN if self._farewell == WSCloseCode.GOING_AWAY else ""

    def _messages(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what a client is told of something that its stream says."""
        return [event]

    def _is_over(self) -> bool:
        """Return whether nothing follows the end of a stream."""
        return True

    def _is_gone(self) -> bool:
        return self.transport is not None and self.transport.is_closing()

    def _cut(self) -> None:
        if self.transport is not None:
            self.transport.abort()


async def close(ws: web.WebSocketResponse, transport: asyncio.Transport | None, code: int, reason: str, seconds: float) -> None:
    """Tell a client why it is closed; one that doesn't say goodbye within some seconds is cut off."""
    message = " ".join(reason.split()).encode(errors="replace")[:_REASON].decode(errors="ignore").encode()
    try:
        async with timeout(seconds):
            await ws.close(code=code, message=message)
    except (asyncio.TimeoutError, ConnectionError):
        if transport is not None:
            transport.abort()
