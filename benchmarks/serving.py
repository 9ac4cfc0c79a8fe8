"""The server under load: lag of live audio, throughput of recordings.

    python benchmarks/serving.py live --model examples/models/ctc --streams 64 --seconds 60
    python benchmarks/serving.py recordings --model examples/models/ctc

The server is a process of its own (`hf-ngpulm serve`), the clients are this one, on the same cores. The lag of a partial is the
time from when the last sample that it needs was sent until it came. Recordings: from so many clients at the same time, by turns
with the pipeline in batches of 16 (audio read beforehand) in this process. `load` is what else ran: the machine's load
average before.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import corpora
import measure
import numpy as np
import soundfile
from aiohttp import ClientSession, ClientTimeout, FormData, TCPConnector
from corpora import RATE

from hf_ngpulm.pipelines.loading import load_pipeline


def clips(count: int, joined: int = 1) -> list[np.ndarray]:
    """Return so many recordings, int16, each of some clips; from the first clip again where there are too few."""
    read = itertools.cycle((clip.audio * 32767).astype("<i2") for clip in corpora.load("harbour"))
    return [np.concatenate(list(itertools.islice(read, joined))) for _ in range(count)]


@contextlib.contextmanager
def server(args: argparse.Namespace, *options: str) -> Iterator[dict[str, str]]:
    """Give a server's addresses."""
    command = [sys.executable, "-m", "hf_ngpulm.cli", "serve", str(args.model), "--port=0", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(measure.ROOT)}
    process = subprocess.Popen([*command, *options, *args.options], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield json.loads(process.stdout.readline())
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


async def lags(at: dict[str, str], args: argparse.Namespace) -> list[float]:
    """Return lags of all partials of clients who speak at their own time, after the first few seconds."""
    audio = np.concatenate(clips(60))
    found: list[float] = []
    heard = {"format": {"type": "audio/pcm", "rate": RATE}, "transcription": {"partials": True}}
    asked = {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}}

    async def speak(session: ClientSession, number: int) -> None:
        await asyncio.sleep(number / args.streams * args.chunk)
        begin, sent = number * 7919 % len(audio), [0.0]  # when each tenth of a second went
        async with session.ws_connect(at["realtime"]) as ws:
            await ws.send_json(asked)

            async def listen() -> None:
                async for message in ws:
                    event, now = json.loads(message.data), time.monotonic()
                    if event["type"].endswith("transcription.partial"):
                        end = event["audio_end_ms"] / 1000
                        tenth = min(len(sent) - 1, int(np.ceil(round((end + args.right) * 10, 6))))
                        found.append(now - sent[tenth]) if end > 5 else None
                    elif event["type"] == "input_audio_buffer.cleared":
                        return

            listening, start = asyncio.create_task(listen()), time.monotonic()
            for tenth in range(int(args.seconds * 10)):
                await asyncio.sleep(max(0.0, start + tenth / 10 - time.monotonic()))
                piece = np.take(audio, range(begin + tenth * 1600, begin + (tenth + 1) * 1600), mode="wrap").tobytes()
                await ws.send_json({"type": "input_audio_buffer.append", "audio": base64.b64encode(piece).decode()})
                sent.append(time.monotonic())
            await ws.send_json({"type": "input_audio_buffer.commit"})
            await ws.send_json({"type": "input_audio_buffer.clear"})  # is answered when all has been said
            await listening

    async with ClientSession(timeout=ClientTimeout(None)) as session:
        await asyncio.gather(*(speak(session, number) for number in range(args.streams)))
    return found


def live(args: argparse.Namespace) -> dict[str, Any]:
    options = [f"--{name}={getattr(args, name)}" for name in ("chunk", "left", "right")]
    with server(args, *options, "--max-clients", str(args.streams), "--tick", str(args.tick)) as at:
        load = os.getloadavg()[0]
        found = sorted(asyncio.run(lags(at, args)))
    quantiles = {f"p{share}": found[int(share / 100 * (len(found) - 1))] for share in (50, 90, 99)}
    facts = {"streams": args.streams, "seconds": args.seconds, "options": [*options, *args.options], "load": load}
    return {**facts, "partials": len(found), **quantiles}


def recordings(args: argparse.Namespace) -> dict[str, Any]:
    greedy = {"num_beams": 1} if args.model.name == "ctc" else {"strategy": "greedy"}  # as the server searches, by our decoders
    asr, audio = load_pipeline(str(args.model), None, None, **greedy), clips(args.streams, args.joined)
    inputs = [{"raw": samples.astype(np.float32) / 32768, "sampling_rate": RATE} for samples in audio]
    files, texts = list(map(wav, audio)), dict[str, list[str]]()

    def offline() -> None:
        texts["offline"] = [found["text"] for found in asr([dict(each) for each in inputs], batch_size=16)]

    with server(args, "--max-uploads", str(args.streams)) as at:

        async def all_at_once() -> None:
            # As many connections as there are recordings.
            async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(None)) as session:

                async def again(file: bytes) -> str:
                    return [await upload(session, at, file) for _ in range(args.each)][-1]

                texts["server"] = await asyncio.gather(*map(again, files))

        load = os.getloadavg()[0]
        ways = {"offline": offline, "server": lambda: asyncio.run(all_at_once())}
        medians = measure.by_turns({way: partial(measure.wall_time, call) for way, call in ways.items()}, args.repeats)
    medians["server"] /= args.each
    facts = {"clients": args.streams, "recordings_each": args.each, "seconds_of_audio": sum(map(len, audio)) / RATE}
    facts |= {"threads": args.threads, "load": load}
    facts["rtfx"] = {name: facts["seconds_of_audio"] / median for name, median in medians.items()}
    different = sum(a != b for a, b in zip(texts["offline"], texts["server"]))
    return {**facts, "ratio": medians["offline"] / medians["server"], "different": different}


def main() -> None:
    about = {"each": "recordings that a client sends, one after another", "joined": "clips in each recording"}
    parser = measure.arguments(
        __doc__, str, None, about, threads=2, model=str(measure.ROOT / "examples" / "models" / "ctc"), streams=64, seconds=60.0,
        repeats=5, each=4, joined=1, chunk=1.28, left=1.28, right=0.32, tick=0.04,
    )  # fmt: skip
    parser.add_argument("what", choices=("live", "recordings"))
    parser.add_argument("options", nargs="*", help="after --: options of hf-ngpulm serve")
    args = parser.parse_args()
    args.model = Path(args.model)
    result = (live if args.what == "live" else recordings)(args)
    print(json.dumps(result, indent=1))
    name = args.name or f"serving_{args.what}_{args.model.name}" + (f"_joined_{args.joined}" if args.joined > 1 else "")
    print("results in", measure.save(name, {"model": args.model.name, **result}, args.out))


if __name__ == "__main__":
    main()
