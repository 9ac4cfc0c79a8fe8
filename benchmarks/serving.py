"""The server under load: lag of live audio, throughput of recordings.

    python benchmarks/serving.py live --model examples/models/ctc --streams 64 --seconds 60
    python benchmarks/serving.py recordings --model examples/models/ctc

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
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
import soundfile
from aiohttp import ClientSession, ClientTimeout, FormData

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
    command = [sys.executable, "-m", "hf_ngpulm.cli", "serve", str(model), "--port=0", "--json", f"--wyoming={wyoming}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(measure.ROOT)}
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, env=environment)
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


async def upload(session: ClientSession, at: dict[str, str], file: bytes) -> str:
    form = FormData()
    form.add_field("file", io.BytesIO(file), filename="clip.wav")
    async with session.post(f"{at['openai']}/audio/transcriptions", data=form) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["text"]


def update(**heard: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}}


def append(samples: np.ndarray) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(samples.tobytes()).decode()}


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
    options = [f"--{name}={getattr(args, name)}" for name in ("chunk", "left", "right")]
    with server(args.model, *options, *args.options, "--max-clients", str(args.streams), "--tick", str(args.tick)) as (at, _):
        load = os.getloadavg()[0]
        found = sorted(asyncio.run(lags(at, args.streams, args.seconds, args.chunk, args.right)))
    quantiles = {f"p{share}": found[int(share / 100 * (len(found) - 1))] for share in (50, 90, 99)}
    facts = {"streams": args.streams, "seconds": args.seconds, "options": options, "load": load}
    return {**facts, "partials": len(found), **quantiles}


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


def main() -> None:
    parser = measure.arguments(__doc__, "serving")
    parser.set_defaults(name=None, threads=2)
    parser.add_argument("what", choices=("live", "recordings"))
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--each", type=int, default=4, help="recordings that a client sends, one after another")
    parser.add_argument("--joined", type=int, default=1, help="clips in each recording")
    parser.add_argument("--chunk", type=float, default=1.28)
    parser.add_argument("--left", type=float, default=1.28)
    parser.add_argument("--right", type=float, default=0.32)
    parser.add_argument("--tick", type=float, default=0.04)
    parser.add_argument("options", nargs="*", help="after --: options of hf-ngpulm serve")
    args = parser.parse_args()
    result = (live if args.what == "live" else recordings)(args)
    print(json.dumps(result, indent=1))
    name = args.name or f"serving_{args.what}_{args.model.name}" + (f"_joined_{args.joined}" if args.joined > 1 else "")
    print("results in", measure.save(name, {"model": args.model.name, **result}, args.out))


if __name__ == "__main__":
    main()
