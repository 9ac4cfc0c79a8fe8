"""A Whisper with what this project gives it and without, on recordings of people: what `orders.py` and its siblings share."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from corpora import Clip
from recognisers import Heard, Recogniser
from transformers.utils import logging

from hf_ngpulm import NGramLM

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
        """Return the recordings with noise; called only if a condition has some."""

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


class Tasked:
    """A Whisper, and the language models of a task."""

    def __init__(self, task: Task, args: argparse.Namespace) -> None:
        self.task, self.args, self.recogniser = task, args, Recogniser(args.model)
        self.prompt = self.recogniser.processor.get_prompt_ids(task.prompt, return_tensors="pt")
        self.outputs: list[str] = []

    def hear(self, audio: list[np.ndarray]) -> Heard:
        return self.recogniser.hear([Clip(samples, "") for samples in audio])

    def transcripts(self, heard: Heard, way: str, weights: Weights, num_beams: int) -> list[str]:
        """Return transcripts of what the encoder made."""
        first, *others = way.split(" + ")
        settings: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": self.args.max_new_tokens, "max_length": None}
        if first == "prompt":
            settings["prompt_ids"] = self.prompt
        if text_of(first) in self.task.texts:
            settings |= {"lm": self.lm(first), "lm_weight": weights[0], "score_eos": self.args.score_eos}
        if "phrases" in (first, *others):
            settings |= {"phrases": self.task.phrases, "phrase_weight": weights[1]}
        return heard.decode(self.recogniser.decoder(**settings), self.args.batch_size)

    @functools.cache  # noqa: B019
    def lm(self, name: str) -> NGramLM:
        if name.endswith(CONTINUED):
            return self.lm(name.removesuffix(CONTINUED)).continued()
        texts, adapted, transcripts = name.partition(", adapted")
        style = {"style_of": self.recogniser.processor} if adapted else {}
        style |= {"outputs": self.outputs} if transcripts else {}
        return NGramLM.train(self.task.texts[texts], self.recogniser.tokenizer, order=6, **style)

    def choose(self, heard: Heard, way: str, num_beams: int, lm_weight: float | None) -> Weights:
        """Return the weights that get most of some recordings right; `lm_weight` is that of the LM alone, if it is known."""
        of_lm = (0.0,) if not way.startswith("LM") else LM_WEIGHTS if lm_weight is None else (lm_weight,)
        candidates = list(itertools.product(of_lm, PHRASE_WEIGHTS if "phrases" in way else (0.0,)))

        def quality(weights: Weights) -> tuple[int, float]:
            found = self.transcripts(heard, way, weights, num_beams)
            return int(self.task.right(found).sum()), next(iter(self.task.figures(found, slice(None)).values()))

        return candidates[0] if len(candidates) == 1 else max(candidates, key=quality)


def text_of(way: str) -> str:
    """Return the name of the text that a way's LM is made of."""
    return way.removesuffix(CONTINUED).partition(", adapted")[0]


def interval(right: np.ndarray) -> list[float]:
    """Return the bounds of a share's 95% interval, by drawing recordings."""
    means = np.random.default_rng(0).choice(right, (2000, len(right))).mean(1)
    return [float(np.quantile(means, bound)) for bound in (0.025, 0.975)]


def arguments(doc: str | None, name: str, **options: Any) -> argparse.Namespace:
    about = {
        "ways": "of: %(default)s; other LMs of the task by name, also adapted, and continued",
        "tuning": "recordings that weights are chosen on, not counted",
        "weights": {"nargs": 2, "help": "of LMs and of phrases, where none shall be chosen"},
        "most": "take so many recordings only",
        "fewer": "take so many with noise and with beams",
        "score_eos": {"default": None, "help": "have LMs score the end of transcripts"},
        "transcripts": "file to write all transcripts to, as JSON lines",
        "joined": "orders in a recording",
        "decibels": "of noise, or quiet",
        "drawn": "sentences from the grammar, or numbers, that the LM is made of",
        "novels": {"required": True, "help": "text files of Project Gutenberg's"},
        "book": {"required": True, "help": "such a file of the novel that is read"},
    }
    parser = measure.arguments(
        doc, name, None, about, model="openai/whisper-tiny.en", beams=(1, 5), most=int, fewer=int, batch_size=16,
        score_eos=False, transcripts=Path, **{"ways": WAYS, "tuning": 60, "weights": (float,), **options},
    )  # fmt: skip
    parser.add_argument("data", type=Path, help="a clone of the data's repository")
    args = parser.parse_args()
    args.max_new_tokens = 120 if getattr(args, "joined", 1) == 1 else 200
    return args


def measured(task: Task, conditions: list[tuple[str, float | None]], args: argparse.Namespace, more: dict[str, Any]) -> None:
    """Save a row for each condition, way and number of beams as soon as it is known, and print all.

    Args:
        conditions: names of noises and decibels, None for quiet; weights are chosen on recordings in all of them by turns.
        more: what else goes into the result file.
    """
    for first, *others in (way.split(" + ") for way in args.ways):
        if text_of(first) not in (*WAYS[:3], *task.texts) or others not in ([], ["phrases"]):
            raise SystemExit(f"--ways: {first!r} is none of {[*WAYS[:3], *task.texts]}, or more than ' + phrases' follows it")
    torch.set_num_threads(args.threads)
    logging.set_verbosity_error()
    tasked, count, rows = Tasked(task, args), args.tuning, list[dict[str, Any]]()
    chosen: dict[tuple[str, int], Weights] = {}
    kept: dict[Any, Heard] = {}
    with torch.inference_mode():
        audio = {(n, level): task.audio if level is None else task.noisy(n, level) for n, level in conditions}
        turns = itertools.cycle(audio.values())
        tuning = tasked.hear([next(turns)[number] for number in range(0 if args.weights else count)])
        if any(way.endswith("to transcripts") for way in args.ways):
            tasked.outputs = tasked.transcripts(tasked.hear(task.audio[:count]), "none", (0.0, 0.0), 1)
        for num_beams, condition, way in itertools.product(args.beams, conditions, args.ways):
            most = args.fewer if args.fewer and (num_beams > 1 or condition[1] is not None) else len(task.audio)
            if (condition, most) not in kept:
                kept[condition, most] = tasked.hear(audio[condition][count:most])
            first, *_ = way.split(" + ")
            if args.weights:
                of_lm, of_phrases = args.weights
                weights = (of_lm * (text_of(first) in task.texts), of_phrases * ("phrases" in way))
            elif (way, num_beams) in chosen:
                weights = chosen[way, num_beams]
            else:
                weights = tasked.choose(tuning, way, num_beams, chosen.get((first, num_beams), (None,))[0])
            chosen[way, num_beams] = weights
            row = {"noise": condition[0], "decibels": condition[1], "way": way, "num_beams": num_beams}
            row |= dict(zip(("lm_weight", "phrase_weight"), weights))
            begin = measure.now()
            found = tasked.transcripts(kept[condition, most], way, weights, num_beams)
            row["decoder_seconds"] = measure.now() - begin
            all_found = [""] * count + found
            right = task.right(all_found)[count:]
            row |= {"recordings": len(right), "right": float(right.mean()), "interval": interval(right)}
            rows.append({**row, **task.figures(all_found, slice(count, count + len(found)))})
            print(json.dumps(rows[-1]), flush=True)
            measure.save(args.name, {**more, "rows": rows}, args.out)
            if args.transcripts:
                with args.transcripts.open("w" if len(rows) == 1 else "a") as file:
                    file.write(json.dumps({**row, "transcripts": found}) + "\n")
    measure.report(rows, args, {**more, "rows": rows})
