"""The server under load: lag of live audio, throughput of recordings, and a soak with clients of every kind.

    python benchmarks/serving.py live --model examples/models/ctc --streams 64 --seconds 60
    python benchmarks/serving.py recordings --model examples/models/ctc
    python benchmarks/serving.py soak --seconds 600

The server is a process of its own (`hf-ngpulm serve`), the clients are this one, on the same cores. The lag of a partial is the
time from when the last sample that it needs was sent until it came. Recordings: from so many clients at the same time, by turns
with the pipeline in batches of 16 (files read beforehand) in this process. `load` is what else ran: the machine's load
average before.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
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
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
import soundfile
from aiohttp import ClientSession, ClientTimeout, FormData
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient

sys.path.insert(0, str(measure.ROOT))

from hf_ngpulm.sound.files import read_audio

HARBOUR = measure.ROOT / "examples" / "speech" / "harbour"
RATE = 16000
FORM = {"type": "audio/pcm", "rate": RATE}
MODEL = measure.ROOT / "examples" / "models" / "ctc"


def clips(count: int, joined: int = 1) -> list[np.ndarray]:
    """Return so many recordings, int16, each of some clips; from the first clip again where there are too few."""
    paths = sorted((HARBOUR / "clips").glob("*.flac"))[: count * joined]
    read = [(read_audio(path, RATE) * 32767).astype("<i2") for path in paths]
    begins = range(0, count * joined, joined)
    return [np.concatenate([read[(begin + of) % len(read)] for of in range(joined)]) for begin in begins]


@contextlib.contextmanager
def server(model: Path, *options: str, threads: int = 2) -> Iterator[tuple[dict[str, str], int]]:
    """A server's addresses, and its process id."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        wyoming = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    command = [
        sys.executable,
        "-m",
        "hf_ngpulm.cli",
        "serve",
        str(model),
        "--port",
        "0",
        "--json",
        "--wyoming",
        wyoming,
        *options,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(measure.ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


# Clients that behave: what they are told.


def update(**heard: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}}


def append(samples: np.ndarray) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(samples.tobytes()).decode()}


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


async def upload(session: ClientSession, at: dict[str, str], file: bytes) -> str:
    form = FormData()
    form.add_field("file", io.BytesIO(file), filename="clip.wav")
    async with session.post(f"{at['openai']}/audio/transcriptions", data=form) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["text"]


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


# Lag and throughput


async def lags(at: dict[str, str], streams: int, seconds: float, chunk: float, ahead: float) -> list[float]:
    """Lags of all partials of so many clients, who speak at their own time, after the first few seconds."""
    audio = np.concatenate(clips(60))
    found: list[float] = []

    async def speak(session: ClientSession, number: int) -> None:
        await asyncio.sleep(number / streams * chunk)
        begin, sent = number * 7919 % len(audio), [0.0]  # when each tenth of a second went
        async with session.ws_connect(at["realtime"]) as ws:
            await ws.send_json(update(format=FORM, transcription={"partials": True}))

            async def listen() -> None:
                async for message in ws:
                    event, now = json.loads(message.data), time.monotonic()
                    if event["type"].endswith("transcription.partial"):
                        end = event["audio_end_ms"] / 1000
                        tenth = min(len(sent) - 1, int(np.ceil(round((end + ahead) * 10, 6))))
                        found.append(now - sent[tenth]) if end > 5 else None
                    elif event["type"] == "input_audio_buffer.cleared":
                        return

            listening, start = asyncio.create_task(listen()), time.monotonic()
            for tenth in range(int(seconds * 10)):
                await asyncio.sleep(max(0.0, start + tenth / 10 - time.monotonic()))
                piece = np.take(audio, range(begin + tenth * 1600, begin + (tenth + 1) * 1600), mode="wrap")
                await ws.send_json(append(piece))
                sent.append(time.monotonic())
            await ws.send_json({"type": "input_audio_buffer.commit"})
            await ws.send_json({"type": "input_audio_buffer.clear"})  # is answered when all has been said
            await listening

    async with ClientSession(timeout=ClientTimeout(None)) as session:
        await asyncio.gather(*(speak(session, number) for number in range(streams)))
    return found


