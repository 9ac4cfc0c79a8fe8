"""Define the server as an aiohttp application with paths, handlers, access checks, start and stop."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from aiohttp import WSCloseCode, hdrs, web

from ..audio import StreamingRecognizer
from .access import IN_PROTOCOL, Access, preflight, subprotocols
from .attention import STREAMED, AttentionRecognizer
from .connection import SHUTTING_DOWN, Connection, close
from .corrections import PATH as CORRECTIONS
from .corrections import Corrections
from .engine import Engine
from .limits import Full, Limits, Places
from .metrics import CONTENT_TYPE, Metrics
from .openapi import description
from .own_grammars import OwnGrammars
from .problems import Problem, problem_of
from .process import REQUESTED
from .realtime import Realtime
from .recordings import RecordingEngines
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
_OPEN = {*_PAGES, "/health", "/ready"}  # paths that need no key
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Small, so that the server soon notices a client that doesn't read.
_SEND_BUFFER = 32 * 1024
# Seconds after which a busy thread hands the interpreter to a waiting thread. A decoding step has thousands of operations, and
# PyTorch releases the interpreter in each operation. With Python's default of 5 ms, a step could take seconds while another
# thread compiles phrases or reads messages.
_TURN = 0.0005
_STEP_SECONDS = 1.5  # time that the stopping server waits for a decoding step to end


def make_app(
    recognizer: StreamingRecognizer | AttentionRecognizer,
    limits: Limits | None = None,
    access: Access | None = None,
    voices: Voices | None = None,
    tick: float = 0.08,
    wyoming: str | None = None,
    reuse_port: bool = False,
    corrections: str | Path | None = None,
) -> web.Application:
    """Return an aiohttp application that decodes the audio of many clients in one batch.

    The application serves these paths. `/openapi.json` describes the paths:

    - `/v1/audio/transcriptions`, `/v1/audio/translations` and `/v1/models`: OpenAI's API for recordings.
    - `/v1/realtime`: OpenAI's realtime transcription, a websocket for live audio (see `hf_ngpulm.serving.realtime`).
    - `/v1/corrections`, if `corrections` is given: clients' corrections. Later recordings with the same access key boost the
      corrected phrases.
    - `/`: a page that transcribes the microphone or files; `/docs`: a page that shows `/openapi.json`.
    - `/health`: the number of clients; `/ready`: whether the server accepts more clients; `/metrics`: metrics for Prometheus.

    The server never uses client input as a path or a command. `hf_ngpulm.serving.process.listen` runs the application, and cuts
    off connections that send no request. If another program runs the application, use a reverse proxy that cuts off such
    connections.

    While the server runs, Python switches threads ten times as often as usual (`sys.setswitchinterval`), because decoding
    releases the interpreter's lock in each operation. Otherwise decoding would wait long for threads that read messages or
    compile phrases.

    Args:
        recognizer: a recogniser with room for at least `limits.clients` streams. An `AttentionRecognizer` serves recordings
            only. After this call, only the server may use the recogniser. From this recogniser the server makes other
            recognisers for recordings (`StreamingRecognizer.for_recordings`).
        limits: see `Limits`.
        access: rules that define who may use the server; by default everybody except pages of other origins. See `Access`.
        voices: the model's names, and the language models that clients may choose. By default clients may choose any LM of the
            recogniser. In this case the names of the LMs are numbers from 1.
        tick: seconds that a chunk waits for chunks of other clients, so that these chunks share a batch.
        wyoming: address (`tcp://HOST:PORT`) for the Wyoming protocol. This protocol has no keys.
        reuse_port: whether other processes listen at the Wyoming address, too.
        corrections: a folder for clients' corrections, with a private file for each key. By default the server keeps no
            corrections.

    Raises:
        ValueError: `recognizer` has room for fewer streams than `limits.clients`, or has open streams. Or `wyoming` has another
            form than `tcp://HOST:PORT`. Or `corrections` is given, but `access` has no keys.
    """
    server = Server(recognizer, limits or Limits(), access or Access(), voices, tick, corrections)
    if wyoming is not None:
        server.wyoming = Wyoming(wyoming, server.recordings, server.limits, server.uploads, server.voices, reuse_port)
    return server.app()


class Server:
    """Handle requests. The handlers share the state of this object; see `make_app`."""

    wyoming: Wyoming | None = None

    def __init__(
        self,
        recognizer: StreamingRecognizer | AttentionRecognizer,
        limits: Limits,
        access: Access,
        voices: Voices | None,
        tick: float,
        corrections: str | Path | None = None,
    ) -> None:
        if isinstance(recognizer, StreamingRecognizer) and recognizer.decoder.max_streams < limits.clients:
            raise ValueError(
                f"the recogniser takes {recognizer.decoder.max_streams} streams, the limit is {limits.clients} clients; make "
                f"it with max_streams={limits.clients}"
            )
        if len(recognizer):
            raise ValueError(f"the recogniser has {len(recognizer)} streams open; close them, or make another for the server")
        # The buffer must hold a whole chunk, or the server would never decode anything.
        self.limits = limits = replace(limits, buffered_seconds=max(limits.buffered_seconds, recognizer.latency_seconds))
        self.access = access
        self.live = not isinstance(recognizer, AttentionRecognizer)
        models = enumerate(getattr(recognizer, "language_models", ()), 1)
        self.voices = voices or Voices(lms={str(number): model for number, model in models})
        self.metrics, self.places, self.uploads = Metrics(), Places(limits), Places(limits, most=limits.uploads)
        defaults, watch = self.voices.settings({}, limits, recognizer), self.metrics.watch("live", recognizer.chunk_seconds)
        self.grammars = OwnGrammars(recognizer, limits)
        read = self.grammars.grammar
        self.engine = Engine(recognizer, tick, limits.utterance_seconds, defaults=defaults, watch=watch, read=read)
        self.recordings = RecordingEngines(recognizer, limits, self.metrics.watch("recording"), read)
        self.corrections = None if corrections is None else Corrections(corrections, limits, access)
        self.transcriptions = Transcriptions(
            self.recordings, limits, self.uploads, self.voices, access.address, self.metrics.recording, self.corrections
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
        if self.corrections is not None:
            kept = self.corrections
            app.router.add_get(CORRECTIONS, kept.show)
            app.router.add_post(CORRECTIONS, kept.add)
            app.router.add_delete(CORRECTIONS, kept.undo)
        for path, handler in {
            "/v1/realtime": self.realtime, "/v1/models": transcriptions.models,
            "/v1/models/{name:.+}": transcriptions.model, "/health": self.health, "/ready": self.ready,
            "/metrics": self.show_metrics, "/openapi.json": self.openapi, **dict.fromkeys(_PAGES, self.page),
        }.items():  # fmt: skip
            app.router.add_get(path, handler)
        app.on_startup.append(self.start)
        app.on_shutdown.append(self.end)
        app.on_cleanup.append(self.stop)
        return app

    async def realtime(self, request: web.Request) -> web.WebSocketResponse:
        """Serve a websocket with OpenAI's realtime transcription, for live audio.

        The query must be `intent=transcription`. Browsers send a key as the subprotocol `openai-insecure-api-key.KEY`.
        """
        if not self.live:
            raise web.HTTPBadRequest(text=STREAMED + "\n")
        if request.query.get("intent", "transcription") != "transcription":
            raise Problem("intent should be transcription, the only one that this server supports", "intent")
        self.voices.check_model(request.query.get("model"))
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
            with self.places.taken(self.access.address(request)) as budget:
                connection = Realtime(ws, self.engine, self.limits, transport, budget, self.voices)
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
        """Describe the server as OpenAPI."""
        left_out: list[Any] = [self.page] if self.live else [self.page, self.realtime]
        if not getattr(self.recordings.recognizer, "translates", False):
            left_out.append(self.transcriptions.translate)
        routes = [route for route in request.app.router.routes() if route.handler not in left_out]
        return web.json_response(description(routes, self.voices, self.limits, self.access.needs_key, package_version()))

    async def health(self, _: web.Request) -> web.Response:
        """Report whether the server works, and the number of its clients."""
        sound = self.engine.sound and self.recordings.sound
        facts = {"status": "ok" if sound else "broken", "clients": len(self.places), "max_clients": self.limits.clients}
        return web.json_response({**facts, "recordings": len(self.uploads)}, status=200 if sound else 503)

    async def ready(self, _: web.Request) -> web.Response:
        """Report whether the server takes more clients."""
        is_ready = self.engine.sound and self.recordings.sound and not self.stopping
        return web.json_response({"ready": is_ready}, status=200 if is_ready else 503)

    async def show_metrics(self, _: web.Request) -> web.Response:
        """Return all metrics for Prometheus."""
        self.metrics.clients.labels("live").set(len(self.places))
        self.metrics.clients.labels("recording").set(len(self.uploads))
        return web.Response(body=self.metrics.shown(), content_type=CONTENT_TYPE, charset="utf-8")

    @web.middleware
    async def answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check access, and answer a request. Below `/v1/`, errors get OpenAI's format. Count and log each response."""
        begin, status = time.monotonic(), 500
        if request.transport is not None:
            self.requested.add(request.transport)
        try:
            try:
                self.access.check_host(request)
                if request.path not in _OPEN:
                    self.access.check_origin(request)
                if request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
                    response: web.StreamResponse = preflight(request)
                else:
                    if request.path not in _OPEN:
                        self.access.check_key(request)
                    response = await handler(request)
            except ConnectionError:  # the client is gone, so nobody reads this response
                response = web.Response(status=499)
            except Exception as error:
                if not request.path.startswith("/v1/"):
                    raise
                if not isinstance(error, Problem | Full | web.HTTPException):
                    log.exception("a request failed")
                response = problem_of(error).response()
            self.access.allow_origin(request, response)
            status = response.status
            return response
        except web.HTTPException as error:
            self.access.allow_origin(request, error)
            status = error.status
            raise
        finally:
            resource = request.match_info.route.resource
            path = "none" if resource is None else resource.canonical
            self.metrics.requests.labels(path, str(status)).inc()
            seconds = round(time.monotonic() - begin, 3)
            facts = {"path": path, "method": request.method, "status": status, "seconds": seconds}
            log.info("answered", extra={"facts": {**facts, "address": self.access.address(request)}})

    async def start(self, _: web.Application) -> None:
        sys.setswitchinterval(min(self._turn, _TURN))
        self.engine.start()
        self.grammars.start()
        if self.corrections is not None:
            self.corrections.start()
        if self.wyoming is not None:
            await self.wyoming.start()

    async def end(self, _: web.Application) -> None:
        """Decode the audio of all clients within `Limits.shutdown_seconds`. Then ask the remaining clients to leave."""
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
        parts: list[Any] = [self.engine, self.recordings, self.grammars, *([self.corrections] if self.corrections else [])]
        stops = [asyncio.to_thread(each.stop, _STEP_SECONDS) for each in parts]
        if not all(await asyncio.gather(*stops)):
            log.warning("a decoding step takes too long; the server stops without waiting for it")
        sys.setswitchinterval(self._turn)
