"""Serve on a Ray cluster with replicas of the server behind Ray Serve's address.

A replica is a process that runs the server's application at a local port. Ray Serve's proxies choose a replica for each request
or websocket, and the replica forwards the request to the local port. So a stream stays at its replica, and the paths are the
same as without Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, WSMsgType, WSServerHandshakeError, web

from ..common.extras import needed
from .limits import Limits
from .process import KEEP_ALIVE

log = logging.getLogger(__name__)
# Headers that aren't forwarded. They apply to a single connection, or to a websocket's handshake, which the replica repeats.
_OF_CONNECTION = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
    b"sec-websocket-accept",
}  # fmt: skip
_GONE = {"http.disconnect", "websocket.disconnect"}
_replica: Bridge | None = None  # of this process


def deployment(
    make: Callable[[], web.Application],
    replicas: int | tuple[int, int] = 1,
    streams: int = Limits.clients,
    num_gpus: float = 0.0,
    num_cpus: float = 1.0,
    name: str = "hf-ngpulm",
) -> Any:
    """Return an application for `ray.serve.run`.

    Args:
        make: function that makes the server's application in each replica, with `make_app`. The function is pickled and sent to
            the machines, so it should load the models itself.
        replicas: number of replicas, or a pair of the minimum and the maximum. If more than three quarters of `streams` are in
            use on average, Ray adds replicas up to the maximum. It removes idle replicas down to the minimum.
        streams: maximum number of live clients and recordings of a replica at the same time. It should be at most the
            `Limits.clients` of the application.
        num_gpus, num_cpus: GPUs (or a share of a GPU) and CPU cores that each replica reserves.
        name: the deployment's name.

    Raises:
        ImportError: Ray Serve isn't installed.
        ValueError: `replicas` is a pair, and the first number is 0 or above the second number.
    """
    with needed("cluster", "deployments"):
        from ray import serve

    if isinstance(replicas, tuple):
        fewest, most = replicas
        if not 0 < fewest <= most:
            raise ValueError(f"replicas should be the fewest and the most, such as (1, 4), got {replicas}")
        target = 0.75 * streams
        scaled: dict[str, Any] = {
            "autoscaling_config": {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": target}
        }
    else:
        scaled = {"num_replicas": replicas}
    of_machine = {"num_gpus": num_gpus, "num_cpus": num_cpus}
    limited: dict[str, Any] = {"max_ongoing_requests": streams, "graceful_shutdown_timeout_s": 2 * Limits.shutdown_seconds}
    replica: Any = serve.ingress(OfThisProcess())(Replica)
    deployed: Any = serve.deployment(replica, name=name, ray_actor_options=of_machine, **limited, **scaled)
    return deployed.bind(make)


def serve_replicas(deployed: Any, host: str, port: int, tell: Callable[[], Any]) -> None:
    """Serve a `deployment` at an address of the cluster's machines until SIGTERM or SIGINT. Ray must already run.

    Args:
        tell: called as soon as replicas answer.

    Raises:
        ValueError: Ray Serve already runs on the cluster, or the replicas can't start, for example because the model can't be
            loaded.
    """
    from ray import serve

    if serve.status().proxies:
        raise ValueError("Ray Serve runs on this cluster already, perhaps at another address; end it (serve shutdown)")
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    serve.start(http_options={"host": host, "port": port})
    try:
        try:
            serve.run(deployed, name="hf-ngpulm", route_prefix="/")
        except RuntimeError as error:
            failed = serve.status().applications["hf-ngpulm"].deployments.values()
            why = "\n".join([str(error), *(one.message for one in failed)]).rstrip().rpartition("\n")[2]
            raise ValueError(f"the replicas can't start: {why}") from None  # the last line of a traceback
        tell()
        stopped.wait()
    finally:
        serve.shutdown()


class OfThisProcess:
    """An ASGI application that forwards requests to this process's server. It is a class, because Ray would call a function."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert _replica is not None
        await _replica(scope, receive, send)


class Replica:
    """Runs the application from `make` in a separate thread until the process ends."""

    def __init__(self, make: Callable[[], web.Application]) -> None:
        global _replica
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="server")
        self.thread.start()
        self.runner = web.AppRunner(make(), access_log=None, keepalive_timeout=KEEP_ALIVE, auto_decompress=False)
        self.bridge = _replica = Bridge(asyncio.run_coroutine_threadsafe(self._start(), self.loop).result())

    async def _start(self) -> str:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def check_health(self) -> None:
        """Raise an error if the server doesn't work. After such an error, Ray Serve replaces the replica."""
        async with self.bridge.session().get(self.bridge.url + "/health") as response:
            response.raise_for_status()

    def __del__(self) -> None:
        stopped = asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop)
        with contextlib.suppress(Exception):
            stopped.result(2 * Limits.shutdown_seconds)


