"""Coffee orders by some fifty people, in quiet and in noise: how many a small Whisper gets whole, with an LM and without.

    git clone https://github.com/Picovoice/speech-to-intent-benchmark          # Apache-2.0; 619 recordings, labels, a grammar
    python benchmarks/real_speech/orders.py speech-to-intent-benchmark --model openai/whisper-tiny.en
    ... --joined 3 --most 192 --tuning 0 --weights 0.5 0 --beams 1 --decibels quiet --ways none LM "LM, continued"

The language model is a 6-gram of the benchmark's own 431 sentences (`data/watson/corpus.txt`) and of others drawn from its
grammar (`data/rhino/coffee_maker.yaml`), written as Whisper writes: capitals, full stops, "12-ounce". Phrases are the grammar's
slot values. As in the benchmark an order counts if each slot of its label is found with the label's value; slots are looked up
in the transcript, the longest values first. Noise is added as in its `src/mix.py`, from a fixed seed.

Weights are chosen once for each way, on the first recordings (`--tuning`), heard in quiet and in noise by turns, and that of
phrases beside an LM with the LM's own; figures are those of the rest, with 95% bootstrap intervals over recordings. The encoder
runs once for each condition, decoders start from what it gave. An LM's text can have another style: `--ways` also takes the
names in `STYLES`, and these with ", adapted" (`style_of=` the model) and ", adapted to transcripts" (`outputs=` those of the
tuning recordings without an LM), or ", continued" (`NGramLM.continued`). With `--joined` so many orders follow one another in a
recording; one counts if each slot's value is found anywhere in its transcript.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from typing import Any

import numpy as np
import soundfile
import yaml
from task import arguments, measured, sorted_by_size

NUMBERS = {"eight": "8", "twelve": "12", "sixteen": "16", "twenty": "20"}
QUESTIONS = ("can ", "may ")
# Of `src/plot.py` there: with noise of a kitchen, at 6, 9, ... 24 dB.
PUBLISHED = {
    "Amazon Lex": (0.80, 0.84, 0.85, 0.87, 0.87, 0.87, 0.88),
    "Google Dialogflow": (0.70, 0.78, 0.78, 0.80, 0.81, 0.82, 0.83),
    "IBM Watson": (0.72, 0.84, 0.89, 0.93, 0.95, 0.95, 0.96),
    "Microsoft LUIS": (0.86, 0.89, 0.90, 0.91, 0.92, 0.93, 0.93),
    "Picovoice Rhino": (0.96, 0.97, 0.98, 0.99, 0.99, 0.99, 0.99),
}
DECIBELS = tuple(range(6, 25, 3))


class Orders:
    """Recordings of orders (a `task.Task`), so many `joined` in each, with the `slots` of each order by name."""

    prompt = (
        "Coffee orders, such as: Can I get a small light roast single shot iced coffee with a bit of soy milk and some brown "
        "sugar?"
    )

    def __init__(self, args: argparse.Namespace) -> None:
        data = args.data / "data"
        labels = json.loads((data / "label/label.json").read_text())
        paths = sorted((data / "speech/clean").glob("*.wav"))
        random.Random(0).shuffle(paths)
        paths, self.joined = sorted_by_size(paths, args), args.joined
        grammar = yaml.safe_load((data / "rhino/coffee_maker.yaml").read_text())["context"]
        audio = [soundfile.read(path, dtype="float32")[0] for path in paths]
        self.audio = [np.concatenate(audio[first : first + args.joined]) for first in range(0, len(audio), args.joined)]
        self.slots = [{name: value.strip() for name, value in labels[path.name]["slots"].items()} for path in paths]
        sentences = [*(data / "watson/corpus.txt").read_text().splitlines(), *draw(grammar, args.drawn)]
        self.texts = {style: list(map(write, sentences)) for style, write in STYLES.items()}
        self.values: dict[str, list[str]] = grammar["slots"]
        self.phrases = sorted({value for values in self.values.values() for value in values})
        self.noises = {path.stem: soundfile.read(path)[0] for path in sorted((data / "noise").glob("*.wav"))}

    def found(self, transcript: str) -> dict[str, str]:
        """Return the slots of a transcript. What is one slot's value isn't also another's: no size is in "medium roast"."""
        text = f" {plain(transcript)} "
        found: dict[str, str] = {}
        pairs = [(name, value) for name, values in self.values.items() for value in values]
        for name, value in sorted(pairs, key=lambda pair: -len(pair[1])):
            if name not in found and f" {value} " in text:
                found[name] = value
                text = text.replace(f" {value} ", " | ", 1)
        return found

    def right(self, transcripts: list[str]) -> np.ndarray:
        if self.joined > 1:
            texts = np.repeat([f" {plain(text)} " for text in transcripts], self.joined)
            return np.array([all(f" {value} " in text for value in s.values()) for text, s in zip(texts, self.slots)])
        pairs = zip(self.slots, map(self.found, transcripts))
        return np.array([all(found.get(name) == value for name, value in slots.items()) for slots, found in pairs])

    def figures(self, transcripts: list[str], part: slice) -> dict[str, float]:
        """Return the F1 of slots and the share of transcripts that the LM has seen (of joined orders: the words), and the share
        of those in Whisper's own style."""
        styled = float(np.mean([is_styled(text) for text in transcripts[part]]))
        if self.joined > 1:
            return {"words": sum(len(text.split()) for text in transcripts[part]), "styled": styled}
        found = [set(self.found(text).items()) for text in transcripts[part]]
        wanted = [set(slots.items()) for slots, _ in zip(self.slots[part], found)]
        hits = sum(len(a & b) for a, b in zip(found, wanted))
        seen = set(map(plain, self.texts["LM"]))
        share = float(np.mean([plain(text) in seen for text in transcripts[part]]))
        return {"slot_f1": 2 * hits / max(1, sum(map(len, found)) + sum(map(len, wanted))), "seen": share, "styled": styled}

    def noisy(self, noise: str, decibels: float) -> list[np.ndarray]:
        """Return the recordings with noise, the loudest 128 ms of both so many decibels apart."""
        generator = np.random.default_rng(0)
        found = []
        for speech in self.audio:
            first = generator.integers(0, len(self.noises[noise]) - len(speech))
            added = self.noises[noise][first : first + len(speech)]
            mixed = speech + added * np.sqrt(loudest(speech) / (loudest(added) * 10 ** (decibels / 10)))
            found.append((mixed / (2 * np.abs(mixed).max())).astype(np.float32))
        return found


