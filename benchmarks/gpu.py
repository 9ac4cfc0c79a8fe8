"""Everything that needs a GPU, in one command without network: tests, timings, a table, JSON results (`make gpu`).

    python3 benchmarks/gpu.py [--out FOLDER]

Runs from a source tree with any Python that has torch with CUDA, triton, transformers and pytest. Each part has a time
limit, so that the whole ends in under nine minutes; a part that fails or runs out of time is named at the end, and the command
fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

BATCHES = (1, 8, 32, 128)
BEAMS = (4, 8, 32)
FRAMES = 250  # 20 s of audio at 80 ms a frame
TRANSDUCERS = ["--batch-sizes", "32", "128", "--name", "transducer_random_gpu"]
ATTENTION = [
    "--models",
    "whisper-tiny",
    "whisper-large-v3",
    "qwen-head",
    "--batch-sizes",
    "1",
    "32",
    "--ways",
    "processor",
    "strategy",
]
CONTEXTS = ["--random", "--device", "cuda", "--name", "contexts_gpu"]
ATTENTION += ["--steps", "20", "--seconds", "1.5", "--name", "aed_gpu"]


def ctc(out: Path | None) -> None:
    """Time of CTC search with LM beside plain argmax. Of random logits one stands out at each frame, mostly the blank's."""
    import lm_queries

    from hf_ngpulm.search import ctc_beam as beam
    from hf_ngpulm.search import ctc_greedy as greedy

    results: list[dict[str, Any]] = []
    for vocab_size in (1024, 5000):
        lm = lm_queries.build_model(vocab_size, 6).to("cuda")
        for batch_size in BATCHES:
            logits = torch.randn(batch_size, FRAMES, vocab_size + 1, device="cuda")
            said = torch.randint(vocab_size, (batch_size, FRAMES, 1), device="cuda")
            said = torch.where(torch.rand(said.shape, device="cuda") < 0.75, vocab_size, said)
            logits.scatter_add_(2, said, torch.full(said.shape, 10.0, device="cuda"))
            lengths = torch.full((batch_size,), FRAMES, dtype=torch.int32, device="cuda")
            weights = torch.full((batch_size, 1), 0.5, device="cuda")
            costs = 3 * weights[:, 0]  # of staying, or what a token adds in the beam
            states = lm.initial_states(batch_size)[:, None].contiguous()
            before = torch.full((batch_size, 2), vocab_size, dtype=torch.int32, device="cuda")
            inputs, classes = (list(lm.tensors), logits, lengths), (vocab_size, vocab_size)
            seconds = {"argmax": measure.graph_seconds([partial(logits.argmax, -1)])}
            for rule in greedy.RULES:
                call = partial(greedy.ctc_greedy, *inputs, states, weights, costs, before, *classes, rule)
                seconds[rule] = measure.graph_seconds([call])
            for num_beams in BEAMS:
                state = beam.initial_state(num_beams, states)
                arguments = (inputs[0], state, *inputs[1:], weights, costs, -3 * costs, *classes)
                call = partial(beam.ctc_beam, *arguments, threshold=20.0)
                seconds[f"beam {num_beams}"] = measure.graph_seconds([call], replays=5)
            results.append({"vocab_size": vocab_size, "batch_size": batch_size, "frames": FRAMES, "seconds": seconds})
    names = list(results[0]["seconds"])
    rows = [[r["vocab_size"], r["batch_size"], *(f"{1e6 * r['seconds'][name]:.0f}" for name in names)] for r in results]
    print(measure.table(["V", "batch", *(f"{name} us" for name in names)], rows))
    print("results in", measure.save("ctc_search_gpu", {"searches": results}, out))


def training(tokens: str, name: str) -> list[str]:
    """Options of train_lm.py."""
    options = ["--tokens", tokens, "--orders", "6", "--device", "cpu", "cuda", "--repeats", "1", "--memory", "100"]
    return [*options, "--save", name]


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
    parser.add_argument("--part", choices=["ctc"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: this Python's torch sees no CUDA device; run it on a machine with one")
    if args.part:
        ctc(args.out)
        return
    out = ["--out", str(args.out)] if args.out else []
    here = "benchmarks/"
    problems = [
        run_part("tests", [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"], 110),
        run_part("queries", [sys.executable, here + "lm_queries.py", "--device", "cuda", *out], 90),
        run_part("CTC", [sys.executable, here + "gpu.py", "--part", "ctc", *out], 50),
        run_part("transducers", [sys.executable, here + "transducer_random.py", *TRANSDUCERS, *out], 70),
        run_part("attention decoders", [sys.executable, here + "aed.py", *ATTENTION, *out], 50),
        run_part("contexts", [sys.executable, here + "contexts.py", *CONTEXTS, *out], 30),
        run_part("training", [sys.executable, here + "train_lm.py", *training("10_000_000", "train_lm_gpu"), *out], 35),
        run_part("training", [sys.executable, here + "train_lm.py", *training("100_000_000", "train_lm_gpu_100m"), *out], 100),
    ]
    failed = [problem for problem in problems if problem]
    print("\n" + ("\n".join(failed) if failed else "all parts done"))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
