"""Run ranges of rows on several threads, if possible on torch's threads.

After each parallel operation of torch, the threads of torch's OpenMP runtime spin for some milliseconds without giving up their
cores. Additional threads would wake up later and compete with the spinning threads: on two cores a search took as long with two
threads as with one. So the rows run on the threads of the runtime that torch has loaded, as in `at::parallel_for`.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

# For fewer output elements than this, a second thread costs more than it saves.
ELEMENTS_PER_THREAD = 1 << 16

_Found = TypeVar("_Found")
_Run = Callable[[int, int], _Found]
_body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def in_threads(run: _Run[_Found], rows: int, elements_per_row: int) -> list[_Found]:
    """Call `run(first, last)` on ranges of rows, and return the results in order.

    The number of threads is torch's number of threads, or smaller if there is little work (`rows * elements_per_row`).
    """
    worth = rows * elements_per_row // ELEMENTS_PER_THREAD
    threads = min(torch.get_num_threads(), rows, worth) if worth > 1 else 1
    if threads <= 1:
        return [run(0, rows)]
    bounds = np.linspace(0, rows, threads + 1).astype(np.int64)
    parallel = _openmp()
    if parallel is None or _has_lost_threads():
        return _in_pool(run, bounds)
    return _in_team(parallel, run, bounds)


def on_rows(
    function: Callable[..., int], arguments: Sequence[Any], rows: int, elements_per_row: int, refusal: Callable[[int], str]
) -> list[int]:
    """Call a function of the core on ranges of rows, as in `in_threads`: `function(first, last, *arguments)`. Return the
    results.

    Raises:
        IndexError: a row is invalid, which the function reports by returning the row's number. `refusal(row)` is the message.
    """
    results = in_threads(lambda first, last: function(first, last, *arguments), rows, elements_per_row)
    for row in results:
        if row >= 0:
            raise IndexError(refusal(row))
    return results


def block_bounds(rows: int, least: int) -> np.ndarray:
    """Return the bounds of blocks of at least `least` rows each, at most one block per core."""
    return np.linspace(0, rows, max(1, min(os.cpu_count() or 1, rows // least)) + 1).astype(np.int64)


def in_blocks(
    run: Callable[..., _Found], bounds: np.ndarray, arguments: tuple[Any, ...] = (), *each: Iterable[Any]
) -> list[_Found]:
    """Call `run(first, last, *own, *arguments)` for each block of rows, on as many threads as there are cores.

    `bounds` has the bounds of adjacent blocks `[B + 1]`, or any blocks `[B, 2]`. Each iterable in `each` has one item per
    block, and `own` has the items of this block. Results are returned in the order of the blocks. Threads are started for each
    call, so blocks should take milliseconds or longer.
    """
    blocks = (bounds if bounds.ndim == 2 else np.stack([bounds[:-1], bounds[1:]], 1)).tolist()
    threads = min(os.cpu_count() or 1, len(blocks))
    if threads <= 1:
        return [run(*block, *own, *arguments) for block, *own in zip(blocks, *each)]
    jobs = enumerate(zip(blocks, *each))
    results: dict[int, _Found] = {}

    def take(_: int) -> None:  # there may be too many blocks to give each to the pool
        for number, (block, *own) in jobs:
            results[number] = run(*block, *own, *arguments)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(take, range(threads)))
    return [results[number] for number in range(len(blocks))]


def _was_forked() -> bool:
    """Return whether this process was forked and still runs the same program, according to Linux's flag PF_FORKNOEXEC."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        return bool(int(after_name.split()[6]) & 0x40)
    except (OSError, ValueError, IndexError):
        return True


# If a process forks after using torch, the child's runtime has no threads, but would wait for them for ever.
_loaded_in, _loaded_after_fork = os.getpid(), _was_forked()


def _has_lost_threads() -> bool:
    return _loaded_after_fork or os.getpid() != _loaded_in


def _in_pool(run: _Run[_Found], bounds: np.ndarray) -> list[_Found]:
    return list(_pool(os.getpid(), len(bounds) - 1).map(run, bounds[:-1], bounds[1:]))


@functools.cache  # the process id is a key, because a forked process needs its own pool
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "hf_ngpulm")


def _in_team(parallel: Callable[..., None], run: _Run[_Found], bounds: np.ndarray) -> list[_Found]:
    """Call `run` on all ranges in a team of threads, which `parallel` (see `_openmp`) starts. Each thread takes one range after
    another until all are done.

    A team may have fewer threads than requested, so ranges aren't assigned to threads in advance.
    """
    parts, threads = itertools.count(), len(bounds) - 1
    results: dict[int, _Found] = {}
    errors: list[BaseException] = []

    def take(_: int | None) -> None:
        try:
            while (part := next(parts)) < threads:
                results[part] = run(bounds[part], bounds[part + 1])
        except BaseException as error:  # an exception must be kept, but must not pass through the runtime's frames
            errors.append(error)

    parallel(_body(take), None, threads, 0)
    if errors:
        raise errors[0]
    return [results[part] for part in range(threads)]


@functools.lru_cache(maxsize=1)
def _openmp() -> Callable[..., Any] | None:
    """Return the function `GOMP_parallel(body, data, threads, flags)` of torch's OpenMP runtime; None if the runtime lacks it.

    Compilers call this function for `#pragma omp parallel`. The runtimes of GNU, LLVM and Intel all have it. The lookup goes
    through torch's library, so that it finds the function of torch's runtime.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        parallel = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes, parallel.restype = [_body, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return parallel