def loudest(samples: np.ndarray, frame: int = 2048) -> float:
    return float((samples[: len(samples) // frame * frame].reshape(-1, frame) ** 2).sum(1).max())


def draw(grammar: dict[str, Any], count: int) -> list[str]:
    """Return sentences of the grammar."""
    generator, found = random.Random(0), []
    for _ in range(count):
        sentence = generator.choice(grammar["expressions"]["orderDrink"])
        sentence = re.sub(r"\[([^\]]*)\]", lambda match: generator.choice(match[1].split(", ")), sentence)
        found.append(re.sub(r"\$(\w+):\w+", lambda match: generator.choice(grammar["slots"][match[1]]), sentence))
    return found


def plain(transcript: str) -> str:
    """Return a transcript in the grammar's own style."""
    text = re.sub(r"[^a-z0-9' ]", " ", transcript.lower().replace("-", " "))
    for word, digits in NUMBERS.items():
        text = re.sub(rf"\b{digits}\b", word, text)
    return " ".join(text.split())


def is_styled(transcript: str) -> bool:
    """Return whether a transcript begins with a capital, ends with a mark, and has sizes in digits."""
    whole = re.fullmatch(r"[A-Z0-9].*[.?!]", transcript.strip())
    return whole is not None and not re.search(rf"\b({'|'.join(NUMBERS)})[ -]ounce", transcript.lower())


def as_whisper_writes(sentence: str) -> str:
    """Return a sentence as Whisper writes it."""
    mark = "?" if sentence.startswith(QUESTIONS) else "."
    for word, digits in NUMBERS.items():
        sentence = sentence.replace(f"{word} ounce", f"{digits}-ounce")
    return f" {sentence[0].upper()}{sentence[1:]}{mark}"


STYLES = {
    "LM": as_whisper_writes,
    "LM in lower case": lambda sentence: as_whisper_writes(sentence).lower().strip(".? "),
    "LM with numbers spelled out": lambda sentence: f" {sentence[0].upper()}{sentence[1:]}.",
    "LM as the grammar writes": str.lower,
}


if __name__ == "__main__":
    args = arguments(__doc__, "real_orders", joined=1, decibels=("quiet", "6", "12", "24"), drawn=5000)
    orders = Orders(args)
    levels = [float(level) for level in args.decibels if level != "quiet"]
    conditions = [("quiet", None)] * ("quiet" in args.decibels) + [
        (noise, level) for level in levels for noise in orders.noises
    ]
    measured(orders, conditions, args, {"published": {"decibels": DECIBELS, "right": PUBLISHED}})
