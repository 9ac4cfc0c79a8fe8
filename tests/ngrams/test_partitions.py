"""Partitions: the table of `estimate` to the last bit, whatever the number of parts of the text and of partitions."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm.common.cluster import InProcess
from hf_ngpulm.ngrams import kneser_ney, on_cluster, partitions
from hf_ngpulm.ngrams.counting import NGramCounter


def arrays_of(sentences):
    return np.concatenate([*map(np.array, sentences), np.zeros(0)]).astype(np.int64), np.array([len(s) for s in sentences])


def counted(sentences, vocab_size, order):
    with NGramCounter(vocab_size, order) as counter:
        counter.add(*arrays_of(sentences))
        return counter.finish()


def in_parts(parts, vocab_size, order):
    found, first_seen, before = [], None, 0
    for sentences in parts:
        with NGramCounter(vocab_size, order, from_last=True) as counter:
            counter.add(*arrays_of(sentences))
            run = on_cluster.counted_part(counter.run())
            found.append(on_cluster.CountedPart(*run))
            first_seen = on_cluster.seen_earlier(first_seen, counter.first_seen, before)
            before += counter.num_sentences
    return found, first_seen, counter.packing


def assert_equal(ours, theirs):
    assert ours.discounts == theirs.discounts and ours.fallback_orders == theirs.fallback_orders
    assert ours.num_counted == theirs.num_counted and ours.table.num_ngrams == theirs.table.num_ngrams
    for one, other in zip(ours.table.orders, theirs.table.orders):
        for name, column in vars(one).items():
            expected = vars(other)[name]
            assert column.dtype == expected.dtype and torch.equal(column, expected), name


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_equal_to_the_estimate_of_one_process(data):
    vocab_size = data.draw(st.sampled_from([3, 40, 70_000]))
    order = data.draw(st.integers(1, 6))
    prune = data.draw(st.sampled_from([(0,), (0, 1), (0, 0, 2), (0, 0, 0, 1)]))[:order]
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    count = data.draw(st.integers(1, 200))
    texts = [np.minimum(random.zipf(1.4, random.integers(0, 12)) - 2, vocab_size - 1).tolist() for _ in range(count)]
    allowed = data.draw(st.none() | st.just(torch.arange(vocab_size) > 0))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    parts = [texts[first:end] for first, end in zip([0, *cuts], [*cuts, count]) if end > first]
    whole = kneser_ney.estimate(counted(texts, vocab_size, order), prune, (0.5, 1.0, 1.5), allowed)
    runs = in_parts(parts, vocab_size, order)
    partitions = data.draw(st.sampled_from([1, 2, 3, 7]))
    found = on_cluster.estimate(InProcess(), *runs, prune, (0.5, 1.0, 1.5), allowed, partitions=partitions)
    assert_equal(found, whole)


def test_partitions_of_about_the_same_size():
    random = np.random.default_rng(0)
    texts = [np.minimum(random.zipf(1.3, 20) - 1, 999).tolist() for _ in range(300)]
    (part,), _, packing = in_parts([texts], 1000, 3)
    bounds = partitions.bounds_of([part.sample], 4, packing)
    sizes = [len(counts) for _, counts in partitions.cut(part.run, bounds)]
    assert len(sizes) == 4 and sum(sizes) == part.size and max(sizes) < part.size / 3
