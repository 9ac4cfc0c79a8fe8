"""How long the queries of a language model take, and how long it takes to load, on the CPU and on a GPU where there is one.

    python benchmarks/lm_queries.py                                   # everything
    python benchmarks/lm_queries.py --nemo-python NEMO_ENV/bin/python # NeMo's model beside it, in its own environment
    python benchmarks/lm_queries.py --quick --device cpu

The models are synthetic (see synthetic.py): 1.1 million n-grams each, and their rows are in states that the text they were made
of leads to, so that chains of contexts are about as long as they get. KenLM's Python module is timed too where it is installed.

Beside a time on a GPU stands its goal: 10 us, or 1.3 times what it takes to move the bytes, where that is longer. Those are the
bytes that are written, and the root's weights (and targets), read once.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import synthetic
import torch

from hf_ngpulm import NGramLM
from hf_ngpulm.ngrams.table import NGramOrder, NGramTable

NGRAMS = 1_100_000
STEPS = 20  # tokens that a row has read before its state is timed
VOCAB_SIZES = (1024, 5000, 51_865, 151_936)
ON_GPU = (1, 8, 32, 128, 256)
LEAST_GOAL, BYTES_GOAL = 10e-6, 1.3  # of a query on a GPU: seconds, or a multiple of the bytes' time
LARGEST_OUTPUT = {"cpu": 1 << 28, "cuda": 1 << 30}  # elements of one output


def build_table(vocab_size: int, order: int, ngrams: int) -> NGramTable:
    tokens, places = synthetic.text_with(ngrams, vocab_size, order, seed=0)
    orders = []
    for columns in synthetic.estimate(tokens, places, vocab_size, order):
        with np.errstate(divide="ignore"):
            log_probs, backoffs = np.log(columns["prob"]), np.log(columns["backoff"])
        prefixes, last = torch.from_numpy(columns["prefix"]), torch.from_numpy(columns["token"]).to(torch.int32)
        orders.append(NGramOrder(prefixes, last, torch.from_numpy(log_probs).float(), torch.from_numpy(backoffs).float()))
    return NGramTable(vocab_size, tuple(orders))


def build_model(vocab_size: int, order: int, ngrams: int = NGRAMS) -> NGramLM:
    return NGramLM.from_table(build_table(vocab_size, order, ngrams))


def text_of(lm: NGramLM, ngrams: int) -> np.ndarray:
    """Tokens of the text that `build_model` made a model of, without ends of sentences."""
    tokens, _ = synthetic.text_with(ngrams, lm.vocab_size, lm.order, seed=0)
    return tokens[tokens < lm.vocab_size]


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


def time_queries(
    lm: NGramLM, text: np.ndarray, batches: list[int], seconds: float, device: str, bandwidth: float = 0.0
) -> list[dict[str, Any]]:
    results = []
    for batch_size in batches:
        size = batch_size * lm.vocab_size
        sets = 1 if device == "cpu" else max(1, min(4, LARGEST_OUTPUT[device] // size))
        states = [states_of(lm, text, batch_size, i) for i in range(sets)]
        tokens = torch.randint(0, lm.vocab_size, (batch_size,), device=lm.device)
        for query, factor in (("scores", 1), ("advance", 2), ("step", 0)):
            if factor * size > LARGEST_OUTPUT[device]:
                continue
            calls = [partial(getattr(lm, query), *((s, tokens) if query == "step" else (s,))) for s in states]
            result: dict[str, Any] = {"device": device, "vocab_size": lm.vocab_size, "order": lm.order, "query": query}
            result |= {"batch_size": batch_size, "mean_depth": mean_depth(lm, states[0])}
            if device == "cpu":
                result["seconds"] = measure.median_seconds(calls[0], seconds)
            else:
                result["seconds"], result["bytes"] = measure.graph_seconds(calls), 8 * batch_size
                if factor:
                    result["bytes"] = 4 * factor * (size + lm.vocab_size)
                result["floor_seconds"] = result["bytes"] / bandwidth
                result["goal_seconds"] = max(LEAST_GOAL, BYTES_GOAL * result["floor_seconds"])
            results.append(result)
    return results


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


def time_kenlm(path: Path, vocab_size: int, seconds: float) -> dict[str, float] | None:
    """Return the times of KenLM's Python module: reading the ARPA file, and a full-vocabulary query of one state."""
    try:
        import kenlm
    except ImportError:
        return None
    loaded = measure.wall_time(lambda: kenlm.Model(str(path)))
    model, state, out = kenlm.Model(str(path)), kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    words = [str(token) for token in range(vocab_size)]
    query = lambda: [model.BaseScore(state, word, out) for word in words]  # noqa: E731
    return {"arpa_seconds": loaded, "scores_batch_1_seconds": measure.median_seconds(query, seconds)}


