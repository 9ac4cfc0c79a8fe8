"""hf-ngpulm serve"""

from __future__ import annotations

import asyncio
import signal
import sys

from aiohttp import web

from ..serving import Limits, make_app
from ..serving.access import local_hosts
from .models import load_streaming, warm_up
from .options import Chunks, Decoding, DeviceOption, JsonOption, ModelArgument, option
from .output import print_json


def serve(
    *,
    model: ModelArgument,
    decoding: Decoding,
    chunks: Chunks,
    host: str = option("Address to listen on; 0.0.0.0 lets other machines in.", default="127.0.0.1"),
    port: int = option("0: one that is free.", default=8765, min=0, max=65535),
    max_clients: int = option("Clients at the same time.", default=Limits.clients, min=1),
    max_per_address: int = option(
        "Of these, from one IPv4 address or IPv6 network of 64 bits.", default=Limits.clients_per_address, min=1
    ),
    max_phrases: int = option("Phrases of a client.", default=Limits.phrases, min=1),
    max_phrase_bytes: int = option("Bytes of a client's phrases in all, in UTF-8.", default=Limits.phrase_bytes, min=1),
    max_message: int = option("Bytes of a client's message.", default=Limits.message_bytes, min=1024),
    idle: float = option("Seconds after which a silent client is closed.", default=Limits.idle_seconds, min=0.1),
    origin: list[str] | None = option(
        "Origin (https://example.org) whose pages may connect, besides the server's own, and by whose name the server "
        "may be called, as behind a proxy; * for all pages, by this machine's names; several times."
    ),
    proxy: list[str] | None = option(
        "Address or network of a reverse proxy, whose X-Forwarded-For tells clients' addresses; one on this machine "
        "needn't be named; several times."
    ),
    tick: float = option("Seconds that clients' chunks wait to be decoded together.", default=0.08, min=0.001, max=10),
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a websocket (/stream) that turns clients' audio into text, a page with a microphone (/), and /health.

    All clients are decoded as one batch, each with its own phrases. Listens on this machine alone unless --host says otherwise;
    there are no passwords and no encryption: put a reverse proxy in front of it. Of phrases a client may have in any 5 seconds
    what it may have at a time; it has 10 seconds to say hello.

    hf-ngpulm serve nvidia/parakeet-tdt-0.6b-v3 --lm org/my-lm --port 8765
    """
    limits = Limits(
        clients=max_clients, clients_per_address=max_per_address, message_bytes=max_message, phrases=max_phrases,
        phrase_bytes=max_phrase_bytes, idle_seconds=idle,
    )  # fmt: skip
    recognizer = load_streaming(model, device, decoding, chunks, max_clients)
    warm_up(recognizer)
    app = make_app(recognizer, limits, origin or (), tick, local_hosts(host, origin or ()), proxy or ())
    asyncio.run(_serve(app, host, port, limits.shutdown_seconds, as_json))


async def _serve(app: web.Application, host: str, port: int, shutdown_seconds: float, as_json: bool) -> None:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=shutdown_seconds)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, told.set)
            except NotImplementedError:  # Windows: Ctrl-C ends the loop itself
                break
        address, bound = runner.addresses[0][:2]
        at = f"[{address}]:{bound}" if ":" in address else f"{address}:{bound}"
        if as_json:
            print_json({"page": f"http://{at}/", "stream": f"ws://{at}/stream"})
        else:
            print(f"http://{at}/ (websocket: ws://{at}/stream); Ctrl-C to stop", file=sys.stderr, flush=True)
        await told.wait()
    finally:
        await runner.cleanup()