def live(args: argparse.Namespace) -> dict[str, Any]:
    options = [
        word for pair in (("--chunk", args.chunk), ("--left", args.left), ("--right", args.right)) for word in map(str, pair)
    ]
    with server(args.model, *options, *args.options, "--max-clients", str(args.streams), "--tick", str(args.tick)) as (at, _):
        load = os.getloadavg()[0]
        found = sorted(asyncio.run(lags(at, args.streams, args.seconds, args.chunk, args.right)))
    quantiles = {f"p{share}": found[int(share / 100 * (len(found) - 1))] for share in (50, 90, 99)}
    return {
        "streams": args.streams,
        "seconds": args.seconds,
        "options": options,
        "load": load,
        "partials": len(found),
        **quantiles,
    }


def recordings(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from hf_ngpulm.pipelines.loading import load_pipeline

    torch.set_num_threads(args.threads)
    greedy = {"num_beams": 1} if args.model.name == "ctc" else {"strategy": "greedy"}  # as the server searches, by our decoders
    asr, audio = load_pipeline(str(args.model), None, None, **greedy), clips(args.streams, args.joined)
    inputs = [{"raw": samples.astype(np.float32) / 32768, "sampling_rate": RATE} for samples in audio]
    files = [wav(samples) for samples in audio]
    texts: dict[str, list[str]] = {}

    def offline() -> float:
        begin = time.perf_counter()
        texts["offline"] = [found["text"] for found in asr([dict(each) for each in inputs], batch_size=16)]
        return time.perf_counter() - begin

    with server(args.model, *args.options, "--max-uploads", str(args.streams), threads=args.threads) as (at, _):

        async def all_at_once() -> None:
            async with ClientSession(timeout=ClientTimeout(None)) as session:
                session.connector._limit = 0  # type: ignore[union-attr]  # as many connections as there are recordings

                async def again(file: bytes) -> str:
                    return [await upload(session, at, file) for _ in range(args.each)][-1]

                texts["server"] = await asyncio.gather(*map(again, files))

        def served() -> float:
            begin = time.perf_counter()
            asyncio.run(all_at_once())
            return time.perf_counter() - begin

        load = os.getloadavg()[0]
        medians = measure.by_turns({"offline": offline, "server": served}, args.repeats)
        medians["server"] /= args.each
    seconds = sum(map(len, audio)) / RATE
    return {
        "clients": args.streams, "recordings_each": args.each, "seconds_of_audio": seconds,
        "threads": args.threads, "load": load,
        "rtfx": {name: seconds / median for name, median in medians.items()},
        "ratio": medians["offline"] / medians["server"],
        "different": sum(a != b for a, b in zip(texts["offline"], texts["server"])),
    }  # fmt: skip


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


def soak(args: argparse.Namespace) -> dict[str, Any]:
    load = os.getloadavg()[0]
    with server(args.model, *args.options, threads=args.threads) as (at, pid):
        return {"load": load, **asyncio.run(torment(at, args.seconds, pid))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("live", "recordings", "soak"))
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--each", type=int, default=4, help="recordings that a client sends, one after another")
    parser.add_argument("--joined", type=int, default=1, help="clips in each recording")
    parser.add_argument("--chunk", type=float, default=1.28)
    parser.add_argument("--left", type=float, default=1.28)
    parser.add_argument("--right", type=float, default=0.32)
    parser.add_argument("--tick", type=float, default=0.04)
    parser.add_argument("--name", help="name of the result file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("options", nargs="*", help="after --: options of hf-ngpulm serve")
    args = parser.parse_args()
    result = {"live": live, "recordings": recordings, "soak": soak}[args.what](args)
    print(json.dumps(result, indent=1))
    name = args.name or f"serving_{args.what}_{args.model.name}" + (f"_joined_{args.joined}" if args.joined > 1 else "")
    print("results in", measure.save(name, {"model": args.model.name, **result}, args.out))


if __name__ == "__main__":
    main()
