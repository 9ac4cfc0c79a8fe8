"""Orders of coffee by a grammar: how many are understood, and how often other speech is taken for an order.

    python benchmarks/real_speech/commands.py speech-to-intent-benchmark --model openai/whisper-tiny.en --other an4.jsonl ...

The grammar is the benchmark's own (`data/rhino/coffee_maker.yaml`); nothing is trained or tuned. Recordings and noise are those
of orders.py, whose docstring has the sources. An order is whole if its slots are those of the label. `--other` names manifests
(manifests.py), whose recordings of the split "test" aren't orders: a false accept is one that is understood. The table has the
mode "strict", which accepts everything, and "reject" with its default; the result file the evidence of every recording, and the
curve of misses over false accepts an hour.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from corpora import RATE
from orders import Orders
from task import arguments, interval
from transformers import pipeline

from hf_ngpulm import Grammar
from hf_ngpulm.sound.files import read_audio

MISSES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)


def understandings(asr: Any, audio: list[np.ndarray], settings: dict[str, Any], batch_size: int) -> list[dict[str, Any]]:
    """Return what a pipeline understands, with the evidence."""
    inputs = ({"raw": samples, "sampling_rate": RATE} for samples in audio)
    found = []
    for result in asr(inputs, batch_size=batch_size, **settings):
        slots = {slot["name"]: slot["value"] for slot in result["slots"]}
        found.append({"text": result["text"], "understood": result["understood"], "slots": slots,
                      "confidence": result["confidence"]})  # fmt: skip
    return found


def curve(of_orders: list[float], of_others: list[float], hours: float) -> list[dict[str, float]]:
    """Return false accepts an hour at shares of missed orders, by confidence."""
    rows = []
    for missed in MISSES:
        threshold = float(np.quantile(of_orders, missed, method="lower"))
        accepted = sum(confidence >= threshold and confidence > 0 for confidence in of_others)
        rows.append({"missed": missed, "threshold": threshold, "false_accepts_an_hour": accepted / hours})
    return rows


def main() -> None:
    parser = arguments(__doc__, "real_commands")
    parser.add_argument("--decibels", nargs="+", default=["quiet", "6", "12", "24"], help="of noise, or quiet")
    parser.add_argument("--noise", default="kitchen")
    parser.add_argument("--other", nargs="+", type=Path, default=[], help="manifests of speech that isn't an order")
    parser.add_argument("--every", type=int, default=1, help="take every n-th of the other recordings")
    parser.set_defaults(tuning=0, joined=1, drawn=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    orders = Orders.read(args.data, args)
    grammar = Grammar.from_rhino(args.data / "data/rhino/coffee_maker.yaml")
    asr = pipeline("automatic-speech-recognition", model=args.model)
    beams = {"num_beams": args.beams[0]}
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {"rows": rows, "evidence": {}}
    others, seconds = [], 0.0
    for path in args.other:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for line in [line for line in lines if line["split"] == "test"][:: args.every]:
            others.append(read_audio(path.parent / line["audio"], RATE))
            seconds += len(others[-1]) / RATE
    random.Random(0).shuffle(others)
    heard = understandings(asr, others, {"grammar": grammar, **beams}, args.batch_size) if others else []
    results["evidence"]["other"] = [each["confidence"] for each in heard]
    for name in args.decibels:
        most = args.fewer if args.fewer and name != "quiet" else len(orders.audio)
        audio = orders.audio if name == "quiet" else orders.noisy(args.noise, float(name))
        for mode in ("strict", "reject"):
            begin = measure.now()
            found = understandings(asr, audio[:most], {"grammar": grammar, "grammar_mode": mode, **beams}, args.batch_size)
            took = measure.now() - begin
            whole = np.array([each["understood"] and _right(each["slots"], label) for each, label in zip(found, orders.slots)])
            row: dict[str, Any] = {"decibels": name, "mode": mode, "recordings": len(whole), "whole": float(whole.mean())}
            row |= {"interval": interval(whole), "understood": float(np.mean([each["understood"] for each in found]))}
            row |= {"seconds": took}
            if mode == "reject":
                results["evidence"][name] = [each["confidence"] for each in found]
                if others:
                    row["false_accepts"] = sum(each["understood"] for each in heard)
                    row["hours"] = seconds / 3600
                    row["curve"] = curve(results["evidence"][name], results["evidence"]["other"], seconds / 3600)
            rows.append(row)
            print(json.dumps(row), flush=True)
            path = measure.save(args.name, results, args.out)
    header = ["decibels", "mode", "recordings", "whole", "understood"]
    print(measure.table(header, [[row[name] for name in header] for row in rows]))
    print("results in", path)


def _right(slots: dict[str, Any], label: dict[str, str]) -> bool:
    return all(slots.get(name) == value for name, value in label.items())


if __name__ == "__main__":
    main()
