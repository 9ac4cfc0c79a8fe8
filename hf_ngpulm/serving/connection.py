"""Serve one websocket client. The client's messages go to the engine, and the engine's events go to the client."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from aiohttp import WSCloseCode, WSMsgType, web

from .engine import Engine, Session
from .limits import Limits, PhraseBudget
from .problems import Problem

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # asyncio.wait_for can lose a cancellation before 3.12: the task would never end

log = logging.getLogger(__name__)
SHUTTING_DOWN = "the server is shutting down"
_REASON = 120  # bytes of a reason that fit in a close frame


class Connection:
    """Carries messages between a client and the engine. A subclass implements the protocol (`_read`, `_messages`).

    One task reads messages, and another task writes messages. While too much of the client's audio is undecoded, the reader
    waits, so that the network slows the client down. The writer sends only the latest partial event. If a client doesn't read
    messages, the client is cut off.
    """

    def __init__(
        self,
        ws: web.WebSocketResponse,
        engine: Engine,
        limits: Limits,
        transport: asyncio.Transport | None,
        budget: PhraseBudget | None = None,
    ) -> None:
        self.ws, self.engine, self.limits, self.transport = ws, engine, limits, transport
        self.session: Session | None = None
        self._loop = asyncio.get_running_loop()
        self._room, self._news = asyncio.Event(), asyncio.Event()
        self._unsent: deque[dict[str, Any]] = deque()
        self._budget = budget or PhraseBudget(limits)
        self._stopping = self._ended = False

    async def run(self) -> tuple[int, str]:
        """Serve until the client leaves or must be disconnected. Return the websocket's close code and the reason."""
        writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            return (writer if writer.done() else reader).result()
        except Problem as error:
            return WSCloseCode.POLICY_VIOLATION, str(error)
        except (asyncio.TimeoutError, ConnectionError):  # the client doesn't read
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
        """Decode the audio that the client has sent, send the result, and close the connection."""
        self._stopping = True
        if self.session is None:
            self._deliver({"type": "failed", "code": WSCloseCode.GOING_AWAY, "reason": SHUTTING_DOWN})
        elif not self._ended:
            self._ended = True
            self.engine.end(self.session)

    def abort(self) -> None:
        """Close the connection immediately, without a message to the client."""
        self._deliver({"type": "failed", "code": WSCloseCode.GOING_AWAY, "reason": ""})
        self._cut()

    async def _read(self) -> tuple[int, str]:
        """Read messages until the client has left. Return the websocket's close code and the reason."""
        raise NotImplementedError

    def _messages(self, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Convert an event of the stream to messages of the protocol."""
        raise NotImplementedError

    async def _push(self, session: Session, samples: np.ndarray) -> None:
        """Pass audio to the engine. Then wait until at most `Limits.buffered_seconds` of the client's audio are undecoded."""
        if len(samples):
            self.engine.push(session, samples)
        while session.backlog > self.limits.buffered_seconds * self.engine.recognizer.sampling_rate and not self._is_gone():
            self._room.clear()
            await self._room.wait()

    async def _receive(self, seconds: float) -> Any:
        """Return the next message. If the client has left, or has violated the websocket protocol, return None. Raises Problem
        if no message comes within `seconds`.
        """
        try:
            async with timeout(seconds):
                message = await self.ws.receive()
        except asyncio.TimeoutError:
            raise Problem(f"no message came within {seconds:g} s") from None
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
            if event["type"] == "done" and self._stopping:
                return WSCloseCode.GOING_AWAY, SHUTTING_DOWN

    def _is_gone(self) -> bool:
        return self.transport is not None and self.transport.is_closing()

    def _cut(self) -> None:
        if self.transport is not None:
            self.transport.abort()


async def close(ws: web.WebSocketResponse, transport: asyncio.Transport | None, code: int, reason: str, seconds: float) -> None:
    """Close a websocket with a reason. If the client doesn't answer within `seconds`, cut the connection."""
    message = " ".join(reason.split()).encode(errors="replace")[:_REASON].decode(errors="ignore").encode()
    try:
        async with timeout(seconds):
            await ws.close(code=code, message=message)
    except (asyncio.TimeoutError, ConnectionError):
        if transport is not None:
            transport.abort()
