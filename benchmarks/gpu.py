"""Everything that needs a GPU, in one command without network: tests, timings, a table, JSON results (`make gpu`).

    python3 benchmarks/gpu.py [--out FOLDER]

Runs from a source tree with any Python that has torch with CUDA, triton, transformers, numba and pytest. Each part has a time
limit, so that the whole ends in under nine minutes; a part that fails or runs out of time is named at the end, and the command
fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

BATCHES = (1, 8, 32, 128)
FRAMES = 250  # 20 s of audio at 80 ms a frame
TRAINING = ["--tokens", "10_000_000", "100_000_000", "--orders", "6", "--device", "cpu", "cuda", "--repeats", "1"]
TRAINING += ["--memory", "100", "--save", "train_lm_gpu"]


def greedy_ctc(out: Path | None) -> None:
    """Time of greedy CTC with LM on random logits with a realistic share of blanks, beside plain argmax."""
    import lm_queries

    from hf_ngpulm.ctc import greedy

    results: list[dict[str, Any]] = []
    for vocab_size in (1024, 5000):
        lm = lm_queries.build_model(vocab_size, 6).to("cuda")
        for batch_size in BATCHES:
            logits = torch.randn(batch_size, FRAMES, vocab_size + 1, device="cuda")
            logits[..., vocab_size] += 8.0 * (torch.rand(batch_size, FRAMES, device="cuda") < 0.75)
            lengths = torch.full((batch_size,), FRAMES, dtype=torch.int32, device="cuda")
            weights = torch.full((batch_size, 1), 0.5, device="cuda")
            states, stay_costs = lm.initial_states(batch_size)[:, None].contiguous(), 3 * weights[:, 0].contiguous()
            before = torch.full((batch_size, 2), vocab_size, dtype=torch.int32, device="cuda")
            tensors = list(lm.tensors)
            calls = {
                rule: (
                    lambda r=rule, x=logits, n=lengths, s=states, w=weights, c=stay_costs, b=before, v=vocab_size, t=tensors: (
                        greedy.ctc_greedy(t, x, n, s, w, c, b, v, v, r)
                    )
                )
                for rule in greedy.RULES
            }
            calls["argmax"] = lambda x=logits: x.argmax(-1)
            seconds = {name: measure.graph_seconds([call]) for name, call in calls.items()}
            results.append({"vocab_size": vocab_size, "batch_size": batch_size, "frames": FRAMES, "seconds": seconds})
    names = (*greedy.RULES, "argmax")
    rows = [[r["vocab_size"], r["batch_size"], *(f"{1e6 * r['seconds'][name]:.0f}" for name in names)] for r in results]
    print(measure.table(["V", "batch", *(f"{name} us" for name in names)], rows))
    print("results in", measure.save("ctc_greedy_gpu", {"greedy": results}, out))


def run_part(name: str, command: list[str], limit: int) -> str | None:
    """Run a part; returns what went wrong, or None."""
    print(f"\n== {name}", flush=True)
    begin = time.time()
    environment = {**os.environ, "PYTHONPATH": str(measure.ROOT), "HF_HUB_OFFLINE": "1"}
    environment.pop("TRITON_INTERPRET", None)
    try:
        status = subprocess.run(command, cwd=measure.ROOT, env=environment, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return f"{name}: not done in {limit} s"
    print(f"== {name}: {time.time() - begin:.0f} s", flush=True)
    return f"{name}: exit status {status}" if status else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the JSON results (default: benchmarks/results)")
    parser.add_argument("--part", choices=["greedy-ctc"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: this Python's torch sees no CUDA device; run it on a machine with one")
    if args.part:
        greedy_ctc(args.out)
        return
    out = ["--out", str(args.out)] if args.out else []
    here = "benchmarks/"
    problems = [
        run_part("tests", [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"], 130),
        run_part("queries", [sys.executable, here + "lm_queries.py", "--device", "cuda", *out], 130),
        run_part("greedy CTC", [sys.executable, here + "gpu.py", "--part", "greedy-ctc", *out], 60),
        run_part("training", [sys.executable, here + "train_lm.py", *TRAINING, *out], 200),
    ]
    failed = [problem for problem in problems if problem]
    print("\n" + ("\n".join(failed) if failed else "all parts done"))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
