"""Rows on several threads: each once, in order, whatever runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from multiprocessing import get_context

import pytest
import torch

from hf_ngpulm.engines import threads
from hf_ngpulm.engines.threads import in_threads


@pytest.fixture(params=["torch's", "a pool's"])
def kind(request, monkeypatch):
    if request.param == "a pool's":
        monkeypatch.setattr(threads, "_openmp", lambda: None)
    return request.param


@pytest.fixture(autouse=True)
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def _runs(rows: int, elements_per_row: int = threads.ELEMENTS_PER_THREAD) -> list[tuple[int, int]]:
    return in_threads(lambda first, last: (int(first), int(last)), rows, elements_per_row)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 64])
def test_each_row_is_in_one_run_and_they_come_in_order(kind, rows):
    runs = _runs(rows)
    assert len(runs) == min(rows, 4)
    assert [row for first, last in runs for row in range(first, last)] == list(range(rows))


def test_little_work_stays_on_the_callers_thread(kind):
    assert in_threads(lambda first, last: threading.get_ident(), 8, 1) == [threading.get_ident()]
    assert _runs(8, threads.ELEMENTS_PER_THREAD // 4) == [(0, 4), (4, 8)]


def test_other_threads_run_too(kind):
    met = threading.Barrier(4, timeout=60)
    idents = in_threads(lambda first, last: (met.wait(), threading.get_ident())[1], 4, threads.ELEMENTS_PER_THREAD)
    assert len(set(idents)) == 4
    assert (threading.get_ident() in idents) == (kind == "torch's")


def test_errors_reach_the_caller(kind):
    def run(first, last):
        if first >= 2:
            raise IndexError(f"row {first}")
        return first

    with pytest.raises(IndexError, match=r"row [23]"):
        in_threads(run, 4, threads.ELEMENTS_PER_THREAD)
    assert len(_runs(4)) == 4  # and the next call is served


def test_many_callers_at_once(kind):
    found = {}

    def call(number):
        found[number] = [_runs(number + 1) for _ in range(50)]

    callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found == {number: [_runs(number + 1)] * 50 for number in range(8)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork():
    """The threads of the parent's OpenMP runtime are gone."""
    assert len(_runs(4)) == 4
    context = get_context("fork")
    answers = context.Queue()
    child = context.Process(target=lambda: answers.put(_runs(4)))
    child.start()
    assert answers.get(timeout=60) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    child.join(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_loaded_after_a_fork():
    """Torch has run in the parent; only the child loads the package."""
    script = """
import os, signal, torch
torch.set_num_threads(4)
torch.sin(torch.randn(1 << 20))
child = os.fork()
if child == 0:
    signal.alarm(60)  # rather than wait for ever
    from hf_ngpulm.engines import threads
    print([(int(a), int(b)) for a, b in threads.in_threads(lambda *run: run, 4, threads.ELEMENTS_PER_THREAD)], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[(0, 1), (1, 2), (2, 3), (3, 4)]", done.stderr


@pytest.mark.skipif(threads._openmp() is None, reason="torch's OpenMP runtime can't be called here")
def test_a_team_smaller_than_asked_for():
    script = """
import torch
torch.set_num_threads(4)
from hf_ngpulm.engines import threads
print([(int(a), int(b)) for a, b in threads.in_threads(lambda *run: run, 4, threads.ELEMENTS_PER_THREAD)])
"""
    environment = {**os.environ, "OMP_THREAD_LIMIT": "2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[(0, 1), (1, 2), (2, 3), (3, 4)]", done.stderr
