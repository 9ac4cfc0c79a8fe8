"""Run the server until a signal stops it, in one process or in several processes that share an address."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from ipaddress import ip_address
from multiprocessing.connection import wait
from typing import Any
from weakref import WeakSet

from aiohttp import web
from aiohttp.http import HttpProcessingError

from .access import Access, counted_address
from .engine import DECODING
from .limits import Limits

# In seconds. `_ANSWER` is the time to send responses after all work has ended; aiohttp waits twice as long.
KEEP_ALIVE, _LOOK, _ANSWER = 15.0, 0.02, 0.5
REQUESTED: web.AppKey[Any] = web.AppKey("REQUESTED", WeakSet)  # connections that have sent a request


async def listen(
    app: web.Application,
    host: str,
    port: int,
    limits: Limits,
    tell: Callable[[str], None],
    tls: ssl.SSLContext | None = None,
    reuse_port: bool = False,
    access: Access | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> bool:
    """Serve until SIGTERM or SIGINT. Then decode the remaining audio from clients.

    Args:
        app: the application, from `make_app`.
        tell: called with the address, `host:port`, once the server listens.
        tls: the certificate, from `certificate`; None serves plain HTTP.
        reuse_port: whether other processes listen at the same address, too.
        access: the access rules. The proxies in these rules may open any number of connections.
        stopping: called when the server begins to stop.

    Returns:
        Whether a thread is still decoding. If so, a normal exit may crash, because the exit unloads torch while the thread
        runs.
    """
    logger = logging.getLogger(f"{__name__}.http")
    logger.addFilter(_is_ours)
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=_ANSWER, keepalive_timeout=KEEP_ALIVE, logger=logger, auto_decompress=False
    )
    await runner.setup()
    assert runner.server is not None
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    try:
        factory = _Guarded(runner.server, app[REQUESTED], limits, access or Access())
        settled: dict[str, Any] = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": limits.hello_seconds}
        server = await loop.create_server(factory, host, port, reuse_port=reuse_port or None, **settled)
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                try:
                    loop.add_signal_handler(number, told.set)
                except NotImplementedError:  # Windows: Ctrl-C ends the loop itself
                    break
            address, bound = server.sockets[0].getsockname()[:2]
            tell(f"[{address}]:{bound}" if ":" in address else f"{address}:{bound}")
            await told.wait()
            stopping()
        finally:
            server.close()
    finally:
        await runner.cleanup()
    return any(thread.name == DECODING for thread in threading.enumerate())


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether to log a record. Records about bytes that aren't HTTP are dropped, so such bytes can't fill the logs."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class _Guarded:
    """Makes the protocol of each connection. A connection is cut off if it sends no request, or exceeds its address's limit."""

    def __init__(self, server: web.Server, requested: Collection[Any], limits: Limits, access: Access) -> None:
        self.server, self.requested, self.limits, self.access = server, requested, limits, access

    def __call__(self) -> Any:
        protocol = self.server()
        loop = asyncio.get_running_loop()
        loop.call_later(_LOOK, self._check_address, protocol, loop.time() + 2 * self.limits.hello_seconds)
        loop.call_later(self.limits.hello_seconds, self._check_request, protocol)
        return protocol

    def _check_request(self, protocol: Any) -> None:
        transport = protocol.transport
        if transport is not None and transport not in self.requested:
            transport.abort()

    def _check_address(self, protocol: Any, until: float) -> None:
        loop, remote = asyncio.get_running_loop(), _remote(protocol)
        if remote is None and loop.time() < until:  # TLS isn't set up yet
            loop.call_later(_LOOK, self._check_address, protocol, until)
        if remote is None or counted_address(remote) is None or self.access.is_proxy(ip_address(remote)):
            return
        same = [other for other in self.server.connections if counted_address(_remote(other) or "") == counted_address(remote)]
        if len(same) > self.limits.connections_per_address:
            protocol.transport.abort()


def _remote(protocol: Any) -> str | None:
    peer = None if protocol.transport is None else protocol.transport.get_extra_info("peername")
    return peer[0] if isinstance(peer, tuple) else None


def certificate(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the TLS context for a certificate and its key. Without a certificate, return None. Both arguments are PEM files.
    Raises ValueError if there is a key but no certificate, or the files don't contain a certificate and its key.
    """
    if cert is None:
        if key is not None:
            raise ValueError("--tls-key needs its certificate; add --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # includes ssl.SSLError
        raise ValueError(f"{cert}: not a PEM certificate with its key: {error}") from None
    return context


def run_workers(count: int, work: Callable[..., None], options: dict[str, Any], host: str, port: int) -> int:
    """Run several processes that share an address, until SIGTERM or SIGINT, or until a process ends.

    Args:
        count: number of processes.
        work: called in each process. The arguments are the entries of `options`, `port`, and the process's `number` (from 0).
        port: the port to share; for 0, the system chooses a port.

    Returns:
        The exit status. It is 0 if a signal stopped the processes and no process failed, otherwise 1.

    Raises:
        ValueError: the system lets only one process listen at an address.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ValueError(
            f"--workers {count}: on this system only one process can listen at an address; start several servers on other ports"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family)) as reserved, tempfile.TemporaryDirectory(prefix="hf-ngpulm-") as folder:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, port))  # this socket doesn't listen, so it gets no connections
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        spawn = multiprocessing.get_context("spawn")
        more = {"port": reserved.getsockname()[1]}
        workers = [spawn.Process(target=work, kwargs={**options, **more, "number": number}) for number in range(count)]
        stopping = False

        def stop(*_: Any) -> None:
            nonlocal stopping
            stopping = True
            for worker in workers:
                if worker.is_alive():
                    worker.terminate()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        for worker in workers:
            worker.start()
        wait([worker.sentinel for worker in workers])  # until one has ended
        was_told = stopping
        if not was_told:
            print("hf-ngpulm: a worker has ended; the others are stopped", file=sys.stderr, flush=True)
            stop()
        for worker in workers:
            worker.join()
        return 0 if was_told and not any(worker.exitcode for worker in workers) else 1
