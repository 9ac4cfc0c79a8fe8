"""How long the queries of a language model take, and how long it takes to load, on the CPU and on a GPU.

    python benchmarks/lm_queries.py
    python benchmarks/lm_queries.py --device cuda                     # or all: a GPU, too

The models are synthetic (see synthetic.py): 1.1 million n-grams each, and their rows are in states that the text they were made
of leads to, so that chains of contexts are about as long as they get. KenLM's Python module is timed too where it is installed.

Beside a time on a GPU stands its goal: 10 us, or 1.3 times what it takes to move the bytes, where that is longer. Those are the
bytes that are written, and the root's weights (and targets), read once.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import synthetic
import torch

from hf_ngpulm import NGramLM
from hf_ngpulm.ngrams.counting import NGramCounter
from hf_ngpulm.ngrams.kneser_ney import estimate
from hf_ngpulm.ngrams.table import NGramTable

NGRAMS = 1_100_000
STEPS = 20  # tokens that a row has read before its state is timed
LEAST_GOAL, BYTES_GOAL = 10e-6, 1.3  # of a query on a GPU: seconds, or a multiple of the bytes' time
Row = dict[str, Any]
LARGEST_OUTPUT = {"cpu": 1 << 28, "cuda": 1 << 30}  # elements of one output


def build_table(vocab_size: int, order: int, ngrams: int) -> NGramTable:
    with NGramCounter(vocab_size, order) as counter:
        counter.add(*synthetic.text_with(ngrams, vocab_size, order))
        return estimate(counter.finish()).table


def build_model(vocab_size: int, order: int, ngrams: int = NGRAMS) -> NGramLM:
    return NGramLM.from_table(build_table(vocab_size, order, ngrams))


def text_of(lm: NGramLM, ngrams: int) -> np.ndarray:
    """Tokens of the text that `build_model` made a model of, without ends of sentences."""
    return synthetic.text_with(ngrams, lm.vocab_size, lm.order)[0]


def states_of(lm: NGramLM, text: np.ndarray, batch_size: int, seed: int) -> torch.Tensor:
    """States after some tokens from anywhere in a text."""
    starts = np.random.default_rng(1 + seed).integers(0, len(text) - STEPS, batch_size)
    tokens = torch.from_numpy(text[starts[:, None] + np.arange(STEPS)])
    return lm.states_after(tokens.to(lm.device))


def mean_depth(lm: NGramLM, states: torch.Tensor) -> float:
    """How many contexts lie between states and their roots, on average."""
    backoffs, depths = lm.tensors.backoff_states, torch.zeros_like(states)
    for _ in range(lm.context_length):
        depths += backoffs[states] != states
        states = backoffs[states]
    return round(float(depths.float().mean()), 2)


def time_queries(lm: NGramLM, text: np.ndarray, batches: list[int], device: str, bandwidth: float = 0.0) -> Iterator[Row]:
    """Yield a row for each batch size and query; `bandwidth` is that of a GPU, in bytes a second."""
    for batch_size in batches:
        size = batch_size * lm.vocab_size
        sets = 1 if device == "cpu" else max(1, min(4, LARGEST_OUTPUT[device] // size))
        states = [states_of(lm, text, batch_size, i) for i in range(sets)]
        tokens = torch.randint(0, lm.vocab_size, (batch_size,), device=lm.device)
        for query, factor in (("scores", 1), ("advance", 2), ("step", 0)):
            if factor * size > LARGEST_OUTPUT[device]:
                continue
            calls = [partial(getattr(lm, query), *((s, tokens) if query == "step" else (s,))) for s in states]
            row: Row = {"device": device, "vocab_size": lm.vocab_size, "order": lm.order, "query": query}
            row |= {"batch_size": batch_size, "mean_depth": mean_depth(lm, states[0])}
            if device == "cpu":
                yield row | {"seconds": measure.median_seconds(calls[0])}
                continue
            moved = 4 * factor * (size + lm.vocab_size) or 8 * batch_size
            row |= {"seconds": measure.graph_seconds(calls), "bytes": moved, "floor_seconds": moved / bandwidth}
            yield row | {"goal_seconds": max(LEAST_GOAL, BYTES_GOAL * row["floor_seconds"])}


def time_loading(lm: NGramLM, folder: Path) -> dict[str, float]:
    """Loading from an ARPA file and from safetensors, each the median of three."""
    lm.to_arpa(folder / "lm.arpa", "id")
    lm.save_pretrained(folder / "lm")
    arpa = partial(NGramLM.from_arpa, folder / "lm.arpa", vocab_size=lm.vocab_size, units="id")
    return {
        "arpa_seconds": measure.median_seconds(arpa, 0, 3),
        "safetensors_seconds": measure.median_seconds(partial(NGramLM.from_pretrained, folder / "lm"), 0, 3),
        "arpa_bytes": (folder / "lm.arpa").stat().st_size,
    }


def time_kenlm(path: Path, vocab_size: int) -> dict[str, float] | None:
    """Return the times of KenLM's Python module: reading the ARPA file, and a full-vocabulary query of one state."""
    if importlib.util.find_spec("kenlm") is None:
        return None
    import kenlm

    loaded = measure.wall_time(lambda: kenlm.Model(str(path)))
    model, state, out = kenlm.Model(str(path)), kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    words = [str(token) for token in range(vocab_size)]
    query = lambda: [model.BaseScore(state, word, out) for word in words]  # noqa: E731
    return {"arpa_seconds": loaded, "scores_batch_1_seconds": measure.median_seconds(query)}


def rows_of(args: argparse.Namespace, facts: Row) -> Iterator[Row]:
    """Yield the rows of all queries; facts about the models go into `facts`."""
    cpu, cuda = args.device != "cuda", args.device != "cpu"
    if cuda:
        if not measure.has_gpu():
            raise SystemExit(f"--device {args.device}: this Python's torch sees no CUDA device; take --device cpu")
        facts["copy_bytes_per_second"] = measure.copy_bandwidth()
    for vocab_size, order in itertools.product(args.vocab_sizes, args.orders):
        lm = build_model(vocab_size, order, args.ngrams)
        text = text_of(lm, args.ngrams)
        model: Row = {"vocab_size": vocab_size, "order": order, "ngrams": sum(lm.num_ngrams), "states": lm.num_states}
        model |= {"nbytes": lm.nbytes, "bytes_per_ngram": lm.nbytes / sum(lm.num_ngrams)}
        if vocab_size == 1024 and order == 6 and cpu:
            with tempfile.TemporaryDirectory() as folder:
                model["loading"] = time_loading(lm, Path(folder))
                model["kenlm"] = time_kenlm(Path(folder, "lm.arpa"), vocab_size)
        facts["models"].append(model)
        print(json.dumps(model), flush=True)
        if cpu:
            yield from time_queries(lm, text, args.batch_sizes, "cpu")
        if cuda:
            yield from time_queries(lm.to(measure.GPU), text, args.batch_sizes, "cuda", facts["copy_bytes_per_second"])


def main() -> None:
    about = {"ngrams": "of a model", "device": {"choices": ("cpu", "cuda", "all")}}
    args = measure.arguments(
        __doc__, str, None, about, device="cpu", orders=(3, 6, 10), vocab_sizes=(1024, 5000, 51_865, 151_936),
        batch_sizes=(1, 8, 32, 128, 256, 1024, 4096), ngrams=NGRAMS,
    ).parse_args()  # fmt: skip
    args.name = args.name or f"lm_queries_{args.device}"
    facts: Row = {"threads": args.threads, "models": []}
    measure.report(rows_of(args, facts), args, facts, "queries")


if __name__ == "__main__":
    main()
