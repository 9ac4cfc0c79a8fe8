"""The file of corrections: private, whole after a crash, and undone exactly."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
import time
import warnings
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_ngpulm import CorrectionLog, LogLinear, NGramLM, Phrase, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.corrections import Correction
from hf_ngpulm.corrections.lessons import Lesson

TEXT = st.text(max_size=20).map(lambda text: " ".join(text.encode(errors="ignore").decode().split()))
FIRST, SECOND = ("call koval ska", "call Kowalska"), ("is koval ska in", "is Kowalska in")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture
def log(tmp_path):
    return CorrectionLog(tmp_path / "user" / "corrections.jsonl")


def test_a_log_is_lines_of_json(log):
    assert len(log) == 0 and log.corrections == [] and log.phrases() == []
    assert log.add(*FIRST) == Correction(*FIRST)
    log.add("  grüße \n aus ", "Grüße aus")
    lines = log.path.read_text(encoding="utf-8").splitlines()
    assert list(map(json.loads, lines)) == [
        {"heard": "call koval ska", "meant": "call Kowalska"},
        {"heard": "grüße aus", "meant": "Grüße aus"},
    ]
    assert "grüße" in lines[1]  # readable
    assert CorrectionLog(str(log.path)).corrections == log.corrections
    assert repr(log) == f"CorrectionLog({str(log.path)!r}, corrections=2)"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_only_the_owner_may_read_it(log):
    before = os.umask(0)
    try:
        log.add(*FIRST)
    finally:
        os.umask(before)
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    log.path.chmod(0o644)
    log.add(*SECOND)
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(TEXT, TEXT.filter(bool)), min_size=1, max_size=5))
def test_undo_restores_the_state_before(tmp_path_factory, pairs):
    log = CorrectionLog(tmp_path_factory.mktemp("log") / "log.jsonl")
    states = []
    for heard, meant in pairs:
        states.append((log.path.read_bytes() if log.path.exists() else b"", log.corrections, log.phrases(1)))
        log.add(heard, meant)
    for pair, before in zip(reversed(pairs), reversed(states)):
        assert log.undo() == Correction(*pair)
        assert (log.path.read_bytes(), log.corrections, log.phrases(1)) == before
    with pytest.raises(ValueError, match="has no correction to undo"):
        log.undo()


def test_undo_restores_the_language_model(log, tokenizer):
    base = NGramLM.from_texts(["call the harbour", "is the boat in"], tokenizer, order=3)
    log.add(*FIRST)
    log.add(*SECOND)
    before = log.language_model(base, tokenizer, weight=0.3)
    assert before is log.language_model(base, tokenizer, weight=0.3)  # made once
    log.add("a bote", "a boat")
    learned = log.language_model(base, tokenizer, weight=0.3)
    log.undo()
    after = log.language_model(base, tokenizer, weight=0.3)
    texts = ["call Kowalska", "a boat"]
    scores = [[score for score, _ in lm.score_texts([t.lower() for t in texts], tokenizer)] for lm in (before, learned, after)]
    assert scores[0] == scores[2] != scores[1]
    fresh = CorrectionLog(log.path).language_model(base, tokenizer, weight=0.3)
    assert [s for s, _ in fresh.score_texts([t.lower() for t in texts], tokenizer)] == scores[0]


def add_for_ever(path, pipe):
    """Add corrections, and tell of each when it is on the disk."""
    log = CorrectionLog(path)
    for number in range(100_000):
        log.add(f"heard {number} " + "x" * 480, f"meant {number} " + "x" * 480)
        os.write(pipe, b"%d\n" % number)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("lines", [1, 20, 50])
def test_nothing_is_lost_if_the_process_is_killed(tmp_path, lines):
    path, (reading, writing) = tmp_path / "log.jsonl", os.pipe()
    child = os.fork()
    if not child:
        try:
            add_for_ever(path, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading) as told:
        acknowledged = [told.readline() for _ in range(lines)]
        os.kill(child, signal.SIGKILL)
        acknowledged += told.readlines()
    os.waitpid(child, 0)
    acknowledged = len([line for line in acknowledged if line.endswith("\n")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log = CorrectionLog(path)
        assert [c.meant.split()[1] for c in log.corrections][:acknowledged] == list(map(str, range(acknowledged)))
        assert acknowledged <= len(log) <= acknowledged + 1
        log.add(*FIRST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no line is incomplete any more
        assert CorrectionLog(path).corrections[-1] == Correction(*FIRST)


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_a_torn_line_is_named_and_removed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    log = CorrectionLog(path)
    log.add(*FIRST)
    first = path.read_bytes()
    log.add(*SECOND)
    end = data.draw(st.integers(len(first) + 1, path.stat().st_size - 2))
    os.truncate(path, end)
    with pytest.warns(UserWarning, match=re.escape(f"{path}:2: the last line is incomplete")):
        assert CorrectionLog(path).corrections == [Correction(*FIRST)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if data.draw(st.booleans()):
            log.add(*SECOND)
            assert path.read_bytes().startswith(first) and log.corrections == [Correction(*FIRST), Correction(*SECOND)]
        else:
            assert log.undo() == Correction(*FIRST)
            assert path.read_bytes() == b""


def test_a_file_may_be_edited(log):
    log.add(*FIRST)
    edited = '\n{"meant": "a boat", "heard": "a bote", "note": "mine"}\n\n{"heard": "x", "meant": "y"}'
    log.path.write_text(log.path.read_text() + edited)  # without the end of the last line
    assert len(log) == 3
    log.add(*SECOND)
    assert [correction.heard for correction in log.corrections] == ["call koval ska", "a bote", "x", "is koval ska in"]
    log.undo()
    assert len(log.corrections) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", '2: a line should be {"heard": "...", "meant": "..."} in JSON, is \'[]\''),
        ('{"heard": "a"}', "2: a line should be"),
        ('{"heard": 1, "meant": "a"}', "2: a line should be"),
        ("[" * 100_000, "2: a line should be"),
        ('{"heard": "a", "meant": "\\ud800"}', "2: meant has half of a surrogate pair"),
        ('{"heard": "a", "meant": "' + "a" * 501 + '"}', "2: meant may have at most 500 characters, got 501"),
    ],
)
def test_wrong_lines_are_named(log, line, message):
    log.add(*FIRST)
    log.path.write_text(log.path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=re.escape(f"{log.path}:{message}")):
        CorrectionLog(log.path)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("a", " "), "meant is empty"),
        (("a" * 501, "b"), "heard may have at most 500 characters, got 501"),
        (("\ud800", "b"), "heard has half of a surrogate pair"),
    ],
)
def test_wrong_corrections(log, pair, message):
    with pytest.raises(ValueError, match=message):
        log.add(*pair)
    with pytest.raises(TypeError, match="heard should be a text, got 1"):
        log.add(1, "a")
    assert not log.path.exists()


def test_a_change_counts_at_once(log):
    """Even within the resolution of a file's time, and of the same size."""
    log.add("a", "b")
    for number in range(50):
        assert log.corrections[-1].meant == ("b" if number == 0 else "cd"[number % 2])
        log.undo()
        log.add("a", "dc"[number % 2])


