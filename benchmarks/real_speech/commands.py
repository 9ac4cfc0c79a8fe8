"""Orders of coffee by a grammar: how many are understood, and how often other speech is taken for an order.

    python benchmarks/real_speech/commands.py speech-to-intent-benchmark --model run/ctc \\
        --other an4.jsonl speechocean.jsonl --every 5 --most 100 --fewer 60 --decibels quiet 6 --name real_commands_ctc

The grammar is the benchmark's own (`data/rhino/coffee_maker.yaml`); nothing is trained or tuned. Recordings and noise are those
of tasks.py, whose docstring has the sources. An order is whole if its slots are those of the label. `--other` names manifests
(manifests.py), whose recordings of the split "test" aren't orders: a false accept is one that is understood. The table has the
modes "free" (no search in the grammar), "strict" (which accepts everything) and "reject" with its default; the result file also
the confidence of every recording, and the curve of misses over false accepts an hour.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from corpora import RATE
from tasks import Orders, interval
from transformers import pipeline

from hf_ngpulm import CTCDecoder, Grammar, GrammarDecoder, TransducerDecoder
from hf_ngpulm.decoding.families import is_ctc, is_transducer
from hf_ngpulm.sound.files import read_audio

MISSES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)


class Understander:
    """Recordings understood by a grammar. CTC models and transducers hear each recording once for all modes."""

    def __init__(self, model: str, grammar: Grammar, batch_size: int, num_beams: int) -> None:
        self.asr = pipeline("automatic-speech-recognition", model=model)
        self.grammar, self.batch_size, self.num_beams = grammar, batch_size, num_beams
        self.decoder = None
        if is_ctc(self.asr.model):
            self.decoder = CTCDecoder(self.asr.tokenizer)
        elif is_transducer(self.asr.model):
            self.decoder = TransducerDecoder(self.asr.model, self.asr.tokenizer)

    def hear(self, audio: list[np.ndarray]) -> list[Any]:
        """Return what `understand` takes: frames, or the recordings themselves for attention decoders."""
        inputs = [{"raw": samples, "sampling_rate": RATE} for samples in audio]
        if self.decoder is None:
            return inputs
        return [frames.float()[None] for frames in self.asr.frames(inputs, batch_size=self.batch_size)]

    def understand(self, heard: list[Any], mode: str) -> list[dict[str, Any]]:
        """Return what recordings mean; in the mode "reject" whatever the confidence."""
        sensitivity = 1.0 if mode == "reject" else None
        if self.decoder is not None:
            understand = GrammarDecoder(self.decoder, self.grammar, mode, sensitivity=sensitivity)
            found = [understand(frames)[0].as_dict() for frames in heard]
        else:
            settings = {"grammar": self.grammar, "grammar_mode": mode, "sensitivity": sensitivity, "num_beams": self.num_beams}
            # Copies, as the pipeline takes its inputs apart.
            found = list(self.asr([dict(each) for each in heard], batch_size=self.batch_size, **settings))
        return [{**each, "slots": {slot["name"]: slot["value"] for slot in each["slots"]}} for each in found]


def curve(of_orders: list[float], of_others: list[float], hours: float) -> list[dict[str, float]]:
    """Return false accepts an hour at shares of missed orders, by confidence."""
    rows = []
    for missed in MISSES:
        threshold = float(np.quantile(of_orders, missed, method="lower"))
        accepted = sum(confidence >= threshold and confidence > 0 for confidence in of_others)
        rows.append({"missed": missed, "threshold": threshold, "false_accepts_an_hour": accepted / hours})
    return rows


def main() -> None:
    about = {
        "most": "take so many orders only",
        "fewer": "take so many with noise",
        "other": "manifests of speech that isn't an order",
        "every": "take every n-th of the other recordings",
    }
    decibels = ("quiet", "6", "12", "24")
    options = {"model": "openai/whisper-tiny.en", "most": int, "fewer": int, "batch_size": 8, "beams": 1, "every": 1}
    parser = measure.arguments(
        __doc__, "real_commands", None, about, **options, decibels=decibels, noise="kitchen", other=(Path,)
    )
    parser.add_argument("data", type=Path, help="a clone of the benchmark's repository")
    parser.set_defaults(tuning=0, joined=1, drawn=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    orders = Orders(args)
    grammar = Grammar.from_rhino(args.data / "data/rhino/coffee_maker.yaml")
    recogniser = Understander(args.model, grammar, args.batch_size, args.beams)
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {"rows": rows, "confidence": {}}
    others = [
        read_audio(path.parent / line["audio"], RATE)
        for path in args.other or ()
        for line in [line for line in map(json.loads, path.read_text().splitlines()) if line["split"] == "test"][:: args.every]
    ]
    hours = sum(map(len, others)) / RATE / 3600
    of_others = [each["confidence"] for each in recogniser.understand(recogniser.hear(others), "reject")]
    results["confidence"]["other"] = of_others
    for name in args.decibels:
        most = args.fewer if args.fewer and name != "quiet" else len(orders.audio)
        audio = orders.audio if name == "quiet" else orders.noisy(args.noise, float(name))
        heard = recogniser.hear(audio[:most])
        for mode in ("free", "strict", "reject"):
            begin = measure.now()
            found = recogniser.understand(heard, mode)
            took = measure.now() - begin
            confident = np.array([each["confidence"] >= 0.5 for each in found])
            whole = np.array([each["slots"] == label for each, label in zip(found, orders.slots)]) & confident
            row: dict[str, Any] = {"decibels": name, "mode": mode, "recordings": len(whole), "whole": float(whole.mean())}
            row |= {"interval": interval(whole), "understood": float(confident.mean()), "seconds": took}
            if mode == "reject":
                results["confidence"][name] = [each["confidence"] for each in found]
                row |= {"false_accepts": sum(confidence >= 0.5 for confidence in of_others), "hours": hours}
                row["curve"] = curve(results["confidence"][name], of_others, hours) if others else []
            rows.append(row)
            print(json.dumps(row), flush=True)
            path = measure.save(args.name, results, args.out)
    header = ["decibels", "mode", "recordings", "whole", "understood"]
    print(measure.table(header, [[row[name] for name in header] for row in rows]))
    print("results in", path)


if __name__ == "__main__":
    main()
