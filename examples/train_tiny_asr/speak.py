"""Let espeak-ng speak sentences: many accents and voices, speeds and pitches.

    python speak.py sentences.txt speech      speech/samples.raw (int16, 16 kHz, one after another), speech/utterances.jsonl

It goes on where it was stopped. The same seed gives the same speech with the same version of espeak-ng.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
import soundfile
import soxr

SAMPLING_RATE = 16_000
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-gb-x-gbclan")
VOICES = ("m1", "m2", "m3", "m4", "m5", "m7", "f1", "f2", "f3", "f4", "f5")


@dataclass(frozen=True)
class Voice:
    """How a sentence is spoken: words per minute and pitch as espeak-ng counts them."""

    accent: str
    variant: str
    speed: int
    pitch: int


def random_voice(random: Random) -> Voice:
    return Voice(random.choice(ACCENTS), random.choice(VOICES), random.randint(135, 205), random.randint(30, 70))


def speak(text: str, voice: Voice, peak: float = 0.5) -> np.ndarray:
    """Mono samples at 16 kHz, int16 `[samples]`, without the silence at the end that espeak-ng adds."""
    command = [
        "espeak-ng",
        "-v",
        f"{voice.accent}+{voice.variant}",
        "-s",
        str(voice.speed),
        "-p",
        str(voice.pitch),
        "--stdout",
        "--",
        text,
    ]
    wave = subprocess.run(command, capture_output=True, check=True).stdout
    # The length in the header of a piped file is not to be trusted.
    samples, rate = soundfile.read(
        io.BytesIO(wave[44:]), format="RAW", samplerate=22_050, channels=1, subtype="PCM_16", dtype="float32"
    )
    samples = soxr.resample(samples, rate, SAMPLING_RATE)
    loud = np.flatnonzero(np.abs(samples) > 0.005 * np.abs(samples).max())
    samples = samples[: loud[-1] + SAMPLING_RATE // 10] if loud.size else samples
    return (samples * (peak / max(np.abs(samples).max(), 1e-6)) * 32_767).astype(np.int16)


def speak_all(sentences: list[str], folder: Path, seed: int, workers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "utterances.jsonl"
    done = [json.loads(line) for line in index.read_text().splitlines()] if index.exists() else []
    voices = Random(seed)
    voice_of = [random_voice(voices) for _ in sentences]
    end = done[-1]["end"] if done else 0
    with (
        (folder / "samples.raw").open("r+b" if done else "wb") as audio,
        index.open("a") as lines,
        ThreadPoolExecutor(workers) as pool,
    ):
        audio.truncate(2 * end)
        audio.seek(2 * end)
        for first in range(len(done), len(sentences), 500):
            chosen = slice(first, first + 500)
            for text, voice, samples in zip(
                sentences[chosen], voice_of[chosen], pool.map(speak, sentences[chosen], voice_of[chosen]), strict=True
            ):
                audio.write(samples.tobytes())
                line = {"text": text, **asdict(voice), "start": end, "end": end + samples.size}
                end += samples.size
                lines.write(json.dumps(line) + "\n")
            audio.flush()
            lines.flush()
            print(
                f"{min(first + 500, len(sentences)):,} of {len(sentences):,} sentences, {end / SAMPLING_RATE / 3600:.1f} h",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    speak_all(arguments.sentences.read_text().splitlines(), arguments.folder, arguments.seed, arguments.workers)
