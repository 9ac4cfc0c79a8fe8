"""What the timings on a GPU are to reach, and whether they do: goals from the results of its parts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import measure

# On the CPU whose time is kept (see results/train_lm_cpu*.json): 10 and 100 million tokens took so many seconds at order 6.
KEPT_TRAINING = ("train_lm_cpu", "train_lm_cpu_100m")
LARGEST_BATCH = 128


class Goal(NamedTuple):
    """A figure that was measured, and what it should be.

    Args:
        most: whether it should be `limit` at most; otherwise at least.
    """

    what: str
    value: float
    limit: float
    unit: str
    most: bool = True

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit if self.most else self.value >= self.limit

    def row(self) -> list[str]:
        """A row of the table."""
        limit = f"{'<=' if self.most else '>='} {self.limit:g}"
        return [self.what, f"{self.value:.3g}", limit, self.unit, "ok" if self.is_met else "MISSED"]


def of_queries(results: dict[str, Any]) -> list[Goal]:
    """The worst of each query and vocabulary over all batches: its time over what it may take."""
    worst: dict[tuple[int, str], tuple[float, int]] = {}
    for row in results["queries"]:
        if "goal_seconds" in row:
            key = row["vocab_size"], row["query"]
            worst[key] = max(worst.get(key, (0.0, 0)), (row["seconds"] / row["goal_seconds"], row["batch_size"]))
    return [
        Goal(f"LM query {query}, V={vocab_size}, worst of B (B={size})", ratio, 1.0, "of max(10 us, 1.3 bytes)")
        for (vocab_size, query), (ratio, size) in worst.items()
    ]


def of_ctc(results: dict[str, Any]) -> list[Goal]:
    """Percent of each encoder's time, at the largest batch; the search alone, and up to hypotheses with their text."""
    found = []
    size = max(row["batch_size"] for row in results["searches"])
    for encoder in results["encoders"]:
        for row in results["searches"]:
            limit = results["percent"][encoder["name"]].get(row["search"])
            if limit is None or row["batch_size"] != size:
                continue
            for kind in ("search", "whole"):
                if row[f"{kind}_seconds"] is not None:
                    what = f"CTC {row['search']}, {kind}, of the {encoder['name']} encoder, V={row['vocab_size']}, B={size}"
                    found.append(Goal(what, 100 * row[f"{kind}_seconds"] / encoder["seconds"][str(size)], limit, "%"))
    for row in results["searches"]:
        plain = [other for other in results["searches"] if other["search"] == row["search"].partition(", blank")[0]]
        plain = [other for other in plain if all(other[name] == row[name] for name in ("vocab_size", "batch_size"))]
        if "blank" in row["search"] and row["batch_size"] == size:
            what = f"CTC {row['search']}: time by that without, V={row['vocab_size']}, B={size}"
            found.append(Goal(what, row["search_seconds"] / plain[0]["search_seconds"], 1.0, "x"))
    return found


def of_transducers(results: dict[str, Any]) -> list[Goal]:
    """Percent of more time, of the whole model and of the decoder alone, for each model and batch."""
    found = []
    rows = {(row["model"], row["decoder"]): row for row in results["decoders"]}
    for model in {model: None for model, _ in rows}:
        beams = [name for of, name in rows if of == model and name.startswith("ALSD") and name.endswith("+ LM")]
        pairs = [("greedy + LM", "greedy", 1.0), *((beam, "greedy", 15.0) for beam in beams)]
        for decoder, other, limit in pairs:
            ours, theirs = rows[model, decoder], rows[model, other]
            for size, seconds in ours["decoder_seconds"].items():
                encoder, before = ours["encoder_seconds"][size], theirs["decoder_seconds"][size]
                more = 100 * ((encoder + seconds) / (encoder + before) - 1)
                found.append(Goal(f"{model} {decoder} over {other}, whole model, B={size}", more, limit, "% more"))
                found.append(
                    Goal(f"{model} {decoder} over {other}, decoder alone, B={size}", seconds / before, 1 + limit / 100, "x")
                )
    return found


def of_attention(results: dict[str, Any]) -> list[Goal]:
    limits = {"whisper-tiny": 2.0, "whisper-large-v3": 0.5}
    return [
        Goal(
            f"processor in a step of {row['model']}, {row['beams']} beam(s), B={row['batch']}",
            row["in processor, %"],
            limit,
            "%",
        )
        for row in results["rows"]
        if (limit := limits.get(row["model"], 2.0))
    ]


def of_contexts(results: dict[str, Any]) -> list[Goal]:
    return [
        Goal(f"contexts per row, {row['family']}, B={row['batch_size']}", row["throughput"], 0.98, "x throughput", most=False)
        for row in results["contexts"]
    ]


def of_training(results: dict[str, Any]) -> list[Goal]:
    found = []
    for row in results["training"]:
        for device in ("cuda", "cpu"):
            seconds = row.get(device, {}).get("seconds")
            if seconds and "failed" not in row[device]:
                kept = kept_training_seconds(row["tokens"])
                what = (
                    f"training on {row['tokens']:,} tokens, order {row['order']}: {seconds:.1f} s; the CPU's kept {kept:.1f} s"
                )
                found.append(Goal(what, kept / seconds, 5.0, "x as fast", most=False))
    return found


def kept_training_seconds(tokens: int, order: int = 6) -> float:
    """What training takes on the CPU whose times are kept, between the two that were measured (as a power of the tokens)."""
    times = {}
    for name in KEPT_TRAINING:
        kept = json.loads((Path(measure.RESULTS) / f"{name}.json").read_text(encoding="utf-8"))
        times |= {row["tokens"]: row["cpu"]["seconds"] for row in kept["training"] if row["order"] == order}
    (few, first), (many, last) = sorted(times.items())[-2:]
    share = math.log(tokens / few) / math.log(many / few)
    return first * (last / first) ** share


def table(goals: list[Goal]) -> str:
    missed = sum(not goal.is_met for goal in goals)
    lines = measure.table(["figure", "is", "should be", "", ""], [goal.row() for goal in goals])
    return f"{lines}\n{len(goals) - missed} of {len(goals)} goals reached"
