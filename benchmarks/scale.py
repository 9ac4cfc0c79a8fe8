"""What training on a cluster costs: measured constants, and a model of the time for texts and clusters of other sizes.

    python benchmarks/scale.py --tokens 1_000_000 4_000_000 16_000_000 --workers 1 2 4 --partitions 16 64 128

The text is `synthetic.sentences`: token ids with the statistics of text. The steps run one after the other in one process,
which gives their CPU time, the bytes of their results and their memory. `--workers` then times whole trainings on Ray clusters
of so many CPUs on this machine, to compare the model with. `--partitions` times trainings of little text in so many partitions.
The model assumes machines of 16 cores, with 64 GB for tasks, 10 Gbit/s, and a disk of 1 GB/s.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measure
import numpy as np
from synthetic import write_tokens

from hf_ngpulm import NGramLM
from hf_ngpulm.common.cluster import InProcess
from hf_ngpulm.language_model import training
from hf_ngpulm.language_model.training import train
from hf_ngpulm.ngrams import on_cluster
from hf_ngpulm.text import TextFiles, encode_texts

VOCAB, ORDER, PRUNE, PARTITIONS = 1024, 5, (0, 0, 1), 4
# Of a machine: cores, bytes for tasks, bytes of Ray's store in memory, bytes a second of network and of disk.
CORES, MEMORY, STORE, BANDWIDTH, DISK = 16, 64e9, 27e9, 1.25e9, 1e9
TOKENS_PER_PART = 16e6, 128e6  # of the text, for a task: at least and at most (4 bytes a token)
MOST_KEPT = 2e9  # n-grams; beyond it, pruning must be stronger, since a model has less than 2**31 arcs
MODELLED = [(tokens, machines) for tokens in (1e9, 1e11, 1e12) for machines in (1, 8, 64)]
AFTER_COUNTING = ("cut", "gather", "weigh", "smooth", "finish")


class Measured(InProcess):
    """Runs tasks in this process, and adds up their CPU seconds, the bytes of their results, and the most memory of a task."""

    cpus = PARTITIONS

    def __init__(self) -> None:
        self.spent: dict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0.0, "bytes": 0.0, "peak": 0.0})

    def submit(self, function: Callable[..., Any], *arguments: Any, returns: int | None = None) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, begin = measure.resident(), time.process_time()
        found = super().submit(function, *arguments, returns=returns)
        one = self.spent[function.__name__]
        one["seconds"] += time.process_time() - begin
        one["bytes"] += nbytes(found)
        one["peak"] = max(one["peak"], measure.resident("VmHWM") - before)
        return found


def nbytes(value: Any) -> int:
    """Return the bytes of all arrays in a result."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(nbytes, value))
    return nbytes(list(vars(value).values())) if hasattr(value, "sample") else 0


