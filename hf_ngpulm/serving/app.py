"""The server: websockets for live audio, OpenAI's HTTP for recordings, a page with a microphone, and words on its health."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from aiohttp import WSCloseCode, hdrs, web

from ..audio import StreamingRecognizer
from .access import (
    BETA,
    IN_PROTOCOL,
    Keys,
    Network,
    allow_origin,
    check_host,
    check_origin,
    client_address,
    networks,
    peer_address,
    preflight,
    subprotocols,
)
from .attention import STREAMED, AttentionRecognizer
from .connection import SHUTTING_DOWN, Connection, close
from .engine import Engine
from .limits import Full, Limits, Places
from .metrics import CONTENT_TYPE, Metrics
from .openapi import description
from .problems import Problem, problem_of
from .process import REQUESTED
from .realtime import Realtime
from .recordings import Recordings
from .requests import Voices
from .transcriptions import Transcriptions
from .wyoming import Wyoming, package_version

log = logging.getLogger(__name__)
PAGE = Path(__file__).parent / "page"
WYOMING: web.AppKey[Wyoming | None] = web.AppKey("WYOMING")
_PAGES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/worklet.js": ("worklet.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
}
_OPEN = {*_PAGES, "/health", "/ready"}  # without a key
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Little is kept on the way to a client that doesn't read, so that it is soon noticed.
_SEND_BUFFER = 32 * 1024
# Seconds until a thread that wants to go on gets its turn, of others that are busy. PyTorch gives up its turn in each of the
# thousands of operations of a step: with Python's 5 ms a step could take seconds while phrases are made or messages read.
_TURN = 0.0005
_STEP_SECONDS = 1.5  # that a step which decodes may go on when the server has stopped


def make_app(
    recognizer: StreamingRecognizer | AttentionRecognizer,
    limits: Limits | None = None,
    origins: Collection[str] = (),
    tick: float = 0.08,
    hosts: Collection[str] | None = None,
    proxies: Collection[str] = (),
    keys: Iterable[str] = (),
    voices: Voices | None = None,
    wyoming: str | None = None,
    reuse_port: bool = False,
) -> web.Application:
    """Return an aiohttp application that recognises the speech of many clients as one batch.

    `/v1/audio/transcriptions`, `/v1/audio/translations` and `/v1/models` are OpenAI's: a recording as a file of a form, its
    text as the answer; and `/v1/realtime`, for live audio.

    `/stream` is a websocket. A client says hello, as JSON: `{"type": "hello", "sample_rate": 48000, "encoding": "int16",
    "phrases": ["Anna Smith", ["Bob", 2.0]]}`; `encoding` may be `"float32"`, and `phrases`, `phrase_weight`, `lm` (the name
    of a language model) and `lm_weight` may be left out. It is told `{"type": "ready", "unwritable"}` (phrases that the model
    can't write, and what in them), sends audio as binary messages (PCM, one channel, little-endian) and, at any time,
    `{"type": "set_context", "phrases": [...]}`, which counts from the next chunk on and is answered `{"type": "context",
    "unwritable"}`; audio that comes after it waits for it. It is sent `{"type": "partial", "text", "stable", "end"}` as it
    speaks, `{"type": "final", "text", "words"}` for each utterance; after its `{"type": "end"}` the rest, and `{"type":
    "done"}`. A client that breaks the rules is closed with a reason (1008, 1009), one for which there is no place is told to
    come later (1013).

    `/` is a page with a microphone and files, `/docs` one that shows `/openapi.json`, `/health` tells how many clients there
    are, `/ready` whether more may come, `/metrics` all that Prometheus wants to know.

    What clients send never becomes a path or a command. `hf_ngpulm.serving.process.listen` serves it with a guard against
    connections that ask for nothing; elsewhere a reverse proxy is needed for that.

    Args:
        recognizer: for `limits.clients` streams at least, or one for models with attention, which takes recordings only; the
            server's alone from now on. Recordings are decoded by others like it (`StreamingRecognizer.for_recordings`).
        limits: see `Limits`.
        origins: origins (`https://example.org`) whose pages may connect, besides the server's own; `"*"` for all. Clients
            other than browsers send no origin, and may.
        tick: seconds that chunks wait for each other to share a batch.
        hosts: names by which the server may be called, if not by any; a guard against pages that have their own name lead to
            this machine (DNS rebinding). `local_hosts` gives those of this machine.
        proxies: addresses, or networks (`10.0.0.0/8`), of reverse proxies, whose `X-Forwarded-For` tells the address that
            counts for `limits.clients_per_address`; those on this machine needn't be named. All clients of a proxy that isn't
            named count as its own; those of one on this machine that doesn't say whom it speaks for don't count.
        keys: of which all requests but those for pages, `/health` and `/ready` have to name one; none: nobody has to.
        voices: what the model is called, and the language models that clients may choose; by default all of the recogniser's,
            by numbers from 1 on.
        wyoming: address (`tcp://HOST:PORT`) at which Wyoming is spoken, too. It knows no keys.
        reuse_port: whether other processes listen at that address, too.

    While the server runs, Python's threads take turns ten times as often as usual (`sys.setswitchinterval`): decoding gives up
    its turn in each operation, and shouldn't wait for one behind messages and phrases.

    Raises:
        ValueError: a recogniser for fewer streams than there may be clients, or with streams open; a proxy that isn't an
            address.
    """
    server = _Server(recognizer, limits or Limits(), voices, tick)
    server.origins, server.hosts, server.proxies, server.keys = origins, hosts, networks(proxies), Keys(keys)
    if wyoming is not None:
        server.wyoming = Wyoming(
            wyoming, server.recordings, server.limits, server.uploads, server.voices, peer_address, reuse_port
        )
    return server.app()


class _Server:
    """Hold what handlers of requests have in common; see `make_app`."""

    origins: Collection[str]
    hosts: Collection[str] | None
    proxies: Collection[Network]
    keys: Keys
    wyoming: Wyoming | None = None

    def __init__(
        self, recognizer: StreamingRecognizer | AttentionRecognizer, limits: Limits, voices: Voices | None, tick: float
    ) -> None:
        if isinstance(recognizer, StreamingRecognizer) and recognizer.decoder.max_streams < limits.clients:
            raise ValueError(
                f"the recogniser takes {recognizer.decoder.max_streams} streams, the limit is {limits.clients} clients; make "
                f"it with max_streams={limits.clients}"
            )
        if len(recognizer):
            raise ValueError(
                f"the recogniser has {len(recognizer)} streams open, and should be the server's alone; close them before"
            )
        # Of a client from which no more is taken than can't be decoded yet, nothing ever would be.
        self.limits = limits = replace(limits, buffered_seconds=max(limits.buffered_seconds, recognizer.latency_seconds))
        self.live = not isinstance(recognizer, AttentionRecognizer)
        self.voices = voices or Voices(lms=_numbered(getattr(recognizer, "language_models", ())))
        self.metrics, self.places, self.uploads = Metrics(), Places(limits), Places(limits, most=limits.uploads)
        defaults, watch = self.voices.settings({}, limits, recognizer), self.metrics.watch("live", recognizer.chunk_seconds)
        self.engine = Engine(recognizer, tick, limits.utterance_seconds, defaults=defaults, watch=watch)
        self.recordings = Recordings(recognizer, limits, self.metrics.watch("recording"))
        self.transcriptions = Transcriptions(
            self.recordings, limits, self.uploads, self.voices, self.address, self.metrics.recording
        )
        self.connections: set[Connection] = set()
        self.requested: WeakSet[Any] = WeakSet()
        self.stopping, self._turn = False, sys.getswitchinterval()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.answered], client_max_size=self.limits.upload_bytes)
        app[REQUESTED], app[WYOMING] = self.requested, self.wyoming
        transcriptions = self.transcriptions
        app.router.add_post("/v1/audio/transcriptions", transcriptions.transcribe)
        app.router.add_post("/v1/audio/translations", transcriptions.translate)
        for path, handler in {
            "/stream": self.stream, "/v1/realtime": self.realtime, "/v1/models": transcriptions.models,
            "/v1/models/{name:.+}": transcriptions.model, "/health": self.health, "/ready": self.ready,
            "/metrics": self.show_metrics, "/openapi.json": self.openapi, **dict.fromkeys(_PAGES, self.page),
        }.items():  # fmt: skip
            app.router.add_get(path, handler)
        app.on_startup.append(self.start)
        app.on_shutdown.append(self.end)
        app.on_cleanup.append(self.stop)
        return app

    def address(self, request: web.Request) -> str | None:
        return client_address(request, self.proxies)

    def check_live(self) -> None:
        if not self.live:
            raise web.HTTPBadRequest(text=STREAMED + "\n")

    async def stream(self, request: web.Request) -> web.WebSocketResponse:
        """Talk to a websocket: the server's own protocol, for live audio.

        A client says hello as JSON, sends audio as binary messages, and is told what it has said so far.
        """
        self.check_live()
        return await self.talk(request, partial(Connection, voices=self.voices))

    async def realtime(self, request: web.Request) -> web.WebSocketResponse:
        """Talk to a websocket: OpenAI's realtime transcription, for live audio.

        With the query `intent=transcription`. Browsers name a key as the subprotocol `openai-insecure-api-key.KEY`.
        """
        self.check_live()
        if request.query.get("intent", "transcription") != "transcription":
            raise Problem("intent should be transcription: this server has nothing else to say", "intent")
        self.voices.check_model(request.query.get("model"))
        beta = "realtime=v1" in request.headers.get("OpenAI-Beta", "") or BETA in subprotocols(request)
        return await self.talk(request, partial(Realtime, voices=self.voices, beta=beta))

    async def talk(self, request: web.Request, kind: Callable[..., Connection]) -> web.WebSocketResponse:
        """Take a client of a websocket."""
        ws = web.WebSocketResponse(
            heartbeat=self.limits.heartbeat_seconds, max_msg_size=self.limits.message_bytes, compress=False,
            timeout=self.limits.close_seconds,
            protocols=[name for name in subprotocols(request) if not name.startswith(IN_PROTOCOL)][:1],
        )  # fmt: skip
        transport = request.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        await ws.prepare(request)
        try:
            if self.stopping:
                raise Full(SHUTTING_DOWN)
            with self.places.taken(self.address(request)) as budget:
                connection = kind(ws, self.engine, self.limits, transport, budget)
                self.connections.add(connection)
                try:
                    farewell = await connection.run()
                finally:
                    self.connections.remove(connection)
        except Full as full:
            farewell = WSCloseCode.TRY_AGAIN_LATER, str(full)
        await close(ws, transport, *farewell, self.limits.close_seconds)
        return ws

    async def page(self, request: web.Request) -> web.Response:
        name, kind = _PAGES[request.path]
        return web.Response(text=(PAGE / name).read_text(encoding="utf-8"), content_type=kind, headers=_HEADERS)

    async def openapi(self, request: web.Request) -> web.Response:
        """Describe all this as OpenAPI has it."""
        left_out: list[Any] = [self.page] if self.live else [self.page, self.stream, self.realtime]
        if not getattr(self.recordings.recognizer, "translates", False):
            left_out.append(self.transcriptions.translate)
        routes = [route for route in request.app.router.routes() if route.handler not in left_out]
        return web.json_response(description(routes, self.voices, self.limits, self.keys.are_needed, package_version()))

    async def health(self, _: web.Request) -> web.Response:
        """Tell whether the server works, and how many clients it has."""
        sound = self.engine.sound and self.recordings.sound
        facts = {"status": "ok" if sound else "broken", "clients": len(self.places), "max_clients": self.limits.clients}
        return web.json_response({**facts, "recordings": len(self.uploads)}, status=200 if sound else 503)

    async def ready(self, _: web.Request) -> web.Response:
        """Tell whether more clients may come."""
        is_ready = self.engine.sound and self.recordings.sound and not self.stopping
        return web.json_response({"ready": is_ready}, status=200 if is_ready else 503)

    async def show_metrics(self, _: web.Request) -> web.Response:
        """Tell Prometheus all counts."""
        self.metrics.clients.labels("live").set(len(self.places))
        self.metrics.clients.labels("recording").set(len(self.uploads))
        return web.Response(body=self.metrics.shown(), content_type=CONTENT_TYPE, charset="utf-8")

    @web.middleware
    async def answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check who asks; tell what is wrong in OpenAI's way where that is spoken; count, and note, what was answered."""
        begin, status = time.monotonic(), 500
        if request.transport is not None:
            self.requested.add(request.transport)
        try:
            try:
                check_host(request, self.hosts)
                if request.path not in _OPEN:
                    check_origin(request, self.origins)
                if request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
                    response: web.StreamResponse = preflight(request)
                else:
                    if request.path not in _OPEN:
                        self.keys.check(request)
                    response = await handler(request)
            except ConnectionError:  # it is gone; nobody reads this
                response = web.Response(status=499)
            except Exception as error:
                if not request.path.startswith("/v1/"):
                    raise
                if not isinstance(error, Problem | Full | web.HTTPException):
                    log.exception("a request failed")
                response = problem_of(error).response()
            allow_origin(request, response, self.origins)
            status = response.status
            return response
        except web.HTTPException as error:
            allow_origin(request, error, self.origins)
            status = error.status
            raise
        finally:
            resource = request.match_info.route.resource
            path = "none" if resource is None else resource.canonical
            self.metrics.requests.labels(path, str(status)).inc()
            seconds = round(time.monotonic() - begin, 3)
            facts = {"path": path, "method": request.method, "status": status, "seconds": seconds}
            log.info("answered", extra={"facts": {**facts, "address": self.address(request)}})

    async def start(self, _: web.Application) -> None:
        sys.setswitchinterval(min(self._turn, _TURN))
        self.engine.start()
        if self.wyoming is not None:
            await self.wyoming.start()

    async def end(self, _: web.Application) -> None:
        """Finish what was said, all side by side, within `Limits.shutdown_seconds`; what isn't finished then is told so."""
        self.stopping = True
        log.info("stopping")
        seconds = self.limits.shutdown_seconds
        wyoming = [] if self.wyoming is None else [self.wyoming.stop(seconds)]
        await asyncio.gather(self._end_live(seconds), self.transcriptions.close(seconds), *wyoming)

    async def _end_live(self, seconds: float) -> None:
        for connection in self.connections:
            connection.shut_down()
        deadline = asyncio.get_running_loop().time() + seconds
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for connection in self.connections:
            connection.abort()

    async def stop(self, _: web.Application) -> None:
        stops = [asyncio.to_thread(each.stop, _STEP_SECONDS) for each in (self.engine, self.recordings)]
        if not all(await asyncio.gather(*stops)):
            log.warning("a step of decoding takes long; it is left alone")
        sys.setswitchinterval(self._turn)


def _numbered(models: Iterable[Any]) -> dict[str, Any]:
    return {str(number): model for number, model in enumerate(models, 1)}
