"""The server: a websocket for audio, a page with a microphone, and a word on its health."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path

from aiohttp import WSCloseCode, web

from ..audio import StreamingRecognizer
from .access import check_host, check_origin, client_address, networks
from .connection import SHUTTING_DOWN, Connection, close
from .engine import Engine
from .limits import Full, Limits, Places

PAGE = Path(__file__).parent / "page"
_PAGES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/worklet.js": ("worklet.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Little is kept on the way to a client that doesn't read, so that it is soon noticed.
_SEND_BUFFER = 32 * 1024


def make_app(
    recognizer: StreamingRecognizer,
    limits: Limits | None = None,
    origins: Collection[str] = (),
    tick: float = 0.08,
    hosts: Collection[str] | None = None,
    proxies: Collection[str] = (),
) -> web.Application:
    """Return an aiohttp application that recognises the speech of many clients as one batch.

    `/stream` is a websocket. A client says hello, as JSON: `{"type": "hello", "sample_rate": 48000, "encoding": "int16",
    "phrases": ["Anna Smith", ["Bob", 2.0]]}`; `encoding` may be `"float32"`, and `phrases`, `phrase_weight` and `lm_weight`
    (for a server with a language model) may be left out. It is told `{"type": "ready", "unwritable"}` (phrases that the model
    can't write, and what in them), sends audio as binary messages (PCM, one channel, little-endian) and, at any time,
    `{"type": "set_context", "phrases": [...]}`, which counts from the next chunk on and is answered `{"type": "context",
    "unwritable"}`; audio that comes after it waits for it. It is sent `{"type": "partial", "text", "stable", "end"}` as it
    speaks, `{"type": "final", "text", "words"}` for each utterance; after its `{"type": "end"}` the rest, and `{"type":
    "done"}`. A client that breaks the rules is closed with a reason (1008, 1009), one for which there is no place is told to
    come later (1013).

    `/` is a page with a microphone, `/health` tells how many clients there are.

    What clients send never becomes a path or a command. There are no passwords and no encryption, and no guard against many
    slow HTTP requests: let others in through a reverse proxy that has them.

    Args:
        recognizer: for `limits.clients` streams at least; the server's alone from now on.
        limits: see `Limits`.
        origins: origins (`https://example.org`) whose pages may connect, besides the server's own; `"*"` for all. Clients
            other than browsers send no origin, and may.
        tick: seconds that chunks wait for each other to share a batch.
        hosts: names by which the server may be called, if not by any; a guard against pages that have their own name lead to
            this machine (DNS rebinding). `local_hosts` gives those of this machine.
        proxies: addresses, or networks (`10.0.0.0/8`), of reverse proxies, whose `X-Forwarded-For` tells the address that
            counts for `limits.clients_per_address`; those on this machine needn't be named. All clients of a proxy that isn't
            named count as its own; those of one on this machine that doesn't say whom it speaks for don't count.

    While the server runs, Python's threads take turns ten times as often as usual (`sys.setswitchinterval`): decoding gives up
    its turn in each operation, and shouldn't wait for one behind messages and phrases.

    Raises:
        ValueError: a recogniser for fewer streams than there may be clients; a proxy that isn't an address.
    """
    limits = limits or Limits()
    if recognizer.decoder.max_streams < limits.clients:
        raise ValueError(
            f"the recogniser takes {recognizer.decoder.max_streams} streams, the limit is {limits.clients} clients; make it "
            f"with max_streams={limits.clients}"
        )
    # Of a client from which no more is taken than can't be decoded yet, nothing ever would be.
    limits = replace(limits, buffered_seconds=max(limits.buffered_seconds, recognizer.latency_seconds))
    engine = Engine(recognizer, tick, limits.utterance_seconds)
    places, trusted = Places(limits), networks(proxies)
    connections: set[Connection] = set()
    shutting_down = False

    async def stream(request: web.Request) -> web.WebSocketResponse:
        check_origin(request, origins)
        ws = web.WebSocketResponse(
            heartbeat=limits.heartbeat_seconds, max_msg_size=limits.message_bytes, compress=False, timeout=limits.close_seconds
        )
        transport = request.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        await ws.prepare(request)
        try:
            if shutting_down:
                raise Full(SHUTTING_DOWN)
            with places.taken(client_address(request, trusted)) as budget:
                connection = Connection(ws, engine, limits, transport, budget)
                connections.add(connection)
                try:
                    farewell = await connection.run()
                finally:
                    connections.remove(connection)
        except Full as full:
            farewell = WSCloseCode.TRY_AGAIN_LATER, str(full)
        await close(ws, transport, *farewell, limits.close_seconds)
        return ws

    async def page(request: web.Request) -> web.Response:
        name, kind = _PAGES[request.path]
        return web.Response(text=(PAGE / name).read_text(encoding="utf-8"), content_type=kind, headers=_HEADERS)

    async def health(_: web.Request) -> web.Response:
        facts = {"status": "ok" if engine.sound else "broken", "clients": len(places), "max_clients": limits.clients}
        return web.json_response(facts, status=200 if engine.sound else 503)

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_host(request, hosts)
        return await handler(request)

    async def start(_: web.Application) -> None:
        engine.start()

    async def end(_: web.Application) -> None:
        nonlocal shutting_down
        shutting_down = True
        for connection in connections:
            connection.shut_down()
        deadline = asyncio.get_running_loop().time() + limits.shutdown_seconds
        while connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for connection in connections:
            connection.abort()

    async def stop(_: web.Application) -> None:
        await asyncio.to_thread(engine.stop)

    app = web.Application(middlewares=[checked])
    app.router.add_get("/stream", stream)
    app.router.add_get("/health", health)
    for path in _PAGES:
        app.router.add_get(path, page)
    app.on_startup.append(start)
    app.on_shutdown.append(end)
    app.on_cleanup.append(stop)
    return app
