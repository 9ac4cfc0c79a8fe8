"""The metrics of `evaluate`: their numbers are the functions', and they load without a network."""

from __future__ import annotations

import ast
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_ngpulm import evaluation
from hf_ngpulm.evaluation import character_errors, entity_errors, word_errors

ROOT = Path(__file__).parents[2]
REFERENCES = ["call anna smith now", "play the news", "Ring Bob"]
HYPOTHESES = ["call anna smith", "play bob news", "ring rob"]
ENTITIES = [["anna smith"], [], ["bob", "rob"]]


@pytest.fixture
def metrics(tmp_path):
    pytest.importorskip("evaluate")
    from hf_ngpulm.evaluation import CER, WER, EntityWER

    return {metric.name: metric for metric in (cls(cache_dir=str(tmp_path)) for cls in (WER, CER, EntityWER))}


@pytest.mark.parametrize("normalise", [None, "lower"])
def test_words_and_characters(metrics, normalise):
    for name, units, function in (("wer", "words", word_errors), ("cer", "characters", character_errors)):
        found = metrics[name].compute(predictions=HYPOTHESES, references=REFERENCES, normalise=normalise)
        expected = function(REFERENCES, HYPOTHESES, normalise)
        assert found == {
            name: expected.rate,
            **{count: getattr(expected, count) for count in ("substitutions", "deletions", "insertions", "hits")},
            units: expected.length,
        }


def test_entities(metrics):
    found = metrics["entity_wer"].compute(predictions=HYPOTHESES, references=REFERENCES, entities=ENTITIES, normalise=str.lower)
    assert (found["entity_wer"], found["other_wer"], found["wer"]) == (1 / 3, 2 / 6, 3 / 9)
    assert (found["precision"], found["recall"], found["f1"]) == (1 / 2, 1 / 2, 1 / 2)
    assert (found["true_positives"], found["false_positives"], found["false_negatives"]) == (1, 1, 1)
    assert (found["entity_substitutions"], found["entity_words"], found["other_deletions"]) == (1, 3, 1)
    one_list = metrics["entity_wer"].compute(predictions=HYPOTHESES, references=REFERENCES, entities=["bob", "news"])
    expected = entity_errors(REFERENCES, HYPOTHESES, ["bob", "news"])
    assert (one_list["entity_wer"], one_list["f1"]) == (expected.entity_wer, expected.matches.f1)
    none = metrics["entity_wer"].compute(predictions=HYPOTHESES, references=REFERENCES, entities=[])
    assert math.isnan(none["entity_wer"]) and none["other_words"] == 9


def test_in_batches(metrics):
    for rows in (slice(0, 2), slice(2, 3)):
        batch = {"predictions": HYPOTHESES[rows], "references": REFERENCES[rows]}
        metrics["wer"].add_batch(**batch)
        metrics["entity_wer"].add_batch(**batch, entities=ENTITIES[rows])
    assert metrics["wer"].compute() == metrics["wer"].compute(predictions=HYPOTHESES, references=REFERENCES)
    at_once = entity_errors(REFERENCES, HYPOTHESES, ENTITIES)
    assert metrics["entity_wer"].compute()["entity_wer"] == at_once.entity_wer
    for prediction, reference, entities in zip(HYPOTHESES, REFERENCES, ENTITIES, strict=True):
        metrics["cer"].add(prediction=prediction, reference=reference)
        metrics["entity_wer"].add(prediction=prediction, reference=reference, entities=entities)
    assert metrics["cer"].compute()["cer"] == character_errors(REFERENCES, HYPOTHESES).rate
    assert metrics["entity_wer"].compute()["f1"] == at_once.matches.f1


def test_bad_input(metrics):
    with pytest.raises(ValueError, match="Mismatch in the number"):
        metrics["wer"].compute(predictions=["a"], references=["a", "b"])
    with pytest.raises(ValueError, match="got 1 references and 2 lists"):
        metrics["entity_wer"].compute(predictions=["a"], references=["a"], entities=[["a"], ["b"]])
    with pytest.raises(ValueError, match="belong together"):
        metrics["entity_wer"].add_batch(predictions=["a"], references=["a"])
    with pytest.raises(ValueError, match="belong together"):
        metrics["entity_wer"].compute(entities=["a"])


OFFLINE = """
import socket, sys
import hf_ngpulm
import hf_ngpulm.evaluation
assert not {"evaluate", "datasets", "jiwer"} & set(sys.modules), "imported without need"

def refuse(*args, **kwargs):
    raise AssertionError("a network was asked for")

socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
from hf_ngpulm.evaluation import CER, WER, EntityWER

for metric, inputs in ((WER(), {}), (CER(), {}), (EntityWER(), {"entities": ["anna"]})):
    found = metric.compute(predictions=["call hannah"], references=["call anna"], **inputs)
    print(metric.name, found[metric.name])
"""


@pytest.mark.slow
def test_loads_offline(tmp_path):
    pytest.importorskip("evaluate")
    online = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    environment = {**online, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", OFFLINE], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["wer 0.5", "cer 0.2222222222222222", "entity_wer 1.0"]


def test_the_example_in_the_docs():
    """It runs, and the numbers are those after its lines."""
    pytest.importorskip("evaluate")
    section = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8").split("\n## Metrics\n")[1].split("\n## ")[0]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    names = {}
    shown = 0
    for statement in ast.parse(code).body:
        source = ast.get_source_segment(code, statement)
        comment = code.splitlines()[statement.end_lineno - 1].partition("  # ")[2]
        if isinstance(statement, ast.Expr) and comment:
            numbers = re.findall(r"\d\.\d+", comment)
            result = eval(source, names)
            assert list(result if isinstance(result, tuple) else [result]) == pytest.approx(
                list(map(float, numbers)), abs=0.005
            )
            shown += 1
        else:
            exec(source, names)
    assert shown == 5


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.delattr(evaluation, "WER", raising=False)
    monkeypatch.delitem(sys.modules, "hf_ngpulm.evaluation.metrics", raising=False)
    for missing, use, what in (
        ("evaluate", lambda: evaluation.WER, "metrics of `evaluate` need evaluate"),
        ("jiwer", lambda: evaluation.word_errors(["a"], ["a"]), "error rates need jiwer"),
        ("datasets", lambda: evaluation.read_recordings("org/data"), "datasets need datasets"),
    ):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, missing, None)
            with pytest.raises(ImportError, match=rf"^{what}: pip install 'hf-ngpulm\[eval\]'$"):
                use()
