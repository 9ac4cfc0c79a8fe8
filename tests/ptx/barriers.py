"""What becomes of the project's kernels without one of their barriers: a table.

    python tests/ptx/barriers.py [WORD ...]     only barriers whose place has one of the words, such as "ctc_beam"

Each `tl.debug_barrier()` is taken out alone, and the problems of `problems.py` that run its kernel are asked. One whose loss
isn't noticed isn't needed, or needs a problem of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BARRIER = "tl.debug_barrier()"
# Which problems run the kernels of a module.
NEEDED_BY = {
    "automaton.gpu": ["queries"],
    "search.attention_step.gpu": ["attention"],
    "search.attention_step.loops.gpu": ["loops"],
    "search.ctc_greedy.gpu": ["greedy_ctc"],
    "search.ctc_beam.gpu": ["beam_ctc", "beam_ctc_alone"],
    "search.networks.gpu": ["transducer"],
    "search.transducer_greedy.gpu": ["transducer"],
    "search.transducer_beam.gpu": ["alsd_of_two", "alsd", "aes"],
}


class Barrier(NamedTuple):
    module: str  # without "hf_ngpulm."
    line: int
    function: Any

    @property
    def place(self) -> str:
        return f"{self.module.removesuffix('.gpu').rpartition('.')[2]}:{self.line}"


def functions() -> list[tuple[str, Any]]:
    """All functions of Triton in the package, with their modules."""
    from triton.runtime.jit import JITFunction

    import hf_ngpulm

    found = []
    for module in pkgutil.walk_packages(hf_ngpulm.__path__, "hf_ngpulm."):
        if module.name.endswith(".gpu"):
            names = vars(importlib.import_module(module.name)).values()
            own = {id(each): each for each in names if isinstance(each, JITFunction) and each.__module__ == module.name}
            found += [(module.name.removeprefix("hf_ngpulm."), each) for each in own.values()]
    return found


def barriers() -> list[Barrier]:
    return [
        Barrier(module, number, function)
        for module, function in functions()
        for number, line in enumerate(*inspect.getsourcelines(function.fn))
        if BARRIER in line
    ]


@contextlib.contextmanager
def without(barrier: Barrier) -> Iterator[None]:
    function, before = barrier.function, barrier.function.src
    lines, begin = before.splitlines(keepends=True), inspect.getsourcelines(barrier.function.fn)
    at = barrier.line - begin[1] - (len(begin[0]) - len(lines))  # without decorators
    assert BARRIER in lines[at], lines[at]
    lines[at] = lines[at].replace(BARRIER, "pass")
    try:
        _change(function, "".join(lines))
        yield
    finally:
        _change(function, before)


def _change(function: Any, source: str) -> None:
    function._unsafe_update_src(source)
    for _, each in functions():  # who calls it is compiled anew, too
        each.hash = None
        each.device_caches.clear()


def noticed(barrier: Barrier) -> str | None:
    """The first line of what is told without a barrier; None, if nothing is."""
    import ptx
    from problems import PROBLEMS

    with without(barrier):
        for name in NEEDED_BY[barrier.module]:
            try:
                PROBLEMS[name]()
            except ptx.PTXError as error:
                return f"{name}: {str(error).splitlines()[1]}"
            except AssertionError as error:
                return f"{name}: other results: {str(error).splitlines()[0]}"
    return None


def main() -> None:
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "tests" / "support")]
    import ptx

    ptx.install()
    for barrier in barriers():
        if len(sys.argv) == 1 or any(word in barrier.place for word in sys.argv[1:]):
            print(f"{barrier.place:24s} {noticed(barrier) or 'NOTHING'}", flush=True)


if __name__ == "__main__":
    main()
