"""How long the queries of a language model take, and how long it takes to load, on the CPU and on a GPU where there is one.

    python benchmarks/lm_queries.py                                   # everything
    python benchmarks/lm_queries.py --nemo-python NEMO_ENV/bin/python # NeMo's model beside it, in its own environment
    python benchmarks/lm_queries.py --quick --device cpu

The models are synthetic (see make_arpa.py): 1.1 million n-grams each. KenLM's Python module is timed too where it is installed.
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
LARGEST_OUTPUT = {"cpu": 1 << 28, "cuda": 1 << 30}  # elements of one output


def build_model(vocab_size: int, order: int) -> NGramLM:
    tokens, places = make_arpa.text_with(NGRAMS, vocab_size, order, seed=0)
    orders = []
    for columns in make_arpa.estimate(tokens, places, vocab_size, order):
        with np.errstate(divide="ignore"):
            log_probs, backoffs = np.log(columns["prob"]), np.log(columns["backoff"])
        prefixes, last = torch.from_numpy(columns["prefix"]), torch.from_numpy(columns["token"]).to(torch.int32)
        orders.append(NGramOrder(prefixes, last, torch.from_numpy(log_probs).float(), torch.from_numpy(backoffs).float()))
    return NGramLM.from_table(NGramTable(vocab_size, tuple(orders)))


def states_of(lm: NGramLM, batch_size: int, seed: int) -> torch.Tensor:
    """States after some tokens of text like that which the model was made of."""
    tokens, _ = make_arpa.random_text(lm.vocab_size, batch_size * 3 * (STEPS + 2), np.random.default_rng(1 + seed))
    tokens = torch.from_numpy(tokens[tokens < lm.vocab_size][: batch_size * STEPS].reshape(batch_size, STEPS))
    return lm.states_after(tokens.to(lm.device))


def time_queries(lm: NGramLM, batches: list[int], seconds: float) -> list[dict[str, Any]]:
    device = lm.device.type
    results = []
    for batch_size in batches:
        size = batch_size * lm.vocab_size
        sets = 1 if device == "cpu" else max(1, min(4, LARGEST_OUTPUT[device] // size))
        states = [states_of(lm, batch_size, i) for i in range(sets)]
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
                result["bytes_written"] = 4 * factor * size if factor else 8 * batch_size
            results.append(result)
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
    parser.add_argument("--nemo-python", help="python of an environment with nemo_toolkit[asr]")
    parser.add_argument("--out", type=Path, help="folder for the JSON results (default: benchmarks/results)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    seconds = 0.1 if args.quick else 0.3
    batches = [1, 32, 256] if args.quick else [1, 8, 32, 128, 256, 1024, 4096]
    cuda = torch.cuda.is_available() and args.device != "cpu"
    results: dict[str, Any] = {"threads": args.threads, "queries": [], "models": []}
    if cuda:
        results["copy_bytes_per_second"] = measure.copy_bandwidth()
    for vocab_size in (1024, 51_865, 151_936):
        for order in (6,) if args.quick else (3, 6, 10):
            lm = build_model(vocab_size, order)
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
                results["queries"] += time_queries(lm, batches, seconds)
            if cuda:
                results["queries"] += time_queries(lm.to("cuda"), batches, seconds)
            print(f"V={vocab_size} order {order} done", file=sys.stderr)
    report(results)
    name = "gpu" if args.device == "cuda" else "all" if cuda else "cpu"
    print("\nresults in", measure.save(f"lm_queries_{name}", results, args.out))


def report(results: dict[str, Any]) -> None:
    bandwidth = results.get("copy_bytes_per_second")
    rows = []
    for r in results["queries"]:
        floor = r["bytes_written"] / bandwidth if "bytes_written" in r and bandwidth else None
        ratio = f"{r['seconds'] / floor:.2f}" if floor else ""
        rows.append([r["device"], r["vocab_size"], r["order"], r["query"], r["batch_size"], f"{r['seconds'] * 1e6:.1f}", ratio])
    print(measure.table(["device", "V", "order", "query", "batch", "us", "x floor"], rows))
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
    if bandwidth:
        print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s; 'x floor' is over the time that the written bytes take at it")


if __name__ == "__main__":
    main()
