"""Training by tasks: in one process, on Ray, and with machines that die, the same tensors to the last bit."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time

import pytest
from ray_clusters import ray_nodes
from test_training_on_disk import assert_equal, zipf_texts

from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.common.cluster import InProcess
from hf_ngpulm.language_model import counting_tasks
from hf_ngpulm.language_model.training import train
from hf_ngpulm.ngrams import on_cluster
from hf_ngpulm.text import TextFiles


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(on_cluster, "SMALLEST_PARTITION", 1)
    monkeypatch.setattr(counting_tasks, "BYTES_PER_TASK", 1000)
    monkeypatch.setattr(counting_tasks, "ROWS_PER_TASK", 50)
    monkeypatch.setattr(counting_tasks, "BATCHES_PER_TASK", 1)


def files_of(texts, folder):
    for number in range(3):
        lines = (" ".join(map(str, text)) + "\n" for text in texts[number::3])
        (folder / f"{number}.txt").write_text("".join(lines))
    return TextFiles([folder / "?.txt"], are_ids=True)


def test_the_same_model_in_one_process(tmp_path, small_parts):
    texts, options = zipf_texts(), {"vocab_size": 100, "order": 4, "prune": (0, 0, 1)}
    whole = train(texts, **options)
    assert_equal(train(iter(texts), cluster=InProcess(), memory="100K", **options).parts, whole.parts)
    files = files_of(texts, tmp_path)
    assert len(list(files.parts(1000))) > 6
    assert_equal(train(files, cluster=InProcess(), **options).parts, train(files, **options).parts)


def spoken():
    """Sentences, some of them with letters that the tokenizer can't write, and the tokenizer."""
    from transformers import AutoTokenizer

    clips = (bundled("examples/speech/harbour") / "clips.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"].upper() for line in clips]
    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    return [*texts, "ÄÖ 漢字", "", *texts[::-1]], tokenizer


def assert_equal_trainings(ours, theirs):
    assert_equal(ours.parts, theirs.parts)
    names = "unknown", "perplexity", "warnings", "adapted"
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    assert (ours.of_words is None) == (theirs.of_words is None)
    if ours.of_words is not None:
        assert ours.of_words[1] == theirs.of_words[1]


def test_texts_and_what_is_said_of_them(small_parts):
    texts, tokenizer = spoken()
    options = {"order": 3, "normalise": "lower", "valid": texts[:3], "field": "said"}
    rows = [{"said": text} for text in texts]
    found = train(rows, tokenizer, cluster=InProcess(), **options)
    assert found.unknown and found.warnings
    assert_equal_trainings(found, train(rows, tokenizer, **options))


WORDS_AND_STYLE = (
    {"unit": "word", "case": "lower"},
    {"unit": "word", "normalise": "lower", "closed_vocabulary": True, "prune": (0, 1)},
    {"style_of": ["set a course", "go now"] * 9, "outputs": None},
    {"style_of": ["Set a course.", "We have 12 of them.", "Go now."] * 9, "language": "en", "unit": "word"},
)


@pytest.mark.parametrize("options", WORDS_AND_STYLE)
def test_words_and_style(small_parts, tmp_path, options):
    texts, tokenizer = spoken()
    texts = [text.replace("HALF", "TWELVE") for text in texts]
    expected = train(texts, tokenizer, order=3, **options)
    assert bool(expected.adapted) == ("style_of" in options)
    assert_equal_trainings(train(iter(texts), tokenizer, order=3, cluster=InProcess(), **options), expected)
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    files = TextFiles([tmp_path / "t.txt"])
    assert_equal_trainings(train(files, tokenizer, order=3, cluster=InProcess(), **options), expected)


