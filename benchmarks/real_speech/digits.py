"""Numbers of 4 to 8 digits, each joined from digits that one person said: how many a small Whisper gets right, and with an LM.

    git clone https://github.com/Jakobovski/free-spoken-digit-dataset         # CC BY-SA 4.0; 3,000 digits by six people
    python benchmarks/real_speech/digits.py free-spoken-digit-dataset --model openai/whisper-tiny.en

Between digits there is a pause of 0.1 to 0.4 s; no recording is used twice. The LM is a 6-gram of random numbers in the
styles in which Whisper writes them ("4 8 1 5", "4, 8, 1, 5.", "Four, eight, one, five."); phrases are the digits' names. What
a transcript says is its digits, written or spelled out, all else left away. Weights are chosen on the first numbers, figures
are those of the rest.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import soundfile
import soxr
from task import arguments, measured

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PROMPT = "4, 0, 7, 1, 9, 2. 3, 5, 8, 6."
DIGITS = re.compile("|".join([r"\d", *(rf"\b{name}\b" for name in NAMES)]))


@dataclass
class Numbers:
    """Numbers read out.

    Args:
        audio: samples at 16 kHz.
        digits: of each recording, as a string.
        texts, phrases: see `task.Task`.
    """

    audio: list[np.ndarray]
    digits: list[str]
    texts: dict[str, list[str]]
    phrases: list[str]
    prompt: str = PROMPT

    @classmethod
    def read(cls, folder: Path, args: argparse.Namespace) -> Numbers:
        generator = random.Random(0)
        left: dict[str, list[Path]] = {}
        for path in sorted((folder / "recordings").glob("*.wav")):
            left.setdefault(path.stem.split("_")[1], []).append(path)
        for paths in left.values():
            generator.shuffle(paths)
        joined = []
        while len(joined) < (args.most or 300):
            speaker = sorted(left)[len(joined) % len(left)]
            if len(left[speaker]) < 8:
                raise SystemExit(f"{speaker}'s recordings are used up after {len(joined)} numbers; take so many: --most")
            joined.append([left[speaker].pop() for _ in range(generator.randint(4, 8))])
        return cls(
            [cls.join(paths, generator) for paths in joined],
            ["".join(path.name[0] for path in paths) for paths in joined],
            {"LM": [as_whisper_writes(number(generator), generator) for _ in range(args.drawn)]},
            list(NAMES),
        )

    @staticmethod
    def join(paths: list[Path], generator: random.Random) -> np.ndarray:
        """Return recordings one after the other, as loud as each other, with pauses."""
        parts = []
        for path in paths:
            samples, rate = soundfile.read(path, dtype="float32")
            pause = np.zeros(int(generator.uniform(0.1, 0.4) * 16_000), np.float32)
            parts += [pause, soxr.resample(samples / np.abs(samples).max() / 2, rate, 16_000)]
        return np.concatenate([*parts, pause])

    def noisy(self, noise: str, decibels: float) -> list[np.ndarray]:
        raise ValueError(f"there is no noise for numbers; got {noise!r} at {decibels} dB")

    def right(self, transcripts: list[str]) -> np.ndarray:
        """Return which numbers are right as a whole."""
        return np.array([said(text) == digits for text, digits in zip(transcripts, self.digits)])

    def figures(self, transcripts: list[str], part: slice) -> dict[str, float]:
        """Return the share of digits that are right, as 1 - the error rate."""
        found = [" ".join(said(text)) for text in transcripts[part]]
        wanted = [" ".join(digits) for digits in self.digits[part]][: len(found)]
        return {"digits_right": 1 - jiwer.wer(wanted, found)}


def number(generator: random.Random) -> list[int]:
    return generator.choices(range(10), k=generator.randint(4, 8))


def as_whisper_writes(digits: list[int], generator: random.Random) -> str:
    """Return a number in one of Whisper's styles."""
    style = generator.randrange(3)
    if style == 2:
        return f" {', '.join(NAMES[digit] for digit in digits).capitalize()}."
    return f" {', '.join(map(str, digits))}." if style else f" {' '.join(map(str, digits))}"


def said(transcript: str) -> str:
    """Return the digits of a transcript."""
    found = DIGITS.findall(transcript.lower())
    return "".join(str(NAMES.index(digit)) if digit in NAMES else digit for digit in found)


def main() -> None:
    parser = arguments(__doc__, "real_digits")
    parser.add_argument("--drawn", type=int, default=5000, help="numbers that the LM is made of")
    args = parser.parse_args()
    measured(Numbers.read(args.data, args), [("quiet", None)], args, {})


if __name__ == "__main__":
    main()