def measured(path: Path, folder: Path) -> dict[str, Any]:
    """Train in this process; return the constants."""
    cluster, files = Measured(), TextFiles([path], are_ids=True)
    begin = time.process_time()
    trained = train(files, vocab_size=VOCAB, order=ORDER, prune=PRUNE, cluster=cluster)
    lm = NGramLM(trained.parts)
    lm.save_pretrained(folder / "lm")
    seconds, about = time.process_time() - begin, lm.config.training
    return {
        "tokens": about.num_tokens, "num_counted": about.num_counted, "num_kept": lm.num_ngrams, "model_bytes": lm.nbytes,
        "steps": dict(cluster.spent), "driver_seconds": seconds - sum(one["seconds"] for one in cluster.spent.values()),
    }  # fmt: skip


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all processes that it has started."""
    parents, spent = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            values = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)], spent[int(folder.name)] = int(values[1]), sum(map(int, values[11:15]))
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(spent.get(each, 0) for each in ours) / os.sysconf("SC_CLK_TCK")


def on_ray(path: Path, workers: int, partitions: int | None = None) -> dict[str, float]:
    """Return the seconds of a training on a Ray cluster of so many CPUs, whose processes have been started, and the CPU seconds
    of all processes."""
    import ray

    ray.init("local", num_cpus=workers, object_store_memory=2 << 30, include_dashboard=False, log_to_driver=False)
    try:
        options = {"vocab_size": VOCAB, "order": ORDER, "prune": PRUNE, "cluster": "auto"}
        train(TextFiles([path.with_name("warm.txt")], are_ids=True), **options)
        training.on_cluster = SimpleNamespace(
            NUM_STEPS=4, estimate=functools.partial(on_cluster.estimate, partitions=partitions)
        )
        begin, spent = time.perf_counter(), cpu_seconds()
        train(TextFiles([path], are_ids=True), **options)
        return {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu_seconds() - spent}
    finally:
        ray.shutdown()


def tokens_a_second() -> float:
    """Return the tokens that a core encodes in a second, with the bundled tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(measure.ROOT / "examples" / "models" / "ctc")
    clips = (measure.ROOT / "examples" / "speech" / "harbour" / "clips.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in clips] * 2000
    begin = time.process_time()
    tokens = sum(len(ids) for ids, _ in encode_texts(texts, tokenizer, len(tokenizer), workers=1))
    return tokens / (time.process_time() - begin)


class Model:
    """Costs for any size, from runs of a few. Numbers of n-grams grow by the power of the two largest runs.

    Args:
        runs: results of `measured`, the largest last.
        slice_seconds: CPU seconds that a slice costs Ray, which partitions send each other three times.
        encoded: tokens that a core encodes in a second.
        overhead: CPU time of Ray's processes, over that of the steps alone.
    """

    def __init__(self, runs: list[dict[str, Any]], encoded: float, overhead: float, slice_seconds: float) -> None:
        *_, less, most = runs
        self.most, self.encoded, self.overhead, self.slice_seconds = most, encoded, overhead, slice_seconds
        ratio = np.log(most["tokens"] / less["tokens"])
        self.powers = {
            name: np.log(np.array(most[name], float) / np.array(less[name], float)) / ratio
            for name in ("num_counted", "num_kept")
        }

    def ngrams(self, name: str, tokens: float) -> float:
        """Return the number of n-grams of a text, all orders together; at most every token ends another one of each order."""
        found = np.array(self.most[name], float) * (tokens / self.most["tokens"]) ** np.minimum(self.powers[name], 1.0)
        return float(np.minimum(found, tokens).sum())

    def each(self, step: str, what: str) -> float:
        """Return a step's seconds or bytes for each counted n-gram of the largest run."""
        return self.most["steps"][step][what] / sum(self.most["num_counted"])

    def __call__(self, tokens: float, machines: int) -> dict[str, float]:
        """Return seconds by kind of work, and bytes, on machines of `CORES` cores."""
        counted, kept = self.ngrams("num_counted", tokens), min(self.ngrams("num_kept", tokens), MOST_KEPT)
        workers, of_partitions = machines * CORES / self.overhead, sum(self.each(step, "seconds") for step in AFTER_COUNTING)
        moved = counted * sum(self.each(step, "bytes") for step in ("cut", "weigh", "smooth"))
        moved += counted * self.each("gather", "bytes") / 2  # its partitions stay where they are
        held = self.most["steps"]["gather"]["peak"] / (sum(self.most["num_counted"]) / PARTITIONS)
        store = counted * sum(self.each(step, "bytes") for step in ("count_part", *AFTER_COUNTING)) / machines
        partitions = max(min(machines * CORES, counted / ORDER / 2**20), counted * held / (MEMORY / CORES))
        parts = max(min(1024, tokens / TOKENS_PER_PART[0]), tokens / TOKENS_PER_PART[1])
        costs = {
            "encode": tokens / self.encoded / machines / CORES,
            "count": tokens * self.most["steps"]["count_part"]["seconds"] / self.most["tokens"] / workers,
            "partitions": counted * of_partitions / workers,
            "network": moved * (1 - 1 / machines) / machines / BANDWIDTH,
            "disk": 2 * max(0.0, store - STORE) / DISK,  # written and read once
            "slices": (3 * partitions + parts) * partitions * self.slice_seconds,
            "driver": kept * self.most["driver_seconds"] / sum(self.most["num_kept"]),
        }
        return {
            "counted": counted,
            "kept": kept,
            **costs,
            "all": sum(costs.values()),
            "store_bytes": store,
            "model_bytes": kept * self.most["model_bytes"] / sum(self.most["num_kept"]),
            "num_partitions": partitions,
        }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, and return the results."""
    found: dict[str, Any] = {"runs": [], "checked": [], "sliced": []}

    def enter(kind: str, row: dict[str, Any]) -> None:
        found[kind].append(row)
        print(row, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokens(folder / "warm.txt", 20_000, VOCAB)
        for tokens in sorted(args.tokens):
            write_tokens(folder / "text.txt", tokens, VOCAB)
            enter("runs", measured(folder / "text.txt", folder))
        most = found["runs"][-1]
        alone = sum(one["seconds"] for one in most["steps"].values()) + most["driver_seconds"]
        for partitions in args.partitions or ():
            enter("sliced", {"partitions": partitions, **on_ray(folder / "warm.txt", 2, partitions)})
        for workers in args.workers or ():
            enter("checked", {"workers": workers, **on_ray(folder / "text.txt", workers), "modelled_cpu_seconds": alone})
    return found | {"encoded_tokens_a_second": tokens_a_second()}


def main() -> None:
    about = {"again": "model from these results, without measuring"}
    options = {"tokens": (1_000_000, 4_000_000, 16_000_000), "workers": (int,), "partitions": (int,), "again": Path}
    args = measure.arguments(__doc__, "scale", None, about, **options).parse_args()
    results = run(args) if args.again is None else json.loads(args.again.read_text())
    ratios = [one["cpu_seconds"] / one["modelled_cpu_seconds"] for one in results["checked"]]
    overhead = float(np.mean(ratios)) if ratios else 1.0
    of_slices = [one["cpu_seconds"] / (3 * one["partitions"] ** 2) for one in results["sliced"]]
    model = Model(results["runs"], results["encoded_tokens_a_second"], overhead, of_slices[-1] if of_slices else 0.0)
    results |= {"overhead": overhead, "powers": {name: list(powers) for name, powers in model.powers.items()}}
    rows = [{"tokens": tokens, "machines": machines, **model(tokens, machines)} for tokens, machines in MODELLED]
    print(measure.table(rows))
    if args.again is None:
        print("results in", measure.save(args.name, results | {"modelled": rows}, args.out))


if __name__ == "__main__":
    main()
