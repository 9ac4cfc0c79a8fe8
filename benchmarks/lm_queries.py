"""How long the queries of a language model take, and how long it takes to load, on the CPU and on a GPU where there is one.

    python benchmarks/lm_queries.py                                   # everything
    python benchmarks/lm_queries.py --nemo-python NEMO_ENV/bin/python # NeMo's model beside it, in its own environment
    python benchmarks/lm_queries.py --quick --device cpu

The models are synthetic (see make_arpa.py): 1.1 million n-grams each, and their rows are in states that the text they were made
of leads to, so that chains of contexts are about as long as they get. KenLM's Python module is timed too where it is installed.

Beside a time on a GPU stands its goal: 10 us, or 1.3 times what it takes to move the bytes, where that is longer. Those are the
bytes that are written, and the root's weights (and targets), read once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import make_arpa
import measure
import numpy as np
import torch

sys.path.insert(0, str(measure.ROOT))

from hf_ngpulm import NGramLM
from hf_ngpulm.ngrams.table import NGramOrder, NGramTable

NGRAMS = 1_100_000
STEPS = 20  # tokens that a row has read before its state is timed
VOCAB_SIZES = (1024, 5000, 51_865, 151_936)
ON_GPU = (1, 8, 32, 128, 256)
LEAST_GOAL, BYTES_GOAL = 10e-6, 1.3  # of a query on a GPU: seconds, or a multiple of the bytes' time
LARGEST_OUTPUT = {"cpu": 1 << 28, "cuda": 1 << 30}  # elements of one output


def build_model(vocab_size: int, order: int, ngrams: int = NGRAMS) -> NGramLM:
    tokens, places = make_arpa.text_with(ngrams, vocab_size, order, seed=0)
    orders = []
    for columns in make_arpa.estimate(tokens, places, vocab_size, order):
        with np.errstate(divide="ignore"):
            log_probs, backoffs = np.log(columns["prob"]), np.log(columns["backoff"])
        prefixes, last = torch.from_numpy(columns["prefix"]), torch.from_numpy(columns["token"]).to(torch.int32)
        orders.append(NGramOrder(prefixes, last, torch.from_numpy(log_probs).float(), torch.from_numpy(backoffs).float()))
    return NGramLM.from_table(NGramTable(vocab_size, tuple(orders)))


def text_of(lm: NGramLM, ngrams: int) -> np.ndarray:
    """Tokens of the text that `build_model` made a model of, without ends of sentences."""
    tokens, _ = make_arpa.text_with(ngrams, lm.vocab_size, lm.order, seed=0)
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
    return float(depths.float().mean())


def time_queries(
    lm: NGramLM, text: np.ndarray, batches: list[int], seconds: float, on_gpu: bool = False
) -> list[dict[str, Any]]:
    device = "cuda" if on_gpu else "cpu"
    results = []
    for batch_size in batches:
        size = batch_size * lm.vocab_size
        sets = 1 if device == "cpu" else max(1, min(4, LARGEST_OUTPUT[device] // size))
        states = [states_of(lm, text, batch_size, i) for i in range(sets)]
        tokens = torch.randint(0, lm.vocab_size, (batch_size,), device=lm.device)
        for query, factor in (("scores", 1), ("advance", 2), ("step", 0)):
            if factor * size > LARGEST_OUTPUT[device]:
                continue
            calls = [
                (lambda s=s, t=tokens, query=query: lm.step(s, t) if query == "step" else getattr(lm, query)(s)) for s in states
            ]
            result: dict[str, Any] = {
                "device": device,
                "vocab_size": lm.vocab_size,
                "order": lm.order,
                "query": query,
                "batch_size": batch_size,
            }
            if device == "cpu":
                result["seconds"] = measure.median_seconds(calls[0], seconds)
            else:
                result["seconds"] = measure.graph_seconds(calls)
                result["bytes"] = 4 * factor * (size + lm.vocab_size) if factor else 8 * batch_size
            results.append(result | {"mean_depth": round(mean_depth(lm, states[0]), 2)})
    return results


def time_loading(lm: NGramLM, units: str, folder: Path) -> dict[str, float]:
    """Loading from an ARPA file and from safetensors, each the median of three."""
    lm.to_arpa(folder / "lm.arpa", units)
    lm.save_pretrained(folder / "lm")
    vocab_size = lm.vocab_size
    arpa = lambda: NGramLM.from_arpa(folder / "lm.arpa", vocab_size=vocab_size, units=units)  # noqa: E731
    return {
        "arpa_seconds": measure.median_seconds(arpa, 0, 3),
        "safetensors_seconds": measure.median_seconds(lambda: NGramLM.from_pretrained(folder / "lm"), 0, 3),
        "arpa_bytes": (folder / "lm.arpa").stat().st_size,
    }


def time_kenlm(path: Path, vocab_size: int, seconds: float) -> dict[str, float] | None:
    """KenLM's Python module: reading the ARPA file, and a full-vocabulary query of one state."""
    try:
        import kenlm
    except ImportError:
        return None
    begin = time.perf_counter()
    model = kenlm.Model(str(path))
    loaded = time.perf_counter() - begin
    state, out = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    words = [str(token) for token in range(vocab_size)]
    query = lambda: [model.BaseScore(state, word, out) for word in words]  # noqa: E731
    return {"arpa_seconds": loaded, "scores_batch_1_seconds": measure.median_seconds(query, seconds)}