def time_nemo(lm: NGramLM, folder: Path, batches: list[int], args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    lm.to_arpa(folder / "nemo.arpa", "nemo")
    request = {"decoder": "nemo-lm", "arpa": str(folder / "nemo.arpa"), "vocab_size": lm.vocab_size}
    asked = json.dumps({**request, "batches": batches, "seconds": seconds})
    command = [args.nemo_python, str(Path(__file__).with_name("peers.py")), "--threads", str(args.threads)]
    return json.loads(subprocess.run(command, input=asked + "\n", stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    about = {"orders": "default: 3, 6 and 10", "batch_sizes": "default: 1 to 4,096", "quick": "one order, three batch sizes"}
    about |= {"ngrams": "of a model", "nemo_python": "Python of an environment with nemo_toolkit[asr]"}
    about["device"] = {"choices": ("cpu", "cuda", "all")}
    args = measure.arguments(
        __doc__, str, None, about, device="all", quick=False, orders=(int,), vocab_sizes=VOCAB_SIZES, batch_sizes=(int,),
        ngrams=NGRAMS, nemo_python=str,
    ).parse_args()  # fmt: skip
    torch.set_num_threads(args.threads)
    seconds = 0.1 if args.quick else 0.3
    batches = args.batch_sizes or ([1, 32, 256] if args.quick else [*ON_GPU, 1024, 4096])
    orders = args.orders or ((6,) if args.quick else (3, 6, 10))
    cpu, cuda = args.device != "cuda", measure.has_gpu() and args.device != "cpu"
    results: dict[str, Any] = {"threads": args.threads, "queries": [], "models": []}
    args.name = args.name or "lm_queries_" + ("cpu" if not cuda else "all" if cpu else "gpu")
    if cuda:
        results["copy_bytes_per_second"] = measure.copy_bandwidth()
        print(f"copy bandwidth {results['copy_bytes_per_second'] / 1e12:.2f} TB/s")
    for vocab_size, order in itertools.product(args.vocab_sizes, orders):
        lm = build_model(vocab_size, order, args.ngrams)
        text = text_of(lm, args.ngrams)
        with contextlib.suppress(AttributeError):
            torch.cuda.empty_cache()
        model: dict[str, Any] = {"vocab_size": vocab_size, "order": order, "ngrams": sum(lm.num_ngrams)}
        model |= {"states": lm.num_states, "nbytes": lm.nbytes, "bytes_per_ngram": lm.nbytes / sum(lm.num_ngrams)}
        if vocab_size == 1024 and order == 6 and cpu:
            with tempfile.TemporaryDirectory() as folder:
                model["loading"] = time_loading(lm, Path(folder))
                model["kenlm"] = time_kenlm(Path(folder, "lm.arpa"), vocab_size, seconds)
                if args.nemo_python:
                    few = [size for size in batches if size <= 256]
                    model["nemo"] = time_nemo(lm, Path(folder), few, args, seconds)
        results["models"].append(model)
        print(json.dumps(model), flush=True)
        if cpu:
            results["queries"] += time_queries(lm, text, batches, seconds, "cpu")
        if cuda:
            bandwidth = results["copy_bytes_per_second"]
            results["queries"] += time_queries(lm.to(measure.GPU), text, batches, seconds, "cuda", bandwidth)
        measure.save(args.name, results, args.out)
    rows = []
    for row in results["queries"]:
        facts = {name: row[name] for name in ("device", "vocab_size", "order", "mean_depth", "query", "batch_size")}
        facts |= {
            f"{kind}us": f"{1e6 * row[f'{kind}seconds']:.1f}" for kind in ("", "floor_", "goal_") if f"{kind}seconds" in row
        }
        over = row["seconds"] / row.get("goal_seconds", float("inf"))
        rows.append(facts | ({"": "ok" if over <= 1 else f"{over:.2f} x goal"} if over else {}))
    measure.report(rows, args, results)


if __name__ == "__main__":
    main()
