"""A server for tests, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from types import SimpleNamespace

import numpy as np
import soxr
from aiohttp import ClientSession, WSMsgType, web

from hf_ngpulm.serving import make_app
from hf_ngpulm.sound.files import Resampler

HELLO = {"type": "hello", "sample_rate": 16000, "encoding": "float32"}


@contextlib.asynccontextmanager
async def serving(recognizer, limits, **settings):
    """The address of a server, and its application; when it stops no stream is left."""
    app = make_app(recognizer, limits, **settings)
    runner = web.AppRunner(app, shutdown_timeout=limits.shutdown_seconds)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with ClientSession() as session:
            yield SimpleNamespace(at=f"http://127.0.0.1:{runner.addresses[0][1]}", session=session, runner=runner)
    finally:
        await runner.cleanup()
    assert len(recognizer) == 0


async def nobody(server):
    """Until all clients are gone."""
    while True:
        async with server.session.get(f"{server.at}/health") as response:
            assert response.status == 200
            if not (await response.json())["clients"]:
                return
        await asyncio.sleep(0.02)


def vanish(ws):
    connection = ws._response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def encoded(samples, rate, encoding):
    """A clip as a client sends it, and as the server hears it."""
    sent = soxr.resample(samples, 16000, rate) if rate != 16000 else samples
    data = (np.clip(sent, -1, 1) * 32767).astype("<i2") if encoding == "int16" else sent.astype("<f4")
    heard = data.astype(np.float32) / 32768 if encoding == "int16" else data
    resample = Resampler(rate, 16000)
    return data, np.concatenate([resample(heard), resample(heard[:0], last=True)])


def alone(recognizer, heard, context):
    """What one stream says, without a server."""
    sid = recognizer.open(**context)
    for at in range(0, len(heard), 16000):
        recognizer.push(sid, heard[at : at + 16000])
        while recognizer.step():
            pass
    return recognizer.close(sid)[0].text


async def speak(server, data, rate, encoding, context, pause=0.0, seed=0, seconds=0.4):
    """A client that behaves: everything it is sent."""
    generator, events = random.Random(seed), []
    async with server.session.ws_connect(f"{server.at}/stream", max_msg_size=0) as ws:
        await ws.send_json({"type": "hello", "sample_rate": rate, "encoding": encoding, **context})

        async def listen():
            async for message in ws:
                events.append(json.loads(message.data))

        listening, at = asyncio.create_task(listen()), 0
        while at < len(data):
            end = at + generator.randrange(1, int(2 * seconds * rate))
            await ws.send_bytes(data[at:end].tobytes())
            await asyncio.sleep((min(end, len(data)) - at) / rate * pause)
            at = end
        await ws.send_json({"type": "end"})
        await listening
        assert ws.close_code == 1000, (ws.close_code, events[-1:])
    assert events[0]["type"] == "ready" and events[-1]["type"] == "done"
    return events


def transcript(events):
    return " ".join(event["text"] for event in events if event["type"] == "final")


async def refused(ws):
    """The code and the reason with which the server closes."""
    message = await ws.receive(timeout=20)
    while message.type == WSMsgType.TEXT:
        message = await ws.receive(timeout=20)
    assert message.type == WSMsgType.CLOSE, message
    return message.data, message.extra
