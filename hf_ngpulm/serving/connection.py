"""One client: from its hello to its transcript."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from ..streaming.audio.resampling import Resampler
from . import messages
from .engine import Engine, Session
from .limits import Limits

_REASON = 120  # bytes of a reason that fit in a close frame


class Connection:
    """Carries a client's messages to the engine, and what the engine says to the client.

    Two tasks: one reads, and waits while too much of the client's audio waits to be decoded, so that the network slows the
    client down; one writes. Of partials only the latest is sent.

    Args:
        ws: the websocket, prepared.
        engine: shared by all.
        limits: see `Limits`.
    """

    def __init__(self, ws: web.WebSocketResponse, engine: Engine, limits: Limits, transport: asyncio.Transport | None) -> None:
        self.ws, self.engine, self.limits, self.transport = ws, engine, limits, transport
        self.session: Session | None = None
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self._unsent: deque[dict[str, Any]] = deque()
        self._partial: dict[str, Any] | None = None
        self._farewell: int = WSCloseCode.OK
        self._ended = False

    async def run(self) -> None:
        """Until the client leaves, or has to."""
        try:
            writer = asyncio.create_task(self._write())
            reader = asyncio.create_task(self._read())
            done, _ = await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except messages.ProtocolError as error:
            await self._close(WSCloseCode.POLICY_VIOLATION, str(error))
        except (asyncio.TimeoutError, ConnectionError):  # it doesn't read
            self._abort()
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
            self._deliver({"type": "failed", "code": WSCloseCode.GOING_AWAY, "reason": "the server is shutting down"})
        elif not self._ended:
            self._ended = True
            self.engine.end(self.session)

    async def _read(self) -> None:
        hello = messages.hello(messages.parse(await self._text(self.limits.hello_seconds)), self.limits)
        recognizer = self.engine.recognizer
        resample = Resampler(hello.sample_rate, recognizer.sampling_rate)
        self.session = Session(hello.settings, self._deliver_from_thread)
        self.engine.enter(self.session)
        most = self.limits.buffered_seconds * recognizer.sampling_rate
        while True:
            message = await self._receive(None if self._ended else self.limits.idle_seconds)
            if message is None:
                return
            if self._ended:
                if self._farewell == WSCloseCode.GOING_AWAY:
                    continue
                raise messages.ProtocolError("a message after the end")
            if message.type == WSMsgType.BINARY:
                samples = resample(messages.samples(message.data, hello.encoding))
                if len(samples):
                    self.engine.push(self.session, samples)
                while self.session.backlog > most:
                    self._room.clear()
                    await self._room.wait()
                continue
            said = messages.parse(message.data)
            if said["type"] == "set_context":
                self.engine.set_context(self.session, messages.set_context(said, self.limits))
            elif said["type"] == "end":
                self._ended = True
                rest = resample(messages.samples(b"", hello.encoding), last=True)
                if len(rest):
                    self.engine.push(self.session, rest)
                self.engine.end(self.session)
            else:
                raise messages.ProtocolError(f"unknown type: {said['type'][:40]}")

    async def _text(self, seconds: float) -> str:
        message = await self._receive(seconds)
        if message is None or message.type != WSMsgType.TEXT:
            raise messages.ProtocolError("the first message should be of the type hello")
        return message.data

    async def _receive(self, seconds: float | None) -> Any:
        """The next message; None when the client has left (or broken the protocol of websockets itself)."""
        try:
            message = await asyncio.wait_for(self.ws.receive(), seconds)
        except asyncio.TimeoutError:
            raise messages.ProtocolError(f"nothing was said for {seconds:g} s") from None
        return message if message.type in (WSMsgType.BINARY, WSMsgType.TEXT) else None

    def _deliver_from_thread(self, event: dict[str, Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, event)
        except RuntimeError:  # the server's loop has ended
            return

    def _deliver(self, event: dict[str, Any]) -> None:
        if event["type"] == "room":
            self._room.set()
            return
        if event["type"] == "partial":
            self._partial = event
        else:
            if event["type"] == "final":
                self._partial = None
            self._unsent.append(event)
            if len(self._unsent) > self.limits.unsent:
                self._abort()
        self._news.set()

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._unsent or self._partial is not None:
                event = self._unsent.popleft() if self._unsent else self._partial
                if event is self._partial:
                    self._partial = None
                assert event is not None
                if event["type"] == "failed":
                    await self._close(event["code"], event["reason"])
                    return
                await asyncio.wait_for(self.ws.send_json(event), self.limits.send_seconds)
                if event["type"] == "done":
                    shut = self._farewell == WSCloseCode.GOING_AWAY
                    await self._close(self._farewell, "the server is shutting down" if shut else "")
                    return

    async def _close(self, code: int, reason: str) -> None:
        message = " ".join(reason.split()).encode()[:_REASON].decode(errors="ignore").encode()
        try:
            await asyncio.wait_for(self.ws.close(code=code, message=message), self.limits.send_seconds)
        except (asyncio.TimeoutError, ConnectionError):
            self._abort()

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
