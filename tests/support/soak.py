"""A server under honest clients, of all three protocols, among vanishing, slow and hostile ones: what becomes of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
from aiohttp import ClientSession, ClientTimeout, FormData
from serving import RATE, clips, upload, wav
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient

FORM = {"type": "audio/pcm", "rate": RATE}
MODEL = measure.ROOT / "examples" / "models" / "ctc"


def update(**heard: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}}


def append(samples: np.ndarray) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(samples.tobytes()).decode()}


# Clients that behave: what they are told.


async def realtime(session: ClientSession, at: dict[str, str], samples: np.ndarray, pause: float = 0.0) -> str:
    async with session.ws_connect(at["realtime"]) as ws:
        await ws.send_json(update(format=FORM, turn_detection=None))
        for begin in range(0, len(samples), 3200):
            await ws.send_json(append(samples[begin : begin + 3200]))
            await asyncio.sleep(pause)
        await ws.send_json({"type": "input_audio_buffer.commit"})
        while True:
            event = await ws.receive_json()
            if event["type"].endswith("transcription.completed"):
                return event["transcript"]
            assert event["type"] != "error", event


async def recording(session: ClientSession, at: dict[str, str], samples: np.ndarray, pause: float = 0.0) -> str:
    return await upload(session, at, wav(samples))


async def wyoming(session: ClientSession, at: dict[str, str], samples: np.ndarray, pause: float = 0.0) -> str:
    async with AsyncClient.from_uri(at["wyoming"]) as client:
        await client.write_event(Transcribe().event())
        await client.write_event(AudioStart(RATE, 2, 1).event())
        for begin in range(0, len(samples), 3200):
            await client.write_event(AudioChunk(RATE, 2, 1, samples[begin : begin + 3200].tobytes()).event())
            await asyncio.sleep(pause)
        await client.write_event(AudioStop().event())
        event = await client.read_event()
        assert event is not None and Transcript.is_type(event.type), event
        return Transcript.from_event(event).text


HONEST: list[Callable[..., Awaitable[str]]] = [realtime, recording, wyoming]


# Clients that misbehave, again and again until they are cancelled; what becomes of them, tests tell.


async def vanish(session: ClientSession, at: dict[str, str], samples: np.ndarray) -> None:
    kind = random.choice(["realtime", "recording", "wyoming"])
    task = asyncio.create_task(globals()[kind](session, at, np.tile(samples, 5), pause=0.05))
    await asyncio.sleep(random.random())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def raw(at: dict[str, str], *pieces: bytes, pause: float = 0.0, to: str = "page", stay: float = 0.0) -> None:
    host, port = at[to].split("//")[1].rstrip("/").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)
    await asyncio.sleep(stay)
    writer.transport.abort()


async def slow(session: ClientSession, at: dict[str, str], samples: np.ndarray) -> None:
    """Say nothing; or drip a recording, a byte at a time; or never read."""
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=a\r\n"
    head += b'Content-Length: 99999\r\n\r\n--a\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    kind = random.randrange(4)
    if kind == 0:
        await raw(at, head, *[b"x"] * 20, pause=0.3)
    elif kind == 1:
        await raw(at, stay=3.0, to=random.choice(["page", "wyoming"]))
    elif kind == 2:
        await raw(at, *[bytes([byte]) for byte in head[:40]], pause=0.1)
    else:
        async with session.ws_connect(at["realtime"], autoping=False) as ws:
            await ws.send_json(update(format=FORM))
            for begin in range(0, len(samples), 3200):
                await ws.send_json(append(samples[begin : begin + 3200]))
            await asyncio.sleep(3.0)


async def hostile(session: ClientSession, at: dict[str, str], samples: np.ndarray) -> None:
    """Send what is no audio, no JSON, no form; too much of it; with numbers that aren't any."""
    kind, noise = random.randrange(7), random.randbytes(20_000)
    if kind == 0:
        async with session.ws_connect(at["realtime"]) as ws:
            await ws.send_json(update(format=FORM))
            await ws.send_json(append(np.frombuffer(noise, dtype="<i2")))
            await ws.send_bytes(bytes(300_000))
            await asyncio.wait_for(ws.receive(), 5)
    elif kind == 1:
        async with session.ws_connect(at["realtime"]) as ws:
            for text in ("{" * 1000, '{"type": "input_audio_buffer.append", "audio": "%"}', '{"type": "session.update"}'):
                await ws.send_str(text)
            await ws.send_bytes(noise)
            await ws.send_str("x" * 400_000)
            await asyncio.wait_for(ws.receive(), 5)
    elif kind == 2:
        form = FormData()
        form.add_field("file", random.choice([noise, b"RIFF" + noise, b"fLaC" + noise, b"OggS" + noise]), filename="../x")
        form.add_field(random.choice(["prompt", "lm", "num_beams", "x"]), "../" * 1000)
        async with session.post(f"{at['openai']}/audio/transcriptions", data=form) as response:
            await response.read()
    elif kind == 3:
        await raw(at, random.choice([b'{"type": "audio-chunk", "payload_length": 99999999999}\n', noise + b"\n"]), to="wyoming")
    elif kind == 4:
        await raw(at, b"GET / HTTP/1.1\r\n" + noise, stay=0.2)
    elif kind == 5:
        await asyncio.gather(*(raw(at, stay=1.0) for _ in range(30)), return_exceptions=True)
    else:
        async with session.ws_connect(at["realtime"]) as ws:
            phrases = ["".join(random.choices("abcdefgh ", k=30)) + "x" for _ in range(1000)]
            await ws.send_json(update(transcription={"keywords": phrases[: random.randrange(1, 1000)]}))
            for _ in range(20):
                random.shuffle(phrases)
                await ws.send_json(update(transcription={"keywords": phrases[:500]}))
                await asyncio.sleep(0.05)


