"""Orders of coffee heard by a small Whisper, with what this project gives it and without: how many are right.

    git clone https://github.com/Picovoice/speech-to-intent-benchmark          # Apache-2.0; 619 recordings, labels, a grammar
    python benchmarks/real_speech/tasks.py speech-to-intent-benchmark
    ... --joined 3 --most 192 --tuning 0 --weights 0.5 0 --beams 1 --decibels quiet --ways none LM "LM, continued"

Some fifty people order in quiet and in noise. Texts of LMs are the benchmark's own 431 sentences (`data/watson/corpus.txt`) and
others drawn from its grammar (`data/rhino/coffee_maker.yaml`), written as Whisper writes: capitals, full stops, "12-ounce"; or
in another style of `STYLES`. Phrases are the grammar's slot values. As in the benchmark an order counts if each slot of its
label is found with the label's value; slots are looked up in the transcript, the longest values first. Noise is added as in its
`src/mix.py`, from a fixed seed. With `--joined` so many orders follow one another in a recording; one counts if each slot's
value is found anywhere in its transcript.

Weights are chosen once for each way, on the first recordings (`--tuning`), heard in quiet and in noise by turns, and that of
phrases beside an LM with the LM's own; figures are those of the rest, with 95% bootstrap intervals over recordings. The encoder
runs once for each condition, decoders start from what it gave. LMs are 6-grams. `--ways` takes the names of texts, also with
", adapted" (`style_of=` the model), ", adapted to transcripts" (`outputs=` those of the tuning recordings without an LM), or
", continued" (`NGramLM.continued`).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import yaml
from families import Heard, Recogniser, Row, corpora, grid, measure
from transformers.utils import logging

from hf_ngpulm import NGramLM

WAYS = ("none", "prompt", "phrases", "LM", "LM + phrases")
CONTINUED = ", continued"
LM_WEIGHTS, PHRASE_WEIGHTS = (0.3, 0.5, 0.7, 1.0, 1.5), (0.25, 0.5, 1.0, 2.0)
Weights = dict[str, float]


def sorted_by_size(paths: list[Path], args: argparse.Namespace) -> list[Path]:
    """Return as many files as asked for, those that are recognised together of similar sizes."""
    most = len(paths) if args.most is None else min(args.most, len(paths))
    bounds = [0, args.tuning, min(args.fewer or most, most), most]
    if bounds != sorted(bounds) or args.tuning == bounds[2]:
        raise SystemExit(f"of {bounds[2]} recordings (--most, --fewer) --tuning {args.tuning} leaves none to count; take fewer")
    return [path for part in itertools.pairwise(bounds) for path in sorted(paths[slice(*part)], key=lambda p: p.stat().st_size)]


class Whisper:
    """A Whisper, and language models of orders."""

    def __init__(self, orders: Orders, args: argparse.Namespace) -> None:
        self.orders, self.args, self.recogniser = orders, args, Recogniser(args.model)
        self.prompt = self.recogniser.processor.get_prompt_ids(PROMPT, return_tensors="pt")
        self.outputs: list[str] = []

    def hear(self, audio: list[np.ndarray]) -> Heard:
        return self.recogniser.hear([corpora.Clip(samples, "") for samples in audio])

    def transcripts(self, heard: Heard, way: str, weights: Weights, num_beams: int) -> list[str]:
        """Return transcripts of what the encoder made."""
        first, settings = way.removesuffix(" + phrases"), dict[str, Any](weights)
        settings |= {"num_beams": num_beams, "max_new_tokens": self.orders.longest, "max_length": None}
        if first == "prompt":
            settings["prompt_ids"] = self.prompt
        if "lm_weight" in weights:
            settings |= {"lm": self.lm(first), "score_eos": self.args.score_eos}
        if "phrase_weight" in weights:
            settings["phrases"] = self.orders.phrases
        return heard.decode(self.recogniser.decoder(**settings), self.args.batch_size)

    @functools.cache  # noqa: B019
    def lm(self, name: str) -> NGramLM:
        if name.endswith(CONTINUED):
            return self.lm(name.removesuffix(CONTINUED)).continued()
        texts, adapted, transcripts = name.partition(", adapted")
        style = {"style_of": self.recogniser.processor} if adapted else {}
        style |= {"outputs": self.outputs} if transcripts else {}
        return NGramLM.train(self.orders.texts[texts], self.recogniser.tokenizer, order=6, **style)

    def weights_of(self, way: str, num_beams: int, tuning: Heard, chosen: dict[Any, Weights]) -> Weights:
        """Return the weights that are given, or those that get most of some recordings right (kept in `chosen`)."""
        first, with_phrases = way.removesuffix(" + phrases"), way.endswith("phrases")
        of_lm = {"lm_weight": LM_WEIGHTS} if text_of(first) in self.orders.texts else {}
        of_phrases = {"phrase_weight": PHRASE_WEIGHTS} if with_phrases else {}
        if self.args.weights:
            given = dict(zip(("lm_weight", "phrase_weight"), self.args.weights))
            return {name: given[name] for name in (*of_lm, *of_phrases)}
        if of_lm and (first, num_beams) in chosen:
            of_lm = {"lm_weight": (chosen[first, num_beams]["lm_weight"],)}

        def quality(weights: Weights) -> tuple[int, float]:
            found = self.transcripts(tuning, way, weights, num_beams)
            return int(self.orders.right(found).sum()), next(iter(self.orders.figures(found, slice(None)).values()))

        if (way, num_beams) not in chosen:
            points = grid(**of_lm, **of_phrases)
            chosen[way, num_beams] = points[0] if len(points) == 1 else max(points, key=quality)
        return chosen[way, num_beams]


def text_of(way: str) -> str:
    """Return the name of the text that a way's LM is made of."""
    return way.removesuffix(CONTINUED).partition(", adapted")[0]