def run_nemo(python: str, lm: NGramLM, folder: Path, batches: list[int], threads: int, seconds: float) -> dict[str, Any]:
    lm.to_arpa(folder / "nemo.arpa", "nemo")
    script = str(Path(__file__).parent / "peers_nemo.py")
    command = [python, script, str(folder / "nemo.arpa"), "--vocab-size", str(lm.vocab_size), "--seconds", str(seconds)]
    command += ["--batches", ",".join(map(str, batches)), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda", "all"), default="all")
    parser.add_argument("--threads", type=int, default=1, help="threads on the CPU")
    parser.add_argument("--quick", action="store_true", help="one order, three batch sizes")
    parser.add_argument("--orders", type=int, nargs="+", help="default: 3, 6 and 10")
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=list(VOCAB_SIZES))
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="default: 1 to 4,096")
    parser.add_argument("--ngrams", type=int, default=NGRAMS, help="of a model")
    parser.add_argument("--name", help="name of the result file")
    parser.add_argument("--nemo-python", help="python of an environment with nemo_toolkit[asr]")
    parser.add_argument("--out", type=Path, help="folder for the JSON results (default: benchmarks/results)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    seconds = 0.1 if args.quick else 0.3
    batches = args.batch_sizes or ([1, 32, 256] if args.quick else [*ON_GPU, 1024, 4096])
    orders = args.orders or ((6,) if args.quick else (3, 6, 10))
    cuda = measure.has_gpu() and args.device != "cpu"
    results: dict[str, Any] = {"threads": args.threads, "queries": [], "models": []}
    name = args.name or "lm_queries_" + ("gpu" if args.device == "cuda" else "all" if cuda else "cpu")
    if cuda:
        results["copy_bytes_per_second"] = measure.copy_bandwidth()
    for vocab_size in args.vocab_sizes:
        for order in orders:
            lm = build_model(vocab_size, order, args.ngrams)
            text = text_of(lm, args.ngrams)
            with contextlib.suppress(AttributeError):
                torch.cuda.empty_cache()
            model: dict[str, Any] = {"vocab_size": vocab_size, "order": order, "ngrams": sum(lm.num_ngrams)}
            model |= {"states": lm.num_states, "nbytes": lm.nbytes, "bytes_per_ngram": lm.nbytes / sum(lm.num_ngrams)}
            if vocab_size == 1024 and order == 6 and args.device != "cuda":
                with tempfile.TemporaryDirectory() as folder:
                    model["loading"] = time_loading(lm, "id", Path(folder))
                    model["kenlm"] = time_kenlm(Path(folder, "lm.arpa"), vocab_size, seconds)
                    if args.nemo_python:
                        nemo_batches = [b for b in batches if b <= 256]
                        model["nemo"] = run_nemo(args.nemo_python, lm, Path(folder), nemo_batches, args.threads, seconds)
            results["models"].append(model)
            if args.device != "cuda":
                results["queries"] += time_queries(lm, text, batches, seconds)
            if cuda:
                results["queries"] += time_queries(lm.to(measure.GPU), text, batches, seconds, on_gpu=True)
            measure.save(name, results, args.out)
            print(f"V={vocab_size} order {order} done", file=sys.stderr)
    for result in results["queries"]:
        if "bytes" in result:
            result["floor_seconds"] = result["bytes"] / results["copy_bytes_per_second"]
            result["goal_seconds"] = max(LEAST_GOAL, BYTES_GOAL * result["floor_seconds"])
    report(results)
    print("\nresults in", measure.save(name, results, args.out))


def report(results: dict[str, Any]) -> None:
    rows = []
    for r in results["queries"]:
        times = (
            [r["seconds"] * 1e6, r["floor_seconds"] * 1e6, r["goal_seconds"] * 1e6]
            if "goal_seconds" in r
            else [r["seconds"] * 1e6]
        )
        verdict = "" if len(times) == 1 else "ok" if times[0] <= times[2] else f"{times[0] / times[2]:.2f} x goal"
        cells = [*(f"{time:.1f}" for time in times), "", ""][:3]
        rows.append(
            [r["device"], r["vocab_size"], r["order"], f"{r['mean_depth']:.1f}", r["query"], r["batch_size"], *cells, verdict]
        )
    header = ["device", "V", "order", "contexts", "query", "batch", "us", "bytes' us", "goal us", ""]
    print(measure.table(header, rows))
    for model in results["models"]:
        print(
            f"\nV={model['vocab_size']} order {model['order']}:"
            f" {model['ngrams']} n-grams of {model['bytes_per_ngram']:.1f} bytes",
            end="",
        )
        for key in ("loading", "kenlm", "nemo"):
            if model.get(key):
                print(f"\n  {key}: {json.dumps(model[key])}", end="")
    print()
    if "copy_bytes_per_second" in results:
        print(f"copy bandwidth {results['copy_bytes_per_second'] / 1e12:.2f} TB/s")


if __name__ == "__main__":
    main()
