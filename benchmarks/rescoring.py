"""Compare the speed of a `Rescorer` on n-best lists with that of scoring each text alone, and check that the scores agree.

    python benchmarks/rescoring.py MODEL lists.json --name rescoring_speed

`lists.json` holds n-best lists: a list of lists of texts. The ways take turns; times are CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch

from hf_ngpulm.rescoring import Rescorer, load_rescorer

RESULTS = Path(__file__).parent / "results"


def alone(rescorer: Rescorer, texts: list[str]) -> list[float]:
    """Score each text by itself, in a forward pass of its own."""
    scores = []
    for text in texts:
        ids = rescorer.tokens(text)
        with torch.inference_mode():
            logits = rescorer.model(input_ids=torch.tensor([[rescorer.first, *ids[:-1]]])).logits[0].log_softmax(1)
        scores.append(float(logits[torch.arange(len(ids)), torch.tensor(ids)].double().sum()))
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("lists", type=Path)
    parser.add_argument("--batch-size", type=int, default=8, help="lists that are scored together")
    parser.add_argument("--most", type=int, default=64, help="lists that are scored in all")
    parser.add_argument("--name", help="write the figures to benchmarks/results/NAME.json")
    args = parser.parse_args()
    lists = [list(dict.fromkeys(texts)) for texts in json.loads(args.lists.read_text())][: args.most]
    rescorer = load_rescorer(args.model)
    first = [lists[begin : begin + args.batch_size] for begin in range(0, len(lists), args.batch_size)]
    seconds, worst = {"together": 0.0, "alone": 0.0}, 0.0
    rescorer.scores([["warm", "up"]])
    rescorer.read_tokens = 0
    for batch in first:
        begin = time.process_time()
        together = rescorer.scores(batch)
        between = time.process_time()
        single = [alone(rescorer, texts) for texts in batch]
        seconds["together"] += between - begin
        seconds["alone"] += time.process_time() - between
        pairs = ((a, b) for these, those in zip(together, single) for a, b in zip(these, those))
        worst = max(worst, *(abs(a - b) for a, b in pairs))
    found = {
        "model": Path(args.model).name, "lists": len(lists), "texts": sum(map(len, lists)), "batch_size": args.batch_size,
        "threads": torch.get_num_threads(), "machine": platform.processor() or platform.machine(),
        "tokens_together": rescorer.read_tokens,
        "tokens_alone": sum(len(rescorer.tokens(text)) for texts in lists for text in texts),
        **{f"seconds_{name}": round(value, 3) for name, value in seconds.items()},
        "times_faster": round(seconds["alone"] / seconds["together"], 2), "largest_difference": worst,
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    if args.name:
        (RESULTS / f"{args.name}.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