def measured(orders: Orders, args: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each condition, way and number of beams."""
    conditions: list[tuple[str, float | None]] = []
    for level in args.decibels:
        conditions += [("quiet", None)] if level == "quiet" else [(noise, float(level)) for noise in orders.noises]
    for first in (way.removesuffix(" + phrases") for way in args.ways):
        if text_of(first) not in (*WAYS[:3], *orders.texts):
            raise SystemExit(f"--ways: {first!r} is none of {[*WAYS[:3], *orders.texts]}; only ' + phrases' may follow")
    whisper, count, chosen = Whisper(orders, args), args.tuning, dict[Any, Weights]()
    audio = {(n, level): orders.audio if level is None else orders.noisy(n, level) for n, level in conditions}
    turns = itertools.cycle(audio.values())
    tuning = whisper.hear([next(turns)[number] for number in range(0 if args.weights else count)])
    if any(way.endswith("to transcripts") for way in args.ways):
        whisper.outputs = whisper.transcripts(whisper.hear(orders.audio[:count]), "none", {}, 1)
    if args.transcripts:
        args.transcripts.write_text("")
    hear = functools.cache(lambda condition, most: whisper.hear(audio[condition][count:most]))
    for num_beams, condition, way in itertools.product(args.beams, conditions, args.ways):
        most = args.fewer if args.fewer and (num_beams > 1 or condition[1] is not None) else len(orders.audio)
        heard, weights = hear(condition, most), whisper.weights_of(way, num_beams, tuning, chosen)
        row = {"noise": condition[0], "decibels": condition[1], "way": way, "num_beams": num_beams, **weights}
        begin = measure.now()
        found = whisper.transcripts(heard, way, weights, num_beams)
        row["decoder_seconds"] = measure.now() - begin
        all_found = [""] * count + found
        right = orders.right(all_found)[count:]
        row |= {"recordings": len(right), "right": float(right.mean()), "interval": measure.interval(right)}
        if args.transcripts:
            with args.transcripts.open("a") as file:
                file.write(json.dumps({**row, "transcripts": found}) + "\n")
        yield {**row, **orders.figures(all_found, slice(count, count + len(found)))}


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
PROMPT = (
    "Coffee orders, such as: Can I get a small light roast single shot iced coffee with a bit of soy milk and some brown sugar?"
)


class Orders:
    """Recordings of orders at 16 kHz, so many `joined` in each, with the `slots` of each order by name; and `texts` of language
    models by name, that of "LM" in Whisper's style."""

    def __init__(self, args: argparse.Namespace) -> None:
        data = args.data / "data"
        labels = json.loads((data / "label/label.json").read_text())
        paths = sorted((data / "speech/clean").glob("*.wav"))
        random.Random(0).shuffle(paths)
        paths, self.joined = sorted_by_size(paths, args), args.joined
        self.longest = 120 if args.joined == 1 else 200  # tokens of a transcript
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
        """Return which of the first orders are right as a whole, bool."""
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


def loudest(samples: np.ndarray) -> float:
    """Return the energy of the loudest 128 ms."""
    return float((samples[: len(samples) // 2048 * 2048].reshape(-1, 2048) ** 2).sum(1).max())


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


STYLES = {"LM": as_whisper_writes, "LM as the grammar writes": str.lower}


ABOUT = {
    "ways": "of: %(default)s; other LMs by the names of their texts, also adapted, and continued",
    "tuning": "recordings that weights are chosen on, not counted",
    "weights": {"nargs": 2, "help": "of LMs and of phrases, where none shall be chosen"},
    "most": "take so many recordings only",
    "fewer": "take so many with noise and with beams",
    "score_eos": {"default": None, "help": "have LMs score the end of transcripts"},
    "transcripts": "file to write all transcripts to, as JSON lines",
    "joined": "orders in a recording",
    "decibels": "of noise, or quiet",
    "drawn": "sentences from the grammar that LMs are made of",
}


def main() -> None:
    parser = measure.arguments(
        __doc__, "real_orders", None, ABOUT, model="openai/whisper-tiny.en", ways=WAYS, beams=(1, 5), tuning=60,
        weights=(float,), most=int, fewer=int, batch_size=16, score_eos=False, transcripts=Path, joined=1,
        decibels=("quiet", "6", "12", "24"), drawn=5000,
    )  # fmt: skip
    parser.add_argument("data", type=Path, help="a clone of the benchmark's repository")
    args = parser.parse_args()
    logging.set_verbosity_error()
    with torch.inference_mode():
        measure.report(measured(Orders(args), args), args, {"published": {"decibels": DECIBELS, "right": PUBLISHED}})


if __name__ == "__main__":
    main()
