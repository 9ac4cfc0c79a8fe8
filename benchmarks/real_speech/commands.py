"""Orders of coffee by a grammar: how many are understood, and how often other speech is taken for an order.

    python benchmarks/real_speech/commands.py speech-to-intent-benchmark --model run/ctc \\
        --other an4.jsonl speechocean.jsonl --frames frames_an4 frames_so --most 619 --fewer 80 --name real_commands_ctc

The grammar is the benchmark's own (`data/rhino/coffee_maker.yaml`); nothing is trained on orders. Recordings and noise are
those of tasks.py, whose docstring has the sources. An order is whole if its slots are those of the label. `--other` names
manifests (manifests.py), whose recordings aren't orders: a false accept is one that is understood. `--frames` are folders of
examples/train_on_whisper/features.py; with them only their recordings are taken, of all splits. Models of `run/` have learned
the split "train", so false accepts of "test" are told apart.

Each recording is searched once, in the mode "reject" whatever its confidence; the other modes follow from that. "looked up" is
the free transcript, in which each slot's values are looked up as in tasks.py, "free" the free transcript if it happens to be in
the grammar, "strict" the best sentence of the grammar, "reject" the same if the evidence is enough. With `--lm` orders are
heard again beside an LM of the benchmark's own sentences and others drawn from its grammar. The result file has the evidence
of orders, and the highest of other speech.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from families import Frames, corpora, measure
from recognisers import Heard, Recogniser
from tasks import Orders
from transformers import pipeline

from hf_ngpulm import Grammar, GrammarDecoder, NGramLM
from hf_ngpulm.decoding.understanding import EVIDENCE

Row = dict[str, Any]
MISSES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
ALWAYS = {"sensitivity": 1.0, "explain": True}
NOWHERE = -99.0  # evidence where no sentence of the grammar was found
HIGHEST = 200  # recordings of other speech whose evidence is kept


class Understander:
    """Recordings understood by a grammar."""

    def __init__(self, model: str, grammar: Grammar, num_beams: int, batch_size: int) -> None:
        self.recogniser, self.grammar, self.batch_size = Recogniser(model), grammar, batch_size
        self.family = self.recogniser.family.lower()
        self.bound, self.of_lm = EVIDENCE[self.family].middle, dict[str, NGramLM]()
        self.compiled = grammar.compiled(self.recogniser.tokenizer)
        if self.family == "attention":
            settings: Row = {"grammar": grammar, "num_beams": num_beams, **ALWAYS}
            self.asr = pipeline("automatic-speech-recognition", model=model, batch_size=batch_size, **settings)

    def understood(self, clips: list[corpora.Clip], frames: Any = None) -> list[Row]:
        """Return what recordings mean if they are understood at all."""
        if self.family == "attention":
            found = list(self.asr([{"raw": clip.audio, "sampling_rate": corpora.RATE} for clip in clips], **self.of_lm))
        else:
            decoder = GrammarDecoder(self.recogniser.decoder(**self.of_lm), self.grammar, **ALWAYS)
            heard: Heard = self.recogniser.hear(clips, self.batch_size, frames)
            batches = heard.batches(self.batch_size)
            of_all = {n: each.as_dict() for numbers, *rows in batches for n, each in zip(numbers, decoder(*rows))}
            found = [of_all[number] for number in range(len(clips))]
        return [self._meant(each) for each in found]

    def _meant(self, found: Row) -> Row:
        inside = (found["explanation"]["readings"] or [{"slots": None, "text": ""}])[0]
        free = self.compiled.reading(self.recogniser.tokenizer(found["free_text"], add_special_tokens=False).input_ids)
        return {
            "evidence": found["explanation"].get("evidence", NOWHERE),
            "free": None if free is None else {slot[0]: slot[1] for slot in free.slots},
            "free_text": found["free_text"],
            "strict": inside["slots"],
            "text": inside["text"],
        }


def of_orders(orders: Orders, understander: Understander, args: Any, evidence: dict[str, list[float]]) -> Iterator[Row]:
    """Yield the rows of each noise, without and with an LM, and mode."""
    lms = [{}]
    if args.lm:
        texts = orders.texts["LM" if understander.family == "attention" else "LM as the grammar writes"]
        lms.append({"lm": NGramLM.train(texts, understander.recogniser.tokenizer, order=6)})
    for name, understander.of_lm in itertools.product(args.decibels, lms):
        most = args.fewer if args.fewer and name != "quiet" else len(orders.audio)
        audio = orders.audio if name == "quiet" else orders.noisy("kitchen", float(name))
        begin = measure.now()
        found = understander.understood([corpora.Clip(samples, "") for samples in audio[:most]])
        lm = "LM" if understander.of_lm else ""
        row: Row = {"decibels": name, "lm": lm, "beams": args.beams, "recordings": most, "seconds": measure.now() - begin}
        evidence[f"{name} {lm}".strip()] = sorted((each["evidence"] for each in found), reverse=True)
        accepted = np.array([each["evidence"] >= understander.bound for each in found])
        right = {kind: np.array([e[kind] == label for e, label in zip(found, orders.slots)]) for kind in ("free", "strict")}
        right |= {"looked up": orders.right([each["free_text"] for each in found]), "reject": right["strict"] & accepted}
        for mode, whole in right.items():
            row |= {"mode": mode, "whole": float(whole.mean()), "interval": measure.interval(whole)}
            yield row | {"understood": float(accepted.mean())} if mode == "reject" else dict(row)


def of_others(understander: Understander, args: Any, evidence: dict[str, list[float]]) -> Row:
    """Return the false accepts at the default, those of recordings that no model has learned, and those at shares of missed
    orders."""
    frames = Frames(args.frames) if args.frames else None
    clips = [clip for path in args.other for clip in corpora.load(path) if frames is None or clip.path in frames]
    random.Random(0).shuffle(clips)
    clips = clips[:: args.every]
    found = np.array([each["evidence"] for each in understander.understood(clips, frames)])
    hours, unseen = np.array([clip.seconds for clip in clips]) / 3600, np.array([clip.split == "test" for clip in clips])
    accepted = found >= understander.bound
    row: Row = {"recordings": len(clips), "hours": hours.sum(), "accepted": int(accepted.sum())}
    row |= {"without rejection": int((found > NOWHERE).sum())}
    row |= {"unseen_hours": hours[unseen].sum(), "unseen_accepted": int(accepted[unseen].sum())}
    for name in args.decibels:
        bounds = [float(np.quantile(evidence[name], missed, method="lower")) for missed in MISSES]
        taken = [float(((found >= bound) & (found > NOWHERE)).sum() / hours.sum()) for bound in bounds]
        row[name] = [dict(zip(("missed", "threshold", "false_accepts_an_hour"), of)) for of in zip(MISSES, bounds, taken)]
    evidence["other"] = sorted(found.tolist(), reverse=True)[:HIGHEST]
    return row


def main() -> None:
    about = {
        "most": "take so many orders only",
        "fewer": "take so many with noise",
        "other": "manifests of speech that isn't an order",
        "every": "take every n-th of the other recordings",
        "lm": "also beside a language model",
        "frames": "folders of Whisper's frames of the other recordings",
    }
    options: Row = {"model": "openai/whisper-tiny.en", "most": int, "fewer": int, "batch_size": 8, "beams": 1, "every": 1}
    options |= {"lm": False, "frames": (Path,), "other": (Path,), "decibels": ("quiet", "6", "12", "24")}
    parser = measure.arguments(__doc__, "real_commands", None, about, **options)
    parser.add_argument("data", type=Path, help="a clone of the benchmark's repository")
    parser.set_defaults(tuning=0, joined=1, drawn=5000)
    args = parser.parse_args()
    grammar = Grammar.from_rhino(args.data / "data/rhino/coffee_maker.yaml")
    understander, evidence = Understander(args.model, grammar, args.beams, args.batch_size), dict[str, list[float]]()
    facts: Row = {"middle": understander.bound, "evidence": evidence}
    with torch.inference_mode():
        rows = measure.report(of_orders(Orders(args), understander, args, evidence), args, facts)
        understander.of_lm = {}
        if args.other:
            facts["others"] = [of_others(understander, args, evidence)]
            print(measure.table(facts["others"]))
            measure.save(args.name, {**facts, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