def test_options_that_a_cluster_has_not():
    for given in ({"resume": True, "folder": "."}, {"workers": 2}, {"device": "cuda"}):
        with pytest.raises(ValueError, match=rf"{next(iter(given))} can't be used on a cluster"):
            train(["a"], vocab_size=3, cluster=InProcess(), **given)
    with pytest.raises(ValueError, match="cluster should be the address of a Ray cluster or 'auto', got 3"):
        train([[1]], vocab_size=3, cluster=3)
    with pytest.raises(ValueError, match="the texts have none"):
        train([""], spoken()[1], unit="word", cluster=InProcess())
    with pytest.raises(ValueError, match="no sentence was given"):
        train([], vocab_size=3, cluster=InProcess())
    with pytest.raises(ValueError, match="can't read standard input; name a file that all of them see"):
        train(TextFiles(["-"]), vocab_size=3, cluster=InProcess())


def test_without_ray_one_line_names_the_extra(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    told = "clusters need ray: pip install 'hf-ngpulm[cluster]'"
    with pytest.raises(ImportError, match=f"^{re.escape(told)}$"):
        train([[1]], vocab_size=3, cluster="auto")
    (tmp_path / "a.ids").write_text("1 2")
    assert run(["train", str(tmp_path / "*.ids"), "--vocab-size", "3", "-o", str(tmp_path / "lm"), "--ray", "auto"]) == 2
    assert capsys.readouterr().err == f"hf-ngpulm: error: {told}\n"


def test_an_address_without_a_cluster():
    with pytest.raises(ConnectionError, match=r"no Ray cluster can be reached at 127.0.0.1:1: .*refused"):
        train([[1]], vocab_size=3, cluster="127.0.0.1:1")


@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
def test_parts_of_a_file_are_its_lines(tmp_path, ending):
    texts = ["", "a b", "é" * 7, " x ", "last"] * 5
    lines = texts if ending == ".txt" else [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path = tmp_path / f"t{ending}"
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    files = TextFiles([path])
    for size in (1, 7, 30, 10_000):
        assert (
            [text for part in files.parts(size) for each in part for text in each.texts()]
            == list(files)
            == [text.strip() for text in texts]
        )
    path.write_text(path.read_text() + "\0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"after byte \d+, line \d"):
        [list(each.texts()) for part in files.parts(30) for each in part]


def test_the_line_of_an_id_that_is_none(tmp_path):
    (tmp_path / "a.ids").write_text("1\n" * 9000 + "x\n")
    (part,) = TextFiles([tmp_path / "a.ids"], are_ids=True).parts(1 << 20)
    with pytest.raises(ValueError, match=r"after byte 0, line 9001: expected decimal token ids, got 'x'"):
        list(part[0].texts())


@pytest.mark.slow
def test_workers_and_machines_that_die(tmp_path, small_parts, monkeypatch):
    import ray

    texts, options = zipf_texts(1500), {"vocab_size": 100, "order": 4}
    whole = train(texts, **options)
    files = files_of(texts, tmp_path)
    from_files = train(files, **options)
    for cpus in (1, 2, 4):
        with ray_nodes(cpus):
            assert_equal(train(iter(texts), cluster="auto", **options).parts, whole.parts)
            assert_equal(train(files, cluster="auto", **options).parts, from_files.parts)
            spoken_texts, tokenizer = spoken()
            for of_texts in ({"normalise": "lower"}, *(WORDS_AND_STYLE if cpus == 2 else ())):
                found = train(spoken_texts, tokenizer, order=3, cluster="auto", **of_texts)
                assert_equal_trainings(found, train(spoken_texts, tokenizer, order=3, **of_texts))
    with ray_nodes(2, 2) as nodes:
        counted, killed = counting_tasks.count_part, tmp_path / "killed"

        def count_part(part, *rest):
            time.sleep(0.05)
            if part[0].name.endswith("1.txt") and not killed.exists():
                killed.write_text("")
                os.kill(os.getpid(), signal.SIGKILL)
            return counted(part, *rest)

        monkeypatch.setattr(counting_tasks, "count_part", count_part)
        lost = threading.Timer(2.0, nodes[1])
        lost.start()
        assert_equal(train(files, cluster="auto", **options).parts, from_files.parts)
        assert not lost.is_alive(), "the training was done before the node was killed"
        assert killed.exists()
        until = time.monotonic() + 60
        while sum(node["Alive"] for node in ray.nodes()) > 1:  # Ray learns of it some seconds later
            assert time.monotonic() < until
            time.sleep(0.1)
