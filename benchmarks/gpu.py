"""Everything that needs a GPU, in one command without network: tests, timings, goals, JSON results (`make gpu`).

    python3 benchmarks/gpu.py [--out FOLDER]

Runs from a source tree with any Python that has torch with CUDA, triton, transformers and pytest. Results go to the folder that
the environment variable OUT names, if it is set, else to benchmarks/results: a file for each part, and gpu.json with what came
of all parts. Each part has a time limit, at which it is killed with all processes that it has started, so that the whole ends
within nine minutes; what fails or runs out of time is named at the end with its last lines, and the command fails. The figures
are held to their goals; that one is missed doesn't fail it. Parts write their results as they get them: what a part that was
killed had measured by then is there.

`--tiny` has a CPU stand in for the GPU: the emulator in `tests/support/ptx` runs the kernels as compiled, with tiny sizes, to
see that all of it runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import goals
import measure

SECONDS = 525  # for all parts; what is left of nine minutes is for their ends
TINY_SECONDS = 3600
TEST_PROCESSES = 8
TRAINING_TOKENS = 30_000_000
KEPT_LINES, SHOWN_LINES = 400, 40  # of what a part prints: in the results, and again at the end if it failed


class Part(NamedTuple):
    """What is run in a process of its own."""

    name: str
    command: list[str]  # arguments of Python
    limit: float  # seconds
    result: str | None = None  # name of its result file, without ".json"
    goals: Callable[[dict[str, Any]], list[goals.Goal]] | None = None  # what to make of that


@dataclass
class Outcome:
    """What came of a part: "done", or what went wrong; how long it took; and the last lines that it printed."""

    name: str
    status: str = "not begun: no time was left"
    seconds: float = 0.0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))


def main() -> None:
    about = {"seconds": f"for all parts together (default: {SECONDS}, or any if tiny)", "tiny": "tiny sizes, without a GPU"}
    options = {"threads": None, "seconds": float, "tiny": False, "only": (str,)}
    args = measure.arguments(__doc__, None, None, {**about, "only": "names of parts"}, **options).parse_args()
    args.out = (args.out or Path(os.environ.get("OUT") or measure.RESULTS)).resolve()
    args.seconds = args.seconds or (TINY_SECONDS if args.tiny else SECONDS)
    if args.tiny:
        os.environ.update({measure.STAND_IN: "1", "HF_NGPULM_ENGINE": "gpu"})
    elif not measure.has_gpu():
        sys.exit("benchmarks/gpu.py: this Python's torch sees no CUDA device; run it on a machine with one")
    os.environ.pop("TRITON_INTERPRET", None)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        parts = [part for part in parts_of(args, Path(folder)) if not args.only or part.name in args.only]
        stream = None if args.tiny else start_stream(Path(folder), parts)
        outcomes = []
        for number, part in enumerate(parts):
            left = args.seconds - (time.monotonic() - began)
            # A part that takes longer takes its share from all that come after it.
            share = left / sum(other.limit for other in parts[number:])
            share = share if args.tiny else min(1.0, share)  # limits make up SECONDS
            outcomes.append(run_part(part, part.limit * share) if left > 1 else Outcome(part.name))
        if stream is not None:
            kill(stream)
    failed = report(parts, outcomes, args.out, time.monotonic() - began)
    sys.exit(bool(failed))


def parts_of(args: argparse.Namespace, folder: Path) -> list[Part]:
    """Return all parts, in their order: should time run out, the last ones get less."""
    tiny, device, text = args.tiny, "cpu" if args.tiny else "cuda", folder / "tokens.txt"
    tests = ["-m", "pytest", "-v", "-rs", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"]
    if tiny:
        tests += ["-x"]
    elif importlib.util.find_spec("xdist"):
        tests += ["-n", str(TEST_PROCESSES)]

    def timing(name: str, script: str, limit: float, result: str, goals: Any, always: str, real: str, small: str) -> Part:
        """Return a part that times something, with options of real sizes, or tiny ones."""
        command = shlex.split(f"benchmarks/{script} {always} {small if tiny else real}")
        return Part(name, [*command, "--name", result, "--out", str(args.out)], limit, result, goals)

    sizes = "--tiny --frames 3 --vocab-sizes 20 --batch-sizes 2 --beams 3 --ngrams 2000"
    large = "--models whisper-tiny whisper-large-v3 qwen-head --batch-sizes 1 32 --steps 20 --seconds 1.5"
    small = "--models whisper-none --batch-sizes 2 --beams 1 --steps 3 --turns 1"
    training = f"--orders 6 --repeats 1 --memory 100 --device {device}"
    return [
        # Hypotheses, and tests that compare with the CPU, need it; where it is there this takes no time.
        Part("native core", ["csrc/build.py"], 45),
        Part("tests", tests, 160),
        timing("queries", "lm_queries.py", 45, "lm_queries_gpu", goals.of_queries, "--device cuda --orders 6",
               "--batch-sizes 1 8 32 128 256", "--batch-sizes 1 3 --vocab-sizes 20 --ngrams 2000"),
        timing("CTC", "random_times.py ctc", 45, "ctc_search_gpu", goals.of_ctc, "", "", sizes),
        timing("transducers", "random_times.py transducers", 90, "transducer_random_gpu", goals.of_transducers,
               f"--device {device}", "--batch-sizes 32 128", "--tiny --batch-sizes 2 --repeats 1"),
        timing("attention decoders", "random_times.py attention", 40, "aed_gpu", goals.of_attention,
               f"--device {device} --ways processor strategy", large, small),
        timing("contexts", "random_times.py contexts", 40, "contexts_gpu", goals.of_contexts, "", "",
               "--tiny --batch-size 2 --repeats 1"),
        timing("training", "train_lm.py", 30, "train_lm_gpu", goals.of_training, training,
               f"--tokens {TRAINING_TOKENS} --text {shlex.quote(str(text))}", "--tokens 3000"),
        Part("launches", ["tests/support/launches.py", "--out", str(folder)], 30),
    ]  # fmt: skip


def start_stream(folder: Path, parts: list[Part]) -> subprocess.Popen[bytes] | None:
    """Begin to make the text that a model is trained on, which takes a while, on a core that nobody needs."""
    if all(part.name != "training" for part in parts):
        return None
    script = (
        f"import os, pathlib, sys; sys.path.insert(0, 'benchmarks'); import synthetic; part = pathlib.Path({str(folder)!r});"
        f"synthetic.write_tokens(part / 'part', {TRAINING_TOKENS}, 1024); os.replace(part / 'part', part / 'tokens.txt')"
    )
    return subprocess.Popen([sys.executable, "-c", script], cwd=measure.ROOT, start_new_session=True)


def run_part(part: Part, limit: float) -> Outcome:
    """Run a part, passing on what it prints."""
    print(f"\n== {part.name} (at most {limit:.0f} s)", flush=True)
    outcome, begin = Outcome(part.name), time.monotonic()
    places = os.pathsep.join(filter(None, (str(measure.ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": places, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, *part.command], cwd=measure.ROOT, env=environment, start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    reader = threading.Thread(target=pass_on, args=(process.stdout, outcome.lines), daemon=True)
    reader.start()
    try:
        status = process.wait(limit)
        outcome.status = "done" if status == 0 else f"exit status {status}"
    except subprocess.TimeoutExpired:
        outcome.status = f"not done in {limit:.0f} s"
    kill(process)  # and what it may have left behind
    reader.join(5)
    if not reader.is_alive():
        process.stdout.close()
    outcome.seconds = time.monotonic() - begin
    print(f"== {part.name}: {outcome.status}, {outcome.seconds:.0f} s", flush=True)
    return outcome


def pass_on(source: Any, lines: deque[str]) -> None:
    for line in source:
        lines.append(line.rstrip("\n"))
        print(lines[-1], flush=True)


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process and all that belong to its group, which is its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def report(parts: list[Part], outcomes: list[Outcome], out: Path, seconds: float) -> list[Outcome]:
    """Print what failed, and the goals; keep both. Returns what failed."""
    failed = [outcome for outcome in outcomes if outcome.status != "done"]
    for outcome in failed:
        print(f"\n== {outcome.name}: {outcome.status}. Its last lines:")
        print("\n".join(list(outcome.lines)[-SHOWN_LINES:]))
    reached: list[goals.Goal] = []
    for part, outcome in zip(parts, outcomes, strict=True):
        path = out / f"{part.result}.json"
        if part.goals is not None and outcome.status == "done":
            try:
                reached += part.goals(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, KeyError, IndexError) as error:
                outcome.status = f"its results {path.name} can't be read: {error!r}"
                failed.append(outcome)
    print("\n" + goals.table(reached) if reached else "\nno figures")
    print("\n" + measure.table([{"part": o.name, "": o.status, "s": f"{o.seconds:.0f}"} for o in outcomes]))
    kept = [{"name": o.name, "status": o.status, "seconds": o.seconds, "lines": list(o.lines)} for o in outcomes]
    figures = [{**goal._asdict(), "is_met": goal.is_met} for goal in reached]
    path = measure.save("gpu", {"seconds": seconds, "parts": kept, "goals": figures}, out)
    print(f"\n{seconds:.0f} s; results in {path.parent}", flush=True)
    return failed


if __name__ == "__main__":
    main()
