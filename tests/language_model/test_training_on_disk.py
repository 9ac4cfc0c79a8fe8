"""Training beyond its memory: on disk the same tensors to the last bit, after a kill too, and errors that say what to do."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm import NGramLM
from hf_ngpulm.language_model import sentences
from hf_ngpulm.language_model.training import train
from hf_ngpulm.ngrams import counting, room


def assert_equal(ours, theirs):
    assert ours.config == theirs.config
    tensors = [(*part.automaton.searched, part.automaton.starts, part.unk_tokens) for part in (ours, theirs)]
    for one, other in zip(*tensors, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@settings(deadline=None, max_examples=examples(24))
@given(st.data())
def test_equal_to_the_last_bit(data):
    vocab_size = data.draw(st.sampled_from([3, 40, 70_000]))
    order = data.draw(st.integers(1, 6))
    prune = data.draw(st.sampled_from([(0,), (0, 1), (0, 0, 2), (0, 0, 0, 1)]))[:order]
    seed, count = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 300))
    random = np.random.default_rng(seed)
    texts = [np.minimum(random.zipf(1.4, random.integers(0, 15)) - 1, vocab_size - 1).tolist() for _ in range(count)]
    allowed = data.draw(st.none() | st.just(range(1, vocab_size)))
    options = {"vocab_size": vocab_size, "order": order, "prune": prune, "limit_vocabulary": allowed}
    whole = train(iter(texts), **options)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(counting, "MIN_CHUNK", data.draw(st.sampled_from([64, 1024])))
        patch.setattr(room, "SMALLEST_BLOCK", data.draw(st.sampled_from([1, 3, 256])))
        patch.setattr(sentences, "SENTENCES_PER_BATCH", 16)
        on_disk = train(iter(texts), memory=data.draw(st.sampled_from([1, 3000])), folder=folder, **options)
        assert_equal(on_disk.parts, whole.parts)
        NGramLM(on_disk.parts).save_pretrained(f"{folder}/lm")
        assert_equal(NGramLM.from_pretrained(f"{folder}/lm").parts, whole.parts)


def zipf_texts(count=400):
    random = np.random.default_rng(0)
    return [np.minimum(random.zipf(1.3, random.integers(0, 20)) - 1, 99).tolist() for _ in range(count)]


def test_arrays_are_on_disk_and_leave_nothing(tmp_path, caplog):
    with caplog.at_level("INFO"):
        trained = train(zipf_texts(), vocab_size=100, order=4, memory=1, folder=tmp_path)
    assert "n-grams are estimated on disk: up to 0.0 GB in" in caplog.text
    assert len(room._mapped) >= 6  # the automaton's tensors
    assert not list(tmp_path.iterdir())
    assert trained.parts.automaton.num_arcs > 1000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["texts", "batches"])
def test_resuming_after_a_kill(tmp_path, monkeypatch, kind):
    texts, options = zipf_texts(), {"vocab_size": 100, "order": 4}
    whole = train(texts, **options)
    monkeypatch.setattr(sentences, "SENTENCES_PER_BATCH", 16)
    monkeypatch.setattr(counting, "MIN_CHUNK", 256)
    read = 0

    def rows(end):
        nonlocal read
        size = 1 if kind == "texts" else 16
        for first in range(0, len(texts), size):
            if first >= end:
                raise KeyboardInterrupt
            read += size
            part = texts[first : first + size]
            ids, lengths = np.concatenate([np.array(ids, dtype=np.int64) for ids in part]), np.array(list(map(len, part)))
            yield part[0] if kind == "texts" else (ids, lengths)

    options |= {"memory": 1, "folder": tmp_path, "resume": True}
    for end in (100, 200, 300):
        with pytest.raises(KeyboardInterrupt):
            train(rows(end), **options)
        assert (tmp_path / "hf_ngpulm-counts" / "counted.json").exists()
    counted = []
    add = counting.NGramCounter._append
    monkeypatch.setattr(counting.NGramCounter, "_append", lambda self, digits: [counted.append(len(digits)), add(self, digits)])
    resumed = train(rows(400), **options)
    assert 0 < sum(counted) < sum(len(text) + 2 for text in texts[250:])
    assert_equal(resumed.parts, whole.parts)
    assert not list(tmp_path.iterdir())


def test_resuming_with_another_text_or_order(tmp_path):
    texts, options = zipf_texts(), {"vocab_size": 100, "memory": 1, "folder": tmp_path, "resume": True}
    with pytest.raises(ValueError, match="prunes in memory, and the n-grams are on disk"):  # what is counted stays
        train(texts, order=3, max_ngrams=200, **options)
    with pytest.raises(ValueError, match="has counts of another text"):
        train([[5], *texts], order=3, **options)
    with pytest.raises(ValueError, match="has counts of a vocabulary of 100 and order 3"):
        train(texts, order=4, **options)
    assert_equal(train(texts, order=3, **options).parts, train(texts, vocab_size=100, order=3).parts)
    with pytest.raises(ValueError, match="resume needs folder="):
        train(texts, vocab_size=100, resume=True)


def test_a_disk_without_space_is_told_beforehand(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 100))
    with pytest.raises(OSError, match=r"up to 0\.0 GB in .*, which has 0\.0 GB\. Name a folder on a larger disk") as error:
        train(zipf_texts(), vocab_size=100, order=4, memory=1, folder=tmp_path)
    assert error.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_full_disk_while_estimating(tmp_path):
    resource = pytest.importorskip("resource")
    limits, texts = resource.getrlimit(resource.RLIMIT_FSIZE), zipf_texts(3000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"no room for n-grams in .* Allow more memory"):
            train(texts, vocab_size=100, order=5, memory=400_000, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