async def torment(at: dict[str, str], seconds: float, pid: int) -> dict[str, Any]:
    """Have honest clients say the same again and again while others do what they like; what became of it."""
    spoken = clips(8)
    times: Counter[str] = Counter()
    wrong: list[Any] = []
    waits: list[float] = []
    memory: list[int] = []
    async with ClientSession(timeout=ClientTimeout(None)) as session:
        expected = {(kind, number): await kind(session, at, spoken[number]) for kind in HONEST for number in range(8)}
        end = time.monotonic() + seconds

        async def honest(kind: Callable[..., Awaitable[str]], first: int) -> None:
            number = first
            while time.monotonic() < end:
                begin, number = time.monotonic(), (number + 1) % 8
                try:
                    found: Any = await asyncio.wait_for(kind(session, at, spoken[number], pause=0.02), 120)
                except Exception as error:
                    found = repr(error)
                if found != expected[kind, number]:
                    wrong.append((kind.__name__, number, found))
                times[f"honest {kind.__name__}"] += 1
                waits.append(time.monotonic() - begin)

        async def other(kind: Callable[..., Awaitable[None]]) -> None:
            while time.monotonic() < end:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(kind(session, at, spoken[0]), 10)
                times[kind.__name__] += 1

        async def watch() -> None:
            while time.monotonic() < end:
                memory.append(resident(pid))
                await asyncio.sleep(seconds / 40)

        async with ClientSession(timeout=ClientTimeout(None)) as session:
            await asyncio.gather(
                *(honest(kind, first) for kind in HONEST for first in range(2)), watch(),
                *(other(kind) for kind in (vanish, vanish, slow, slow, slow, hostile, hostile)),
            )  # fmt: skip
            left, begin = {"clients": 1, "recordings": 0}, time.monotonic()
            while (left["clients"] or left["recordings"]) and time.monotonic() < begin + 30:
                await asyncio.sleep(0.2)
                async with session.get(f"{at['page']}health") as response:
                    assert response.status == 200
                    left = await response.json()
    quarter = max(1, len(memory) // 4)
    return {
        "seconds": seconds, "clients": dict(times), "wrong": wrong[:5], "wrong_count": len(wrong),
        "places_left_taken": left["clients"] + left["recordings"], "honest_median_seconds": statistics.median(waits),
        "honest_longest_seconds": max(waits), "memory_mib": [round(size / 2**20) for size in memory],
        "memory_mib_second_quarter": statistics.median(memory[quarter : 2 * quarter]) / 2**20,
        "memory_mib_last_quarter": statistics.median(memory[-quarter:]) / 2**20,
    }  # fmt: skip


def resident(pid: int) -> int:
    """Bytes of memory that a process has, 0 where that can't be told."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def soak(seconds: float) -> dict[str, Any]:
    """Torment a server of the bundled CTC model, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        wyoming = f"--wyoming=tcp://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "hf_ngpulm.cli", "serve", str(MODEL), "--port=0", "--json", wyoming]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(measure.ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        found = asyncio.run(torment(json.loads(process.stdout.readline()), seconds, process.pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        return found
    finally:
        process.kill()
