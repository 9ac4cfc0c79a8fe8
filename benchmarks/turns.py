"""Two versions of the package side by side: the same calls by turns, so that a change of the machine's mood hits both.

    git worktree add ../before COMMIT
    python benchmarks/turns.py ../before --threads 1 --name turns_one_thread

Each version runs in a process of its own, whose `hf_ngpulm` is that of the given checkout; the cases are in turns_cases.py, and
use what both have. One call of a case in one process, then one in the other, again and again: medians of the seconds of CPU
that the process has had with one thread, of wall time with more. The first call of each case in a process is told by itself
("first"), less the median: what is compiled or loaded. With `--memory` each case has processes of its own, and what they take
at most is compared (resident memory, encoders and all). (asv takes turns, too, but of whole rounds of all cases, minutes apart,
and installs each commit anew for each of them.)
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def work(tree: str, threads: int) -> None:
    """Run the case that each line of the input names: JSON lines with seconds and the peak of memory."""
    sys.path[:0] = [tree]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import hf_ngpulm

    assert Path(hf_ngpulm.__file__).is_relative_to(Path(tree)), hf_ngpulm.__file__
    import measure
    import torch
    from turns_cases import CASES

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    calls: dict[str, Any] = {}
    for case in map(str.strip, sys.stdin):
        try:
            if case not in calls:
                calls[case] = CASES[case]()
            answer: dict[str, Any] = {"seconds": measure.seconds_of(calls[case])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    """A process with one version."""

    def __init__(self, tree: Path, threads: int) -> None:
        script = f"import sys; sys.path.insert(0, {str(HERE)!r}); import turns; turns.work({str(tree.resolve())!r}, {threads})"
        command = [sys.executable, "-c", script]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TRANSFORMERS_VERBOSITY": "error"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **pipes, text=True, env=environment)

    def ask(self, case: str) -> dict[str, Any]:
        print(case, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '{"error": "the process has died"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def compare(case: str, workers: list[Worker], seconds: float) -> dict[str, Any]:
    """Return the figures of one case in two processes."""
    first = [worker.ask(case)["seconds"] for worker in workers]
    turns = max(5, min(40, round(seconds / sum(worker.ask(case)["seconds"] for worker in workers))))
    found: list[list[float]] = [[], []]
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            found[which].append(workers[which].ask(case)["seconds"])
    before, after = map(statistics.median, found)
    row = {"case": case, "before_ms": 1e3 * before, "after_ms": 1e3 * after, "ratio": after / before, "turns": turns}
    row["ratio_of_least"] = min(found[1]) / min(found[0])
    row |= {"first_before_s": first[0] - before, "first_after_s": first[1] - after}
    return row | dict(zip(("peak_before_mib", "peak_after_mib"), (worker.ask(case)["peak"] for worker in workers)))


def rows_of(args: Any, cases: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the row of each case."""
    workers: list[Worker] = []
    for case in cases:
        if args.memory or not workers:
            for worker in workers:
                worker.process.communicate()
            workers = [Worker(tree, args.threads) for tree in map(Path, (args.before, args.after))]
        try:
            yield compare(case, workers, args.seconds)
        except RuntimeError as error:
            yield {"case": case, "error": str(error)}
    for worker in workers:
        worker.process.communicate()


def main() -> None:
    import measure
    from turns_cases import CASES

    about = {"cases": "only those whose names contain one of these", "seconds": "of each case, about"}
    about["memory"] = "processes of its own for each case"
    parser = measure.arguments(__doc__, "turns", None, about, after=str(measure.ROOT), cases=("",), seconds=8.0, memory=False)
    parser.add_argument("before", help="a checkout of another version")
    args = parser.parse_args()
    cases = [case for case in CASES if any(part in case for part in args.cases)]
    measure.report(rows_of(args, cases), args, {"threads": args.threads})


if __name__ == "__main__":
    main()