class Bridge:
    """An ASGI application that forwards requests and websockets to the server at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session: ClientSession | None = None

    def session(self) -> ClientSession:
        """Return the HTTP client session for connections to the server. The session belongs to the running event loop."""
        if self._session is None:
            unlimited = ClientTimeout(total=None)  # the server has limits of its own
            # Each stream has a connection. With aiohttp's limit of 100, streams and health checks would wait for others to end.
            self._session = ClientSession(
                connector=TCPConnector(limit=0), auto_decompress=False, cookie_jar=DummyCookieJar(), timeout=unlimited
            )
        return self._session

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:  # lifespan
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            if self._session is not None:
                await self._session.close()
            await send({"type": "lifespan.shutdown.complete"})

    async def _request(self, scope: Any, receive: Any, send: Any) -> None:
        async def body() -> AsyncIterator[bytes]:
            while (message := await receive())["type"] not in _GONE:
                yield message.get("body", b"")
                if not message.get("more_body"):
                    return
            raise ConnectionResetError("the client is gone")

        names = {name.lower() for name, _ in scope["headers"]}
        data = body() if names & {b"content-length", b"transfer-encoding"} else None
        given: dict[str, Any] = {"headers": _headers(scope), "data": data, "allow_redirects": False}
        # aiohttp adds no header of its own.
        skipped = ["User-Agent", "Accept", "Accept-Encoding", "Content-Type"]
        async with self.session().request(
            scope["method"], self.url + _target(scope), skip_auto_headers=skipped, **given
        ) as response:
            headers = [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in _OF_CONNECTION]
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            async for piece in response.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})

    async def _websocket(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()  # websocket.connect
        given = {"protocols": scope.get("subprotocols", ()), "headers": _headers(scope), "max_msg_size": 0}
        try:
            ws = await self.session().ws_connect(self.url + _target(scope), **given)
        except WSServerHandshakeError as refused:
            if "websocket.http.response" in scope.get("extensions", {}):
                await send({"type": "websocket.http.response.start", "status": refused.status, "headers": []})
                await send({"type": "websocket.http.response.body", "body": b""})
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept", "subprotocol": ws.protocol})

        async def from_client() -> None:
            while (message := await receive())["type"] not in _GONE:
                if message.get("text") is not None:
                    await ws.send_str(message["text"])
                else:
                    await ws.send_bytes(message["bytes"])

        async def from_server() -> None:
            farewell: dict[str, Any] = {"code": 1011}
            while (message := await ws.receive()).type in (WSMsgType.TEXT, WSMsgType.BINARY):
                await send({"type": "websocket.send", "text" if message.type == WSMsgType.TEXT else "bytes": message.data})
            if message.type == WSMsgType.CLOSE:
                farewell = {"code": message.data, "reason": message.extra or ""}
            await send({"type": "websocket.close", **farewell})

        pumps = [asyncio.ensure_future(from_client()), asyncio.ensure_future(from_server())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await ws.close()


def _target(scope: Any) -> str:
    """Return the path and query of a request unchanged. If the path doesn't begin with a slash, a slash is added, because
    "@host" after the server's address would name another server.
    """
    path = scope.get("raw_path") or scope["path"].encode()
    path = path if path.startswith(b"/") else b"/" + path
    query = b"?" + scope["query_string"] if scope.get("query_string") else b""
    return (path.partition(b"?")[0] + query).decode("latin-1")


def _headers(scope: Any) -> list[tuple[str, str]]:
    """Return the headers for a forwarded request. The last address in `X-Forwarded-For` is the client's address."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    dropped = set(_OF_CONNECTION)
    if any(name.lower() == b"transfer-encoding" for name, _ in scope["headers"]):
        dropped.add(b"content-length")  # RFC 9112, 6.3: chunks have priority, and another length would garble the connection
    kept = [(name, value) for name, value in headers if name.lower().encode("latin-1") not in dropped]
    if scope.get("client"):
        kept.append(("x-forwarded-for", scope["client"][0]))  # in lower case, like ASGI's other headers
    return kept