def test_long_texts_are_compared_soon(log):
    begin = time.process_time()
    log.add("ab " * 160, "cd " * 160)
    log.add(" ".join("tomorrow" for _ in range(50)), " ".join("borrowed" for _ in range(50)))
    log.phrases()
    assert time.process_time() - begin < 10


def test_learning_without_a_language_model(log, tokenizer):
    assert log.language_model(None, tokenizer) is None
    log.add(*FIRST)
    assert log.language_model(None, tokenizer) is None  # one text tells nothing of others
    for _ in range(5):
        log.add("call the harber master", "call the harbour master")
    learned = log.language_model(None, tokenizer)
    assert isinstance(learned, LogLinear) and 0 < learned.weights[0] <= 1
    assert log.phrases() == [Phrase("harbour", aliases=["harber"])]


def test_rewrites_teach_nothing(log, tokenizer):
    for _ in range(4):
        log.add("he drives the car quickly", "a vehicle moves at speed")
    assert not any(correction.is_mishearing for correction in log.corrections)
    base = NGramLM.from_texts(["the boat"], tokenizer, order=2)
    assert log.phrases() == [] and log.language_model(base, tokenizer) is base


def test_models_of_words_are_followed_beside(log, tokenizer):
    words = NGramLM.from_texts(["call the harbour", "is the boat in"], tokenizer, unit="word", order=2)
    for _ in range(5):
        log.add("call the harber master", "call the harbour master")
    learned = log.language_model(words, tokenizer, weight=0.25)
    assert learned.models[0] is words and learned.weights == (0.75, 0.25)
    both = log.language_model(LogLinear([words, words], [0.5, 0.2]), tokenizer, weight=0.5)
    assert both.weights == (0.25, 0.1, 0.5)


def test_another_tokenizer_is_refused(log, tokenizer):
    log.add(*FIRST)
    other = NGramLM.from_texts(["the boat"], tokenizer, order=2)
    other.config = replace(other.config, tokenizer_fingerprint="0" * 64)
    with pytest.raises(TokenizerMismatchError):
        log.language_model(other, tokenizer)
    with pytest.raises(ValueError, match="pass the ASR model's tokenizer"):
        log.language_model(None, None)


def test_a_correction_is_compared_once(log, monkeypatch):
    compared = []

    def counted(heard, meant):
        compared.append((heard, meant))
        return made(heard, meant)

    made = Lesson.of
    monkeypatch.setattr(Lesson, "of", counted)
    log.add(*FIRST)
    log.add("a", "a")
    assert not log.compare(1) and compared == [FIRST]
    assert log.compare(1) and log.compare(1) and compared == [FIRST, ("a", "a")]
    log.undo()
    compared.pop()
    log.phrases()
    log.add(*SECOND)
    assert log.phrases() == [Phrase("Kowalska", aliases=["koval ska"])]
    log.undo()
    assert log.phrases() == []
    assert compared == [FIRST, SECOND]
