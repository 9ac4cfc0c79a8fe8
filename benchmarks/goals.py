"""What the timings on a GPU are to reach, and whether they do: goals from the results of its parts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import measure

# On the CPU whose time is kept (see results/train_lm_cpu*.json): 10 and 100 million tokens took so many seconds at order 6.
KEPT_TRAINING = ("train_lm_cpu", "train_lm_cpu_100m")


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

    def row(self) -> dict[str, Any]:
        """A row of the table."""
        limit = f"{'<=' if self.most else '>='} {self.limit:g}"
        verdict = "ok" if self.is_met else "MISSED"
        return {"figure": self.what, "is": self.value, "should be": limit, "unit": self.unit, "": verdict}


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
    rows = {(row["search"], row["vocab_size"]): row for row in results["searches"] if row["batch_size"] == size}
    for (search, vocab_size), row in rows.items():
        where = f"V={vocab_size}, B={size}"
        for encoder in results["encoders"]:
            limit = results["percent"][encoder["name"]].get(search)
            for kind in ("search", "whole") if limit is not None else ():
                if row[f"{kind}_seconds"] is not None:
                    what = f"CTC {search}, {kind}, of the {encoder['name']} encoder, {where}"
                    found.append(Goal(what, 100 * row[f"{kind}_seconds"] / encoder["seconds"][str(size)], limit, "%"))
        if "blank" in search:
            plain = rows[search.partition(", blank")[0], vocab_size]["search_seconds"]
            found.append(Goal(f"CTC {search}: time by that without, {where}", row["search_seconds"] / plain, 1.0, "x"))
    return found


def of_transducers(results: dict[str, Any]) -> list[Goal]:
    """Percent of more time, of the whole model and of the decoder alone, for each model and batch."""
    found = []
    rows = {(row["model"], row["decoder"]): row for row in results["decoders"]}
    for (model, decoder), ours in rows.items():
        if not decoder.endswith("+ LM"):
            continue
        limit, what = 1.0 if decoder == "greedy + LM" else 15.0, f"{model} {decoder} over greedy"
        for size, seconds in ours["decoder_seconds"].items():
            encoder, before = ours["encoder_seconds"][size], rows[model, "greedy"]["decoder_seconds"][size]
            more = 100 * ((encoder + seconds) / (encoder + before) - 1)
            found.append(Goal(f"{what}, whole model, B={size}", more, limit, "% more"))
            found.append(Goal(f"{what}, decoder alone, B={size}", seconds / before, 1 + limit / 100, "x"))
    return found


def of_attention(results: dict[str, Any]) -> list[Goal]:
    found = []
    for row in results["rows"]:
        what, limit = f"processor in a step of {row['model']}, {row['beams']} beam(s), B={row['batch']}", 2.0
        found.append(Goal(what, row["in processor, %"], 0.5 if row["model"] == "whisper-large-v3" else limit, "%"))
    return found


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
                kept, what = kept_training_seconds(row["tokens"]), f"training on {row['tokens']:,} tokens, order {row['order']}"
                told = f"{what}: {seconds:.1f} s; the CPU's kept {kept:.1f} s"
                found.append(Goal(told, kept / seconds, 5.0, "x as fast", most=False))
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
    return f"{measure.table([goal.row() for goal in goals])}\n{len(goals) - missed} of {len(goals)} goals reached"
