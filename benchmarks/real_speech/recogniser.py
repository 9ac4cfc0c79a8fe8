"""A Whisper with what this project gives it and without, on recordings of people: what `orders.py` and `digits.py` share."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure

sys.path.insert(0, str(measure.ROOT))

from torch import Tensor
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from hf_ngpulm import NGramLM
from hf_ngpulm.generation import seq2seq_generate

WAYS = ("none", "prompt", "phrases", "LM", "LM + phrases")
CONTINUED = ", continued"
LM_WEIGHTS, PHRASE_WEIGHTS = (0.3, 0.5, 0.7, 1.0, 1.5), (0.25, 0.5, 1.0, 2.0)
Weights = tuple[float, float]


class Task(Protocol):
    """Recordings, and what is right of their transcripts. Tuning is done on the first recordings."""

    audio: list[np.ndarray]  # at 16 kHz
    texts: dict[str, list[str]]  # of language models, by name; that of "LM" in Whisper's style
    phrases: list[str]
    prompt: str

    def noisy(self, noise: str, decibels: float) -> list[np.ndarray]:
        """Return the recordings with noise."""

    def right(self, transcripts: list[str]) -> np.ndarray:
        """Return which of the first recordings are right as a whole, bool."""

    def figures(self, transcripts: list[str], part: slice) -> dict[str, float]:
        """Return what else there is to say of a part of the recordings; by the first, weights that get as many right differ."""


def sorted_by_size(paths: list[Path], args: argparse.Namespace) -> list[Path]:
    """Return as many files as asked for, those that are recognised together of similar sizes."""
    most = len(paths) if args.most is None else min(args.most, len(paths))
    bounds = [0, args.tuning, min(args.fewer or most, most), most]
    if bounds != sorted(bounds) or args.tuning == bounds[2]:
        raise SystemExit(f"of {bounds[2]} recordings (--most, --fewer) --tuning {args.tuning} leaves none to count; take fewer")
    return [path for part in itertools.pairwise(bounds) for path in sorted(paths[slice(*part)], key=lambda p: p.stat().st_size)]


class Recogniser:
    """A model, and a language model of a task.

    Args:
        name: of a Whisper: a Hub id or a folder.
        task: what it is for.
        batch_size: recordings at once.
        score_eos: whether LMs score the end of transcripts; None: the default.
    """

    lms: dict[str, NGramLM]

    def __init__(self, name: str, task: Task, batch_size: int, score_eos: bool | None = None) -> None:
        logging.set_verbosity_error()
        self.processor = AutoProcessor.from_pretrained(name)
        self.model = AutoModelForSpeechSeq2Seq.from_pretrained(name, dtype=torch.float32).eval()
        self.texts, self.lms = task.texts, {}
        self.outputs: list[str] = []
        self.prompt = self.processor.get_prompt_ids(task.prompt, return_tensors="pt")
        self.phrases, self.batch_size, self.score_eos = task.phrases, batch_size, score_eos

    def encode(self, audio: list[np.ndarray]) -> list[Tensor]:
        """Return what the encoder makes of recordings: `[B, 1500, H]` for each batch."""
        found = []
        for first in range(0, len(audio), self.batch_size):
            inputs = self.processor(audio[first : first + self.batch_size], sampling_rate=16_000, return_tensors="pt")
            found.append(self.model.get_encoder()(inputs.input_features).last_hidden_state)
        return found

    def transcripts(self, encoded: list[Tensor], way: str, weights: Weights, num_beams: int) -> list[str]:
        """Return transcripts of what the encoder made."""
        parts = way.split(" + ")
        settings: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": 120, "max_length": None}
        if "prompt" in parts:
            settings["prompt_ids"] = self.prompt
        if text_of(parts[0]) in self.texts:
            settings |= {"lm": self.lm(parts[0]), "lm_weight": weights[0], "score_eos": self.score_eos}
        if "phrases" in parts:
            settings |= {"phrases": self.phrases, "phrase_weight": weights[1], "processor": self.processor}
        found: list[str] = []
        for states in encoded:
            outputs = BaseModelOutput(states)
            tokens = self.model.generate(encoder_outputs=outputs, custom_generate=seq2seq_generate, **settings)
            found += self.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return found

    def lm(self, name: str) -> NGramLM:
        if name not in self.lms:
            if name.endswith(CONTINUED):
                return self.lms.setdefault(name, self.lm(name.removesuffix(CONTINUED)).continued())
            texts, adapted, transcripts = name.partition(", adapted")
            style = {"style_of": self.processor} if adapted else {}
            style |= {"outputs": self.outputs} if transcripts else {}
            self.lms[name] = NGramLM.train(self.texts[texts], self.processor.tokenizer, order=6, **style)
        return self.lms[name]

    def choose(self, task: Task, encoded: list[Tensor], way: str, num_beams: int, lm_weight: float | None) -> Weights:
        """Return the weights that get most of some recordings right; `lm_weight` is that of the LM alone, if it is known."""
        of_lm = (0.0,) if not way.startswith("LM") else LM_WEIGHTS if lm_weight is None else (lm_weight,)
        candidates = list(itertools.product(of_lm, PHRASE_WEIGHTS if "phrases" in way else (0.0,)))

        def quality(weights: Weights) -> tuple[int, float]:
            found = self.transcripts(encoded, way, weights, num_beams)
            quality = int(task.right(found).sum()), next(iter(task.figures(found, slice(None)).values()))
            print(way, num_beams, weights, quality, file=sys.stderr, flush=True)
            return quality

        return candidates[0] if len(candidates) == 1 else max(candidates, key=quality)


def text_of(way: str) -> str:
    """Return the name of the text that a way's LM is made of."""
    return way.removesuffix(CONTINUED).partition(", adapted")[0]


