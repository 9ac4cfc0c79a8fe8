"""Numbers of 4 to 8 digits, each joined from digits that one person said: how many a small Whisper gets right, and with an LM.

    git clone https://github.com/Jakobovski/free-spoken-digit-dataset         # CC BY-SA 4.0; 3,000 digits by six people
    python benchmarks/real_speech/digits.py free-spoken-digit-dataset --model openai/whisper-tiny.en

Between digits there is a pause of 0.1 to 0.4 s; no recording is used twice. The LM is a 6-gram of random numbers in the
styles in which Whisper writes them ("4 8 1 5", "4, 8, 1, 5.", "Four, eight, one, five."); phrases are the digits' names. What
a transcript says is its digits, written or spelled out, all else left away. Weights are chosen on the first numbers, figures
are those of the rest.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import soundfile
import soxr
from task import arguments, measured

from hf_ngpulm.evaluation import word_errors

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = re.compile("|".join([r"\d", *(rf"\b{name}\b" for name in NAMES)]))


class Numbers:
    """Numbers read out (a `task.Task`), of `digits`; `drawn` ones are the LM's text."""

    phrases, prompt = list(NAMES), "4, 0, 7, 1, 9, 2. 3, 5, 8, 6."

    def __init__(self, folder: Path, count: int, drawn: int) -> None:
        generator = random.Random(0)
        left: dict[str, list[Path]] = {}
        for path in sorted((folder / "recordings").glob("*.wav")):
            left.setdefault(path.stem.split("_")[1], []).append(path)
        for paths in left.values():
            generator.shuffle(paths)
        joined: list[list[Path]] = []
        while len(joined) < count:
            speaker = sorted(left)[len(joined) % len(left)]
            if len(left[speaker]) < 8:
                raise SystemExit(f"{speaker}'s recordings are used up after {len(joined)} numbers; take so many: --most")
            joined.append([left[speaker].pop() for _ in range(generator.randint(4, 8))])
        self.audio = [one_after_the_other(paths, generator) for paths in joined]
        self.digits = ["".join(path.name[0] for path in paths) for paths in joined]
        self.texts = {"LM": [as_whisper_writes(generator) for _ in range(drawn)]}

    def right(self, transcripts: list[str]) -> np.ndarray:
        return np.array([said(text) == digits for text, digits in zip(transcripts, self.digits)])

    def figures(self, transcripts: list[str], part: slice) -> dict[str, float]:
        """Return the share of digits that are right, as 1 - the error rate."""
        found = [" ".join(said(text)) for text in transcripts[part]]
        return {"digits_right": 1 - word_errors([" ".join(digits) for digits in self.digits[part]][: len(found)], found).rate}


def one_after_the_other(paths: list[Path], generator: random.Random) -> np.ndarray:
    """Return recordings as loud as each other, with pauses."""
    parts = []
    for path in paths:
        samples, rate = soundfile.read(path, dtype="float32")
        pause = np.zeros(int(generator.uniform(0.1, 0.4) * 16_000), np.float32)
        parts += [pause, soxr.resample(samples / np.abs(samples).max() / 2, rate, 16_000)]
    return np.concatenate([*parts, pause])


def as_whisper_writes(generator: random.Random) -> str:
    """Return a random number in one of Whisper's styles."""
    digits = generator.choices(range(10), k=generator.randint(4, 8))
    style = generator.randrange(3)
    if style == 2:
        return f" {', '.join(NAMES[digit] for digit in digits).capitalize()}."
    return f" {', '.join(map(str, digits))}." if style else f" {' '.join(map(str, digits))}"


def said(transcript: str) -> str:
    """Return the digits of a transcript."""
    found = DIGITS.findall(transcript.lower())
    return "".join(str(NAMES.index(digit)) if digit in NAMES else digit for digit in found)


if __name__ == "__main__":
    args = arguments(__doc__, "real_digits", drawn=5000)
    measured(Numbers(args.data, args.most or 300, args.drawn), [("quiet", None)], args, {})
