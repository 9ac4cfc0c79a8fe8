"""Counting: what is counted, and that chunks, files on disk and engines change nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_kneser_ney import BOS, EOS, UNK, occurrences
from property_examples import examples

from hf_ngpulm.ngrams import counting
from hf_ngpulm.ngrams.counting import NGramCounter, memory_left, parse_bytes
from hf_ngpulm.ngrams.kneser_ney import estimate
from hf_ngpulm.ngrams.steps import Packing, cpu, steps_for

ENGINES = ["cpu", "reference"]


def count(sentences, vocab_size, order, batch=7, **settings):
    with NGramCounter(vocab_size, order, **settings) as counter:
        for first in range(0, len(sentences), batch):
            rows = sentences[first : first + batch]
            counter.add(np.array([token for row in rows for token in row], dtype=np.int32), [len(row) for row in rows])
        return counter.finish()


def as_dictionaries(counts):
    """Occurrences by n-gram, as `occurrences` gives them."""
    names = {counts.vocab_size: BOS, counts.vocab_size + 1: EOS, counts.vocab_size + 2: UNK}
    grams, found = [()], []
    for order in counts.orders:
        tokens = order.tokens.tolist()
        grams = [(*grams[p], names.get(t, t)) for p, t in zip(order.prefixes.tolist(), tokens)]
        found.append(dict(zip(grams, order.counts.tolist())))
    return found


def equal(first, second):
    return all(torch.equal(a, b) for x, y in zip(first.orders, second.orders) for a, b in zip(x, y)) and torch.equal(
        first.first_seen, second.first_seen
    )


def texts(vocab_size):
    return st.lists(st.lists(st.integers(-1, vocab_size - 1), max_size=9), min_size=1, max_size=25)


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_every_n_gram_of_every_order_is_counted(engine, data):
    vocab_size = data.draw(st.sampled_from([1, 3, 300, 151_936, 3_000_000]))
    sentences = data.draw(texts(vocab_size))
    order = data.draw(st.integers(1, 12))
    counts = count(sentences, vocab_size, order, engine=engine)
    assert as_dictionaries(counts) == occurrences(sentences, order)
    assert counts.num_sentences == len(sentences)
    assert counts.num_tokens == sum(map(len, sentences))
    for trie in counts.orders:  # sorted as tables are
        keys = trie.prefixes * (vocab_size + 3) + trie.tokens
        assert bool((keys[1:] > keys[:-1]).all())


@settings(deadline=None, max_examples=examples(25))
@given(st.data())
def test_chunks_and_spilled_runs_change_nothing(data):
    order = data.draw(st.integers(1, 7))
    vocab_size = data.draw(st.sampled_from([4, 60_000]))
    sentences = data.draw(texts(vocab_size)) * 3
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        whole = count(sentences, vocab_size, order)
        patch.setattr(counting, "MIN_CHUNK", data.draw(st.integers(1, 30)))
        for memory in (1, 1500):
            for engine in ENGINES:
                assert equal(count(sentences, vocab_size, order, memory=memory, folder=folder, engine=engine), whole)
        assert not list(Path(folder).iterdir())


def test_a_sentence_longer_than_chunks(monkeypatch):
    monkeypatch.setattr(counting, "MIN_CHUNK", 50)
    sentence = np.random.default_rng(0).integers(0, 5, 3000).tolist()
    counts = count([sentence], 5, 4, memory=1)
    assert as_dictionaries(counts) == occurrences([sentence], 4)


@pytest.mark.parametrize("vocab_size", [4, 60_000])
def test_blocks_of_threads_change_nothing(vocab_size, monkeypatch):
    rows = np.random.default_rng(0).integers(-1, 4, (200, 8)).tolist()
    whole = count(rows, vocab_size, 6, engine="reference")
    expected = estimate(whole, (0, 0, 1), engine="reference").table
    monkeypatch.setattr(cpu, "ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    counts = count(rows, vocab_size, 6, engine="cpu")
    assert equal(counts, whole)
    for found, order in zip(estimate(counts, (0, 0, 1), engine="cpu").table.orders, expected.orders, strict=True):
        for one, other in zip(vars(found).values(), vars(order).values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_where_tokens_were_first_seen():
    counts = count([[2, 2, 0], [], [4, 0, 2]], 6, 2, batch=1)
    seen = {token: place for token, place in enumerate(counts.first_seen.tolist()) if place != counting.NEVER}
    assert sorted(seen, key=seen.get) == [2, 0, 4]
    # Two that share the text know together what one would.
    shares = []
    for rows, number in (([[4, 0, 2]], 2), ([[2, 2, 0], []], 0)):
        with NGramCounter(6, 2) as counter:
            counter.add([token for row in rows for token in row], [len(row) for row in rows], first_sentence=number)
            shares.append(counter.finish().first_seen)
    assert torch.equal(torch.minimum(*shares), counts.first_seen)


@pytest.mark.parametrize("engine", ENGINES)
def test_packing_orders_as_tuples_do(engine):
    packing = Packing(vocab_size=300, order=9)
    assert len(packing.digits) == 2 and sum(packing.digits) == 9
    random = np.random.default_rng(1)
    digits = random.integers(1, 303, 500).astype(np.int32)
    digits[random.integers(0, 500, 60)] = packing.end
    words = steps_for(torch.device("cpu"), engine).pack(torch.from_numpy(digits), 492, packing)
    grams = []
    for i in range(492):
        gram = digits[i : i + 9].tolist()
        end = gram.index(packing.end) + 1 if packing.end in gram else 9
        grams.append((*gram[:end], *[0] * (9 - end)))
    packed = [tuple(column) for column in words.T.tolist()]
    by_gram = sorted(range(492), key=lambda i: grams[i])
    assert [packed[i] for i in by_gram] == sorted(packed)
    assert len(set(grams)) == len(set(packed))


def test_no_text():
    with NGramCounter(5, 3) as counter, pytest.raises(ValueError, match="no sentence"):
        counter.finish()


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        ([0, 5], [2], "token id 5 is outside the vocabulary 0..4"),
        ([0, -2], [2], "token id -2 is outside"),
        ([0, 1], [3], "lengths add up to 3, but there are 2"),
    ],
)
def test_bad_sentences(ids, lengths, message):
    with NGramCounter(5, 3) as counter, pytest.raises(ValueError, match=message):
        counter.add(ids, lengths)


@pytest.mark.parametrize(("arguments", "message"), [((5, 13), "order must be 1 to 12, got 13"), ((0, 2), "vocab_size")])
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        NGramCounter(*arguments)


def test_a_full_disk_is_named_and_nothing_left(tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # Python ignores the signal: writing fails
    try:
        with (
            pytest.raises(OSError, match=r"no room for n-grams in .*File too large\. Allow more memory"),
            NGramCounter(5, 3, memory=1, folder=tmp_path) as counter,
        ):
            counter.add(np.random.default_rng(0).integers(0, 5, 9000).astype(np.int32), [30] * 300)
            counter.add(np.random.default_rng(0).integers(0, 5, 9000).astype(np.int32), [30] * 300)
            counter.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_no_files(tmp_path):
    with pytest.raises(KeyboardInterrupt), NGramCounter(5, 3, memory=1, folder=tmp_path) as counter:
        counter.add(np.zeros(9000, dtype=np.int32), [9000])
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "size"), [("500M", 500 << 20), ("4G", 4 << 30), ("1.5 GiB", 3 << 29), ("10kb", 10240), (77, 77), ("2t", 2 << 40)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-3G", "0", "4 X"])
def test_bad_sizes(text):
    with pytest.raises(ValueError, match="such as 500M or 4G"):
        parse_bytes(text)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_what_the_process_uses_counts_against_the_memory():
    used = (1 << 40) - memory_left("1T")
    assert 20 << 20 < used < 64 << 30
    assert memory_left(used) == used // 2  # training may use half in any case
    assert memory_left(4 * used) >= 2.9 * used
