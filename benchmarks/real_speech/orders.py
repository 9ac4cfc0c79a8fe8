"""Coffee orders by some fifty people, in quiet and in noise: how many a small Whisper gets whole, with an LM and without.

    git clone https://github.com/Picovoice/speech-to-intent-benchmark          # Apache-2.0; 619 recordings, labels, a grammar
    python benchmarks/real_speech/orders.py speech-to-intent-benchmark --model openai/whisper-tiny.en

The language model is a 6-gram of the benchmark's own 431 sentences (`data/watson/corpus.txt`) and of others drawn from its
grammar (`data/rhino/coffee_maker.yaml`), written as Whisper writes: capitals, full stops, "12-ounce". Phrases are the grammar's
slot values. As in the benchmark an order counts if each slot of its label is found with the label's value; slots are looked up
in the transcript, the longest that fits. Noise is added as in its `src/mix.py`, from a fixed seed.

Weights are chosen for each way on the first recordings in quiet (`--tuning`), figures are those of the rest, with 95% bootstrap
intervals over recordings. The encoder runs once for each condition, decoders start from what it gave. Where the Hub can't be
reached, whisper_folder.py makes a folder with the same weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure

sys.path.insert(0, str(measure.ROOT))

import soundfile
import yaml
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor
from transformers.modeling_outputs import BaseModelOutput

from hf_ngpulm import NGramLM, NGramLogitsProcessor

NUMBERS = {"eight": "8", "twelve": "12", "sixteen": "16", "twenty": "20"}
LM_WEIGHTS, PHRASE_WEIGHTS = (0.2, 0.3, 0.5, 0.7), (0.5, 1.0, 2.0)
QUESTIONS = ("can ", "may ")
PROMPT = (
    "Coffee orders, such as: Can I get a small light roast single shot iced coffee with a bit of soy milk and some brown sugar?"
)
# Of `src/plot.py` there: mean of both noises, at 6, 12 and 24 dB.
PUBLISHED = {
    "Amazon Lex": {6: 0.755, 12: 0.845, 24: 0.875},
    "Google Dialogflow": {6: 0.665, 12: 0.77, 24: 0.825},
    "IBM Watson": {6: 0.61, 12: 0.885, 24: 0.96},
    "Microsoft LUIS": {6: 0.845, 12: 0.895, 24: 0.93},
    "Picovoice Rhino": {6: 0.935, 12: 0.98, 24: 0.99},
}


@dataclass
class Orders:
    """Recordings with their labels, and the benchmark's texts.

    Args:
        audio: samples at 16 kHz.
        slots: of each recording, by name.
        values: of each slot, all that the grammar has.
        sentences: the benchmark's own, and as many drawn from the grammar as asked for.
        noises: by name.
    """

    audio: list[np.ndarray]
    slots: list[dict[str, str]]
    values: dict[str, list[str]]
    sentences: list[str]
    noises: dict[str, np.ndarray]

    @classmethod
    def read(cls, folder: Path, drawn: int, most: int | None) -> Orders:
        labels = json.loads((folder / "data/label/label.json").read_text())
        paths = sorted((folder / "data/speech/clean").glob("*.wav"))
        random.Random(0).shuffle(paths)
        paths = paths[:most]
        grammar = yaml.safe_load((folder / "data/rhino/coffee_maker.yaml").read_text())["context"]
        own = (folder / "data/watson/corpus.txt").read_text().splitlines()
        noises = {path.stem: soundfile.read(path)[0] for path in sorted((folder / "data/noise").glob("*.wav"))}
        return cls(
            [soundfile.read(path, dtype="float32")[0] for path in paths],
            [{name: value.strip() for name, value in labels[path.name]["slots"].items()} for path in paths],
            grammar["slots"],
            [*own, *draw(grammar, drawn)],
            noises,
        )

    def found(self, transcript: str) -> dict[str, str]:
        """Return the slots of a transcript."""
        text = f" {plain(transcript)} "
        found = {}
        for name, values in self.values.items():
            there = [value for value in values if f" {value} " in text]
            if there:
                found[name] = max(there, key=len)
        return found

    def right(self, transcripts: list[str]) -> np.ndarray:
        """Return which orders are whole."""
        pairs = zip(self.slots, map(self.found, transcripts))
        return np.array([all(found.get(name) == value for name, value in slots.items()) for slots, found in pairs])

    def slot_f1(self, transcripts: list[str], part: slice) -> float:
        found = [set(self.found(text).items()) for text in transcripts[part]]
        wanted = [set(slots.items()) for slots in self.slots[part]]
        hits = sum(len(a & b) for a, b in zip(found, wanted))
        return 2 * hits / max(1, sum(map(len, found)) + sum(map(len, wanted)))

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


def as_whisper_writes(sentence: str) -> str:
    """Return a sentence as Whisper writes it."""
    mark = "?" if sentence.startswith(QUESTIONS) else "."
    for word, digits in NUMBERS.items():
        sentence = sentence.replace(f"{word} ounce", f"{digits}-ounce")
    return f" {sentence[0].upper()}{sentence[1:]}{mark}"


class Recogniser:
    """A Whisper, and what its encoder made of the recordings of one condition."""

    def __init__(self, name: str, orders: Orders, args: argparse.Namespace) -> None:
        self.processor = AutoProcessor.from_pretrained(name)
        self.model = AutoModelForSpeechSeq2Seq.from_pretrained(name, dtype=torch.float32).eval()
        texts = list(map(as_whisper_writes, orders.sentences))
        self.lm = NGramLM.train(texts, self.processor.tokenizer, order=6)
        self.phrases = sorted({value for values in orders.values.values() for value in values})
        self.batch_size, self.encoded = args.batch_size, []

    def encode(self, audio: list[np.ndarray]) -> None:
        self.encoded = []
        for first in range(0, len(audio), self.batch_size):
            inputs = self.processor(audio[first : first + self.batch_size], sampling_rate=16_000, return_tensors="pt")
            self.encoded.append(self.model.get_encoder()(inputs.input_features).last_hidden_state)

    def transcripts(self, way: str, lm_weight: float, phrase_weight: float, num_beams: int, most: int | None) -> list[str]:
        """Return transcripts of (at most so many of) the recordings."""
        settings: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": 120}
        tokenizer = self.processor.tokenizer
        if way == "prompt":
            settings["prompt_ids"] = self.processor.get_prompt_ids(PROMPT, return_tensors="pt")
        elif way != "none":
            phrases = (
                {"phrases": self.phrases, "phrase_weight": phrase_weight, "tokenizer": tokenizer} if "phrases" in way else {}
            )
            fuse = NGramLogitsProcessor(self.lm if "LM" in way else None, lm_weight, model=self.model, **phrases)
            settings["logits_processor"] = [fuse]
        found: list[str] = []
        for states in self.encoded[: most and -(-most // self.batch_size)]:
            tokens = self.model.generate(encoder_outputs=BaseModelOutput(states), **settings)
            found += tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return found[:most]


def choose(recogniser: Recogniser, orders: Orders, way: str, num_beams: int, tuning: int) -> tuple[float, float]:
    """Return the weights that get most orders of the tuning part whole."""
    grid = itertools.product(LM_WEIGHTS if "LM" in way else (0.0,), PHRASE_WEIGHTS if "phrases" in way else (0.0,))

    def right(weights: tuple[float, float]) -> int:
        return int(orders.right(recogniser.transcripts(way, *weights, num_beams, tuning)).sum())

    candidates = list(grid)
    return candidates[0] if len(candidates) == 1 else max(candidates, key=right)


def interval(right: np.ndarray) -> list[float]:
    means = np.random.default_rng(0).choice(right, (2000, len(right))).mean(1)
    return [float(np.quantile(means, bound)) for bound in (0.025, 0.975)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a clone of speech-to-intent-benchmark")
    parser.add_argument("--model", default="openai/whisper-tiny.en")
    parser.add_argument("--ways", nargs="+", default=["none", "prompt", "phrases", "LM", "LM + phrases"])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--decibels", type=float, nargs="*", default=[24, 12, 6], help="of noisy conditions")
    parser.add_argument("--drawn", type=int, default=5000, help="sentences from the grammar")
    parser.add_argument("--tuning", type=int, default=119, help="recordings that weights are chosen on")
    parser.add_argument("--most", type=int, help="take so many recordings only")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="real_orders", help="name of the result file")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    orders = Orders.read(args.data, args.drawn, args.most)
    recogniser = Recogniser(args.model, orders, args)
    conditions: list[tuple[str, float | None]] = [("quiet", None)]
    conditions += [(noise, decibels) for decibels in args.decibels for noise in orders.noises]
    chosen: dict[tuple[str, int], tuple[float, float]] = {}
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for noise, decibels in conditions:
            recogniser.encode(orders.audio if decibels is None else orders.noisy(noise, decibels))
            for num_beams, way in itertools.product(args.beams, args.ways):
                if (way, num_beams) not in chosen:
                    chosen[way, num_beams] = choose(recogniser, orders, way, num_beams, args.tuning)
                begin = time.process_time()
                found = recogniser.transcripts(way, *chosen[way, num_beams], num_beams, None)
                seconds = time.process_time() - begin
                part = slice(args.tuning, None)
                right = orders.right(found)[part]
                row = {"noise": noise, "decibels": decibels, "way": way, "num_beams": num_beams, "orders": len(right)}
                row |= dict(zip(("lm_weight", "phrase_weight"), chosen[way, num_beams]))
                row |= {"accuracy": float(right.mean()), "interval": interval(right)}
                row |= {"slot_f1": orders.slot_f1(found, part), "decoder_seconds": seconds}
                rows.append(row)
                print(json.dumps(row), flush=True)
                measure.save(args.name, {"published": PUBLISHED, "rows": rows}, args.out)
    header = ["noise", "decibels", "way", "num_beams", "lm_weight", "phrase_weight", "accuracy", "slot_f1"]
    print(measure.table(header, [[row[name] for name in header] for row in rows]))
    print("results in", measure.save(args.name, {"published": PUBLISHED, "rows": rows}, args.out))


if __name__ == "__main__":
    main()
