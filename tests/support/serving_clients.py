"""A server for tests, and clients of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from types import SimpleNamespace

import numpy as np
import soxr
from aiohttp import ClientSession, WSMsgType, web

from hf_ngpulm.serving import Access, make_app
from hf_ngpulm.sound.files import Resampler

PATH = "/v1/realtime?intent=transcription"
PARTIAL, DELTA, DONE = (f"conversation.item.input_audio_transcription.{kind}" for kind in ("partial", "delta", "completed"))
COMMIT, CLEAR, CLEARED = (f"input_audio_buffer.{kind}" for kind in ("commit", "clear", "cleared"))


def update(**heard):
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}}


def hello(rate=16000, **transcription):
    """What a client says first: audio of some rate, with partials."""
    return update(format={"type": "audio/pcm", "rate": rate}, transcription={"partials": True, **transcription})


def append(data):
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data.tobytes()).decode()}


def pcm(samples):
    """Samples as clients send them."""
    return (np.clip(samples, -1, 1) * 32767).astype("<i2")


async def until(ws, kind):
    """All events up to the first of a kind."""
    events = []
    while not events or events[-1]["type"] != kind:
        events.append(await ws.receive_json(timeout=60))
    return events


@contextlib.asynccontextmanager
async def serving(recognizer, limits, **settings):
    """The address of a server, and its application; when it stops no stream is left."""
    access = {name: settings.pop(name) for name in ("origins", "hosts", "proxies", "keys") if name in settings}
    app = make_app(recognizer, limits, Access(**access), **settings)
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


def encoded(samples, rate=16000):
    """A clip as a client sends it, and as the server hears it."""
    data = pcm(soxr.resample(samples, 16000, rate) if rate != 16000 else samples)
    heard, resample = data.astype(np.float32) / 32768, Resampler(rate, 16000)
    return data, np.concatenate([resample(heard), resample(heard[:0], last=True)])


def alone(recognizer, heard, context):
    """What one stream says, without a server."""
    sid = recognizer.open(**context)
    for at in range(0, len(heard), 16000):
        recognizer.push(sid, heard[at : at + 16000])
        while recognizer.step():
            pass
    return recognizer.close(sid)[0].text


def rounded(reports):
    """Reports on phrases without times, and without the ratios' last digits, which depend on the batch."""
    return [
        {name: round(value, 3) if name == "ratio" else value for name, value in report.items() if name not in ("start", "end")}
        for report in reports
    ]


def engine_of(entered, left):
    """What a connection wants of an engine: who enters it, and who leaves."""
    recognizer = SimpleNamespace(sampling_rate=16000, frame_seconds=0.08, decoder=SimpleNamespace(endpoint_frames=None))
    engine = SimpleNamespace(recognizer=recognizer, enter=entered.append, leave=left.append)
    engine.push = lambda session, samples: setattr(session, "backlog", session.backlog + len(samples))
    return engine


async def speak(server, data, rate=16000, context=None, pause=0.0, seed=0, seconds=0.4):
    """A client that behaves: everything it is sent."""
    generator, events = random.Random(seed), []
    async with server.session.ws_connect(server.at + PATH, max_msg_size=0) as ws:
        await ws.send_json(hello(rate, **(context or {})))

        async def listen():
            events.extend(await until(ws, CLEARED))

        listening, at = asyncio.create_task(listen()), 0
        while at < len(data):
            end = at + generator.randrange(1, int(2 * seconds * rate))
            await ws.send_json(append(data[at:end]))
            await asyncio.sleep((min(end, len(data)) - at) / rate * pause)
            at = end
        await ws.send_json({"type": COMMIT})
        await ws.send_json({"type": CLEAR})
        await listening
    assert [event["type"] for event in events[:2]] == ["session.created", "session.updated"]
    assert not any(event["type"] == "error" for event in events), events
    return events


def transcript(events):
    return " ".join(event["transcript"] for event in events if event["type"] == DONE and event["transcript"])


async def refused(ws):
    """The code and the reason with which the server closes."""
    message = await ws.receive(timeout=20)
    while message.type == WSMsgType.TEXT:
        message = await ws.receive(timeout=20)
    assert message.type == WSMsgType.CLOSE, message
    return message.data, message.extra
