"""What every benchmark here needs: a command line, clocks and medians, the machine's facts, tables, results kept as JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks measure the package that they lie beside
RESULTS = ROOT / "benchmarks" / "results"
GRAPH_CALLS = 20
LONG = 200  # characters of a value that is kept, but not printed
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Where there is no GPU, a CPU can stand in for one, to see that benchmarks run through: it tells nothing of their times.
STAND_IN = "HF_NGPULM_GPU_STAND_IN"
GPU = "cpu" if os.environ.get(STAND_IN) else "cuda"
if GPU == "cpu":  # the kernels run as compiled, by the tests' emulator
    sys.path.append(str(ROOT / "tests" / "support"))
    import ptx

    ptx.install()


def has_gpu() -> bool:
    """Whether there is a GPU, or a CPU that stands in for one."""
    return GPU == "cpu" or torch.cuda.is_available()


class Command(argparse.ArgumentParser):
    """A command line of a script; PyTorch gets the threads that it says."""

    def __init__(self, doc: str | None = None, **given: Any) -> None:
        super().__init__(**{"description": doc, "formatter_class": argparse.RawDescriptionHelpFormatter, **given})

    def parse_args(self, *given: Any) -> argparse.Namespace:  # type: ignore[override]
        args = super().parse_args(*given)
        torch.set_num_threads(getattr(args, "threads", torch.get_num_threads()))
        return args


def arguments(doc: str | None, name: Any, parser: Any = None, about: Any = MappingProxyType({}), **options: Any) -> Any:
    """Return a command with its options, and what all have: threads, the result file's name and folder.

    Args:
        parser: that of a subcommand.
        about: help of options, or what else `add_argument` shall be given.
        options: by name the default, or the type if there is none; a tuple stands for several values, False for a flag, None
            for no such option.
    """
    parser = parser or Command(doc)
    about = {"threads": "of PyTorch on the CPU", "name": "of the result file", "out": "its folder (default: results)", **about}
    for option, default in {"threads": 1, "name": name, "out": Path, **options}.items():
        if default is None:
            continue
        one = default[0] if isinstance(default, tuple) else default
        given: dict[str, Any] = {"action": "store_true"}
        if one is not False:
            given = {"type": one if isinstance(one, type) else type(one), "default": None if isinstance(one, type) else default}
        given |= {"nargs": "+"} if isinstance(default, tuple) else {}
        said = about.get(option)
        given |= said if isinstance(said, dict) else {"help": said}
        parser.add_argument("--" + option.replace("_", "-"), **given)
    return parser


def now(device: str = "cpu") -> float:
    """Return seconds, once the device has done its work; with one thread on a CPU those that this process has had of it."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


def timed(call: Callable[[], Any], device: str = "cpu") -> tuple[Any, float]:
    """Return what a call gives, and how long it takes."""
    begin = now(device)
    found = call()
    return found, now(device) - begin


def seconds_of(call: Callable[[], Any], device: str = "cpu") -> float:
    return timed(call, device)[1]


def median_seconds(call: Callable[[], Any], seconds: float = 0.3, least: int = 5) -> float:
    """Median wall time of a call on the CPU, after two warm-up calls."""
    call(), call()
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        times.append(wall_time(call))
    return sorted(times)[len(times) // 2]


def by_turns(calls: dict[Any, Callable[[], float]], repeats: int) -> dict[Any, float]:
    """Medians of the seconds that calls return.

    They take turns, so that a change of the machine's mood hits all. The first turn loads compiled code and doesn't count.
    """
    found: dict[Any, list[float]] = {what: [] for what in calls}
    for turn in range(repeats + 1):
        for what, call in calls.items():
            seconds = call()
            found[what] += [seconds] if turn else []
    return {what: statistics.median(seconds) for what, seconds in found.items()}


def graph_seconds(calls: list[Callable[[], Any]], replays: int = 15, count: int = GRAPH_CALLS) -> float:
    """Return the median GPU time of a call in a CUDA graph that holds so many of them, going round the given ones."""
    if GPU == "cpu":
        return wall_time(calls[0])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = [calls[i % len(calls)]() for i in range(count)]
    seconds = _of_gpu(graph.replay, replays + 3)[3:]
    del kept
    return sorted(seconds)[replays // 2] / count


def _of_gpu(call: Callable[[], Any], count: int) -> list[float]:
    """Return the GPU's own time for each of some calls."""
    seconds = []
    for _ in range(count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return seconds


def wall_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Return the median time until a call has come back and the GPU is done, after two that don't count."""
    if GPU == "cpu":
        return wall_time(call)
    return median_seconds(lambda: (call(), torch.cuda.synchronize()), 0, repeats)


def wall_time(call: Callable[[], Any]) -> float:
    """Return the seconds until a call has come back, whatever this process has had of them."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def copy_bandwidth(gibibytes: int = 4) -> float:
    """Return the bytes read plus bytes written in a second by a large copy on the GPU."""
    if GPU == "cpu":
        return 1e9
    source = torch.randint(0, 2**31, (gibibytes << 28,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / sorted(_of_gpu(lambda: target.copy_(source), 8))[4]


def machine() -> dict[str, Any]:
    """What a result depends on: hardware, versions, commit and command."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else []
    facts: dict[str, Any] = {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count()}
    facts["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    facts |= {"python": platform.python_version(), "command": " ".join(["python", *map(_argument, sys.argv)])}
    for package in ("torch", "triton", "transformers"):
        found = importlib.util.find_spec(package)
        facts[package] = found and importlib.metadata.version(package)
    try:  # a copy of the files may have no commit, and a machine no git
        git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
        return facts | {"commit": git.stdout.strip() or None}
    except OSError:
        return facts | {"commit": None}


def _argument(argument: str) -> str:
    """A path within the project as seen from its root, any other without the folders it lies in."""
    path = Path(argument).resolve()
    if not path.exists():
        return argument
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else f".../{path.name}"


def save(name: str, results: dict[str, Any], folder: Path | None = None) -> Path:
    """Write `results` with the machine's facts to `benchmarks/results/NAME.json` (or another folder)."""
    path = (folder or RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
    return path


def table(rows: list[Row]) -> str:
    """Rows as an aligned text table, without the lists and dictionaries in them."""
    shown = [{name: value for name, value in row.items() if not isinstance(value, (dict, list, tuple))} for row in rows]
    header = list(dict.fromkeys(name for row in shown for name in row))
    cells = [header, *([_cell(row.get(name, "")) for name in header] for row in shown)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(rows: Iterable[Row], args: argparse.Namespace, facts: dict[str, Any] | None = None, key: str = "rows") -> list[Row]:
    """Print rows as they come and save them with what is known so far (`facts`); return them, printed as a table."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        print(json.dumps({name: value for name, value in row.items() if len(str(value)) < LONG}), flush=True)
        save(args.name, {**(facts or {}), key: found}, args.out)
    print(table(found))
    print("results in", save(args.name, {**(facts or {}), key: found}, args.out))
    return found


def interval(errors: Any, lengths: Any = None, groups: Any = None) -> list[float]:
    """Return the bounds of the 95% interval of a rate (a bootstrap), drawing items or the groups (speakers) they are of."""
    counts = np.stack([errors, np.ones(len(errors)) if lengths is None else lengths], 1).astype(float)
    if groups is not None:
        counts = np.stack([counts[[each == group for each in groups]].sum(0) for group in dict.fromkeys(groups)])
    drawn = counts[np.random.default_rng(0).integers(0, len(counts), (2000, len(counts)))].sum(1)
    return np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975)).tolist()
