"""Grammars of anybody, on trial: what compiles has its cost, and what doesn't ends within the limits, with one error."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import pytest
from transformers import AutoTokenizer

from hf_ngpulm import Grammar
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar import trial as trials
from hf_ngpulm.grammar.trial import Trial

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
HEAD = "#JSGF V1.0;\ngrammar a;\n"
GOOD = HEAD + "public <switch> = turn (on {state=on} | off {state=off}) [the] (lamp | telly) {device=};"
SECONDS = 1.0
NAMES = ["".join(chr(ord("a") + n // 26**place % 26) for place in range(4)) + "aeiouaeiou" for n in range(0, 26**4, 150)]


def templates(*sentences, **more):
    return json.dumps({"intents": {"A": {"data": [{"sentences": list(sentences)}]}}, **more})


@pytest.fixture(scope="module")
def trial():
    tokenizer = AutoTokenizer.from_pretrained(str(bundled("examples/models/ctc")))
    made = Trial(tokenizer, SECONDS, 20_000)
    yield made
    made.close()


def test_what_compiles_has_a_cost(trial):
    cost = trial(GOOD)
    compiled = Grammar.from_text(GOOD).compiled(trial.tokenizer)
    assert cost.parts > compiled.tensors.num_arcs > 10 and cost.seconds < SECONDS
    rhino = {"context": {"expressions": {"timer": ["set (a) timer for $pv.TwoDigitInteger:minutes [minute, minutes]"]}}}
    for text in (json.dumps(rhino, indent="\t"), templates("dim [the] {name}", lists={"name": {"values": ["lamp"]}}), '["a"]'):
        assert 0 < trial(text).parts < 20_000
    assert Grammar.from_text(json.dumps(rhino, indent="\t")).reading("set timer for twelve minutes").slots[0].value == 12


# Some would take minutes, hours or gigabytes.
HOSTILE = {
    "doubled rules": (HEAD + "<x0> = a|b;\n" + "".join(f"<x{i}> = <x{i - 1}> <x{i - 1}>;\n" for i in range(1, 17))
                      + "public <a> = <x16>;", "takes more than 1 s or 512 MiB; write fewer"),
    "undecided": (HEAD + "public <a> = (a|b)* a " + " ".join(["(a|b)"] * 18) + ";", "takes more than 1 s or 512 MiB"),
    "all orders": (templates("(a;b;c;d;e;f;g;h;i;j)"), "more than 1,000,000 parts"),
    "optional letters": (templates("".join(f"[{c}]" for c in "abcdefghijklmnopqrst")), ""),
    "long list": (templates("{n}", lists={"n": {"values": NAMES}}), "at most 20,000 are allowed"),
    "aliases": ("a: &x [1]\nb: [*x, *x]\n", "aliases aren't supported"),
    "deep": ("{" * 60_000, "isn't valid YAML"),
    "neither": ("hello\nworld", "neither JSGF nor YAML"),
    "file": (HEAD + "import <etc.passwd.*>;\npublic <a> = b;", "can't be imported"),
    "file of numbers": (templates("set {0..10:x}", language="../../secret"), "can't write"),
    "itself": (HEAD + "public <a> = b <a>;", "3:8: rules can't contain themselves"),
    "unwritable": (HEAD + "public <a> = turn 漢字;", "can't write 1 of the grammar's 2 words and entries: '漢字'"),
    "a nul": ("#JSGF V1.0;\0grammar a;", "JSGF:1:12"),
    "half a pair": ("#JSGF V1.0;\ngrammar a;\npublic <a> = \ud800;", "can't be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ones_are_refused(trial, name):
    text, why = HOSTILE[name]
    with pytest.raises(GrammarError) as error:
        trial(text)
    assert why in str(error.value) and len(str(error.value)) <= 300
    process = trial._process
    assert trial(GOOD).seconds < SECONDS and trial._process is process  # the next one doesn't wait for another process


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_is_replaced(trial, monkeypatch):
    assert trial(GOOD).parts > 0
    trial._process.kill()
    trial._process.wait()
    assert trial(GOOD).parts > 0
    monkeypatch.setattr(trials, "PATIENCE", 0.0)
    begin = time.monotonic()
    with pytest.raises(GrammarError, match="takes more than"):
        trial(HOSTILE["undecided"][0])
    assert time.monotonic() - begin < 30
    monkeypatch.undo()
    assert trial(GOOD).parts > 0


@pytest.mark.slow
def test_memory_is_limited():
    tokenizer = AutoTokenizer.from_pretrained(str(bundled("examples/models/ctc")))
    patient = Trial(tokenizer, 300.0, 1_000_000, memory=32 << 20)
    try:
        with pytest.raises(GrammarError, match="or 32 MiB"):
            patient(HOSTILE["undecided"][0])
    finally:
        patient.close()


@pytest.mark.slow
def test_closing_ends_the_fork_that_compiles():
    """A fork that went on would hold the pipe of the answers, and the caller would wait for it."""
    tokenizer = AutoTokenizer.from_pretrained(str(bundled("examples/models/ctc")))
    patient = Trial(tokenizer, 40.0, 1_000_000, memory=4 << 30)
    try:
        assert patient(GOOD).parts > 0
        threading.Timer(0.5, patient.close).start()
        begin = time.monotonic()
        with pytest.raises(GrammarError, match="takes more than"):
            patient(HOSTILE["doubled rules"][0])
        assert 0.3 < time.monotonic() - begin < 20
    finally:
        patient.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_fork_ends_by_itself_when_nobody_is_left_to_end_it(monkeypatch):
    """As a server that is killed leaves it, waiting without CPU time."""
    monkeypatch.setattr(trials, "PATIENCE", 0.3)
    fork = os.fork()
    if not fork:
        trials._limit(100.0, 1 << 30)
        time.sleep(30)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(fork, 0)[1]) == signal.SIGALRM