def interval(right: np.ndarray) -> list[float]:
    """Return the bounds of a share's 95% interval, by drawing recordings."""
    means = np.random.default_rng(0).choice(right, (2000, len(right))).mean(1)
    return [float(np.quantile(means, bound)) for bound in (0.025, 0.975)]


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a clone of the data's repository")
    parser.add_argument("--model", default="openai/whisper-tiny.en")
    parser.add_argument(
        "--ways", nargs="+", default=WAYS, help="of: %(default)s; other LMs of the task by name, also adapted, and continued"
    )
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--tuning", type=int, default=60, help="recordings that weights are chosen on, not counted")
    parser.add_argument("--weights", type=float, nargs=2, help="of LMs and of phrases, where none shall be chosen")
    parser.add_argument("--most", type=int, help="take so many recordings only")
    parser.add_argument("--fewer", type=int, help="take so many with noise and with beams")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--score-eos", action="store_true", default=None, help="have LMs score the end of transcripts")
    parser.add_argument("--transcripts", type=Path, help="file to write all transcripts to, as JSON lines")
    parser.add_argument("--rescore", type=Path, help="a file with transcripts: recognise nothing, score these")
    parser.add_argument("--name", required=False, help="name of the result file")
    parser.add_argument("--out", type=Path, help="folder of the result file")
    return parser


def measured(
    task: Task, conditions: list[tuple[str, float | None]], args: argparse.Namespace, more: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a row for each condition, way and number of beams; each is saved as soon as it is known.

    Args:
        conditions: names of noises and decibels, None for quiet; weights are chosen on recordings in all of them by turns.
        more: what else goes into the result file.
    """
    if args.rescore:
        rows = [rescored(task, json.loads(line), args.tuning) for line in args.rescore.read_text().splitlines()]
        measure.save(args.name, {**more, "rows": rows}, args.out)
        return shown(rows)
    for first, *others in (way.split(" + ") for way in args.ways):
        if text_of(first) not in (*WAYS[:3], *task.texts) or others not in ([], ["phrases"]):
            raise SystemExit(f"--ways: {first!r} is none of {[*WAYS[:3], *task.texts]}, or more than ' + phrases' follows it")
    if args.transcripts:
        args.transcripts.write_text("")
    torch.set_num_threads(args.threads)
    recogniser = Recogniser(args.model, task, args.batch_size, args.score_eos)
    chosen: dict[tuple[str, int], Weights] = {}
    rows: list[dict[str, Any]] = []
    kept: dict[tuple[tuple[str, float | None], int], list[Tensor]] = {}
    with torch.inference_mode():
        heard = [task.audio if decibels is None else task.noisy(noise, decibels) for noise, decibels in conditions]
        turns = itertools.cycle(heard)
        tuning = recogniser.encode([next(turns)[number] for number in range(0 if args.weights else args.tuning)])
        if any(way.endswith("to transcripts") for way in args.ways):
            recogniser.outputs = recogniser.transcripts(recogniser.encode(task.audio[: args.tuning]), "none", (0.0, 0.0), 1)
        for num_beams, condition in itertools.product(args.beams, conditions):
            noise, decibels = condition
            most = args.fewer if args.fewer and (num_beams > 1 or decibels is not None) else len(task.audio)
            if (condition, most) not in kept:
                kept[condition, most] = recogniser.encode(heard[conditions.index(condition)][args.tuning : most])
            encoded = kept[condition, most]
            for way in args.ways:
                if args.weights:
                    parts = way.split(" + ")
                    used = text_of(parts[0]) in task.texts, "phrases" in parts
                    chosen[way, num_beams] = (args.weights[0] * used[0], args.weights[1] * used[1])
                elif (way, num_beams) not in chosen:
                    known = chosen.get((way.split(" + ")[0], num_beams), (None,))[0]
                    chosen[way, num_beams] = recogniser.choose(task, tuning, way, num_beams, known)
                begin = time.process_time()
                found = recogniser.transcripts(encoded, way, chosen[way, num_beams], num_beams)
                seconds = time.process_time() - begin
                row = {"noise": noise, "decibels": decibels, "way": way, "num_beams": num_beams, "decoder_seconds": seconds}
                row |= dict(zip(("lm_weight", "phrase_weight"), chosen[way, num_beams]))
                row = rescored(task, {**row, "transcripts": found}, args.tuning)
                rows.append(row)
                print(json.dumps(row), flush=True)
                measure.save(args.name, {**more, "rows": rows}, args.out)
                if args.transcripts:
                    with args.transcripts.open("a") as file:
                        file.write(json.dumps({**row, "transcripts": found}) + "\n")
    return shown(rows)


def rescored(task: Task, row: dict[str, Any], tuning: int) -> dict[str, Any]:
    """Return a row with the figures of its transcripts, which are those of the recordings after the tuning ones."""
    transcripts = [""] * tuning + row.pop("transcripts")
    part = slice(tuning, len(transcripts))
    right = task.right(transcripts)[part]
    figures = task.figures(transcripts, part)
    return {**row, "recordings": len(right), "right": float(right.mean()), "interval": interval(right), **figures}


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    header = ["noise", "decibels", "way", "num_beams", "recordings", "lm_weight", "phrase_weight", "right"]
    print(measure.table(header, [[row[name] for name in header] for row in rows]))
    return rows
