"""Where the time of the GPU kernels goes (`make gpu-profile`): a timeline of calls, and the counters of the main kernels.

    python3 benchmarks/gpu_profile.py [--out FOLDER]

First torch.profiler: for each subject the GPU's time by kernel, how many launches there are, and how much of a call the GPU has
nothing to do. Then, where there is Nsight Compute (`ncu`), registers, occupancy, and what share of the memory's and the
processors' peak rates the kernels reach. Results go to the folder that OUT names, if it is set, else to benchmarks/results.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lm_queries
import measure
import random_models
import torch
from torch.profiler import ProfilerActivity, profile

from hf_ngpulm import NGramLM
from hf_ngpulm.search import attention_step
from hf_ngpulm.search.attention_step import END, TEXT, FusedRows, Roles

CALLS = 5
# By the name of the kernel: what to ask `ncu` for.
KERNELS = ("_rows_kernel", "_step_kernel", "_label_kernel", "_search_kernel", "_add_kernel")
COUNTERS = {
    "gpu__time_duration.sum": "time",
    "launch__registers_per_thread": "registers",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy %",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory %",
    "lts__t_sector_hit_rate.pct": "L2 hits %",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "processors %",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "waits for memory",
}
NCU_SECONDS = 240


def main() -> None:
    about, out = {"tiny": "tiny sizes, to see that it runs", "run_once": argparse.SUPPRESS}, os.environ.get("OUT")
    options = {"threads": None, "out": Path(out) if out else Path, "tiny": False, "run_once": False}
    args = measure.arguments(__doc__, "gpu_profile", None, about, **options).parse_args()
    if not measure.has_gpu():
        sys.exit("benchmarks/gpu_profile.py: this Python's torch sees no CUDA device; run it on a machine with one")
    torch.manual_seed(0)
    with torch.inference_mode():
        calls = subjects(args.tiny)
        if args.run_once:  # under ncu: compiled first, then once for its counters
            for call in (*calls.values(), *calls.values()):
                call()
            return
        results: dict[str, Any] = {"subjects": {name: profiled(name, call) for name, call in calls.items()}}
    measure.report(counters(args), args, results, "counters")


def subjects(tiny: bool) -> dict[str, Callable[[], Any]]:
    """Return calls of the main kernels, in sizes that matter."""
    vocab_size, batch_size, frames, ngrams = (20, 2, 3, 2000) if tiny else (1024, 128, 250, lm_queries.NGRAMS)
    lm = lm_queries.build_model(vocab_size, 6, ngrams).to(measure.GPU)
    states = lm_queries.states_of(lm, lm_queries.text_of(lm, ngrams), batch_size, 0)
    tokens = torch.randint(vocab_size, (batch_size,), device=measure.GPU)
    logits = random_models.peaked_logits(batch_size, frames, vocab_size)
    lengths = torch.full((batch_size,), frames, dtype=torch.int32, device=measure.GPU)
    calls = {"LM query scores": partial(lm.scores, states), "LM query step": partial(lm.step, states, tokens)}
    calls["greedy CTC"] = random_models.greedy_search(lm, logits, lengths)
    calls["CTC beam 8"] = random_models.beam_search(lm, logits, lengths, 8, float("inf"))
    calls = {f"{name}, V={vocab_size}, B={batch_size}": call for name, call in calls.items()}
    return calls | {"a step of attention decoding": attention(30 if tiny else 51_865, 2 if tiny else 32, ngrams)}


def attention(vocab_size: int, batch_size: int, ngrams: int) -> Callable[[], Any]:
    lm: NGramLM = lm_queries.build_model(vocab_size, 5, ngrams).to(measure.GPU)
    roles = torch.full((vocab_size + 1,), TEXT, dtype=torch.int8)
    roles[vocab_size] = END
    starts = lm.initial_states(batch_size)
    weights = torch.full((batch_size,), 0.2, device=measure.GPU)
    rows = FusedRows(lm.tensors, vocab_size, lm.context_length, starts, lm.initial_states(batch_size, bos=False), weights)
    text = torch.from_numpy(lm_queries.text_of(lm, ngrams)[: 20 * batch_size]).reshape(batch_size, 20).to(measure.GPU)
    scores = torch.randn(batch_size, vocab_size + 1, device=measure.GPU)
    return partial(attention_step.fuse, scores, text, rows, Roles.of(roles).to(torch.device(measure.GPU)))


def profiled(name: str, call: Callable[[], Any]) -> dict[str, Any]:
    """Return what a profiler sees of some calls: microseconds of each kernel, launches, and the host's time, a call."""
    call(), call()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if measure.GPU == "cuda" else [])]) as found:
        seconds = measure.wall_seconds(lambda: [call() for _ in range(CALLS)], 1) / CALLS
    kernels: dict[str, dict[str, float]] = {}
    runs = 3 * CALLS if measure.GPU == "cuda" else CALLS  # `wall_seconds` calls twice before
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernel = kernels.setdefault(event.name[:60], {"microseconds": 0.0, "launches": 0.0})
            kernel["microseconds"] += event.time_range.elapsed_us() / runs
            kernel["launches"] += 1 / runs
    busy = sum(kernel["microseconds"] for kernel in kernels.values())
    print(f"\n{name}: {1e6 * seconds:.1f} us a call, of which the GPU works {busy:.1f} us")
    rows = sorted(({**of, "kernel": kernel} for kernel, of in kernels.items()), key=lambda row: -row["microseconds"])
    print(measure.table(rows[:12]), flush=True)
    return {"microseconds": 1e6 * seconds, "busy_microseconds": busy, "kernels": kernels}


def counters(args: argparse.Namespace) -> list[dict[str, str]]:
    """Return what `ncu` counts in the last launch of each of the main kernels."""
    if shutil.which("ncu") is None:
        print("\nno ncu here (Nsight Compute): no counters")
        return []
    command = ["ncu", "--csv", "--clock-control", "none", "--metrics", ",".join(COUNTERS), "--kernel-name-base", "function"]
    command += ["--kernel-name", f"regex:{'|'.join(KERNELS)}", "--target-processes", "all"]
    command += [sys.executable, __file__, "--run-once", *(["--tiny"] if args.tiny else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NCU_SECONDS, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        print(f"\nncu: {error}\n{(str(error.stdout or '') + str(error.stderr or ''))[-3000:]}")
        return []
    return last_launches(done.stdout)


def last_launches(printed: str) -> list[dict[str, str]]:
    """Return a row of counters for the last launch of each kernel, from what `ncu --csv` prints after its own lines."""
    lines = printed.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[str, dict[str, str]] = {}
    last: dict[str, str] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[first:]))):
        name = row["Kernel Name"]
        if last.get(name) != row["ID"]:
            last[name], found[name] = row["ID"], {"kernel": name} | dict.fromkeys(COUNTERS.values(), "")
        if row["Metric Name"] in COUNTERS:
            found[name][COUNTERS[row["Metric Name"]]] = f"{row['Metric Value']} {row['Metric Unit']}".strip()
    return list(found.values())


if __name__ == "__main__":
    main()
