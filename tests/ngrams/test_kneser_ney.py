"""Kneser-Ney estimation: equal to lmplz, to the textbook, and summing to one."""

from __future__ import annotations

import gzip
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_kneser_ney import BOS, EOS, UNK, PlainKneserNey
from test_counting import ENGINES, count, texts

from hf_ngpulm.automaton import automaton_from_table
from hf_ngpulm.formats.arpa import read_arpa
from hf_ngpulm.ngrams.kneser_ney import estimate, thresholds_of
from hf_ngpulm.text.vocabulary import Vocabulary

DATA = Path(__file__).parents[1] / "data" / "lmplz"
LN10 = math.log(10.0)


def sentences_of(stream):
    with gzip.open(DATA / f"{stream}.ids.gz", "rt") as file:
        return [list(map(int, line.split())) for line in file]


def check_equal_to_lmplz(found, arpa, vocab_size, tolerance=1e-5):
    """The same n-grams, and every probability and backoff within `tolerance` (log10)."""
    wanted = read_arpa(arpa, Vocabulary(vocab_size), "id")
    assert found.num_ngrams == wanted.num_ngrams
    for ours, theirs in zip(found.orders, wanted.orders):
        assert torch.equal(ours.tokens, theirs.tokens)
        assert torch.equal(ours.prefixes, theirs.prefixes)
        assert float((ours.log_probs - theirs.log_probs).abs().max()) < tolerance * LN10
        assert float((ours.backoffs - theirs.backoffs).abs().max()) < tolerance * LN10


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", sorted(path.name.removesuffix(".arpa.gz") for path in DATA.glob("*.arpa.gz")))
def test_equal_to_lmplz(model, engine):
    stream, order, *options = model.split("_")
    prune = next((tuple(map(int, option.removeprefix("prune"))) for option in options if option.startswith("prune")), ())
    counts = count(sentences_of(stream), 256, int(order.removeprefix("o")), batch=1000, engine=engine)
    found = estimate(counts, prune, engine=engine)
    check_equal_to_lmplz(found.table, DATA / f"{model}.arpa.gz", 256)
    assert bool(found.fallback_orders) == ("fallback" in options)


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_equal_to_the_textbook(engine, data):
    sentences = data.draw(texts(4))
    order = data.draw(st.integers(1, 4))
    prune = (0, *sorted(data.draw(st.lists(st.integers(0, 2), max_size=order - 1))))[:order]
    found = estimate(count(sentences, 4, order, engine=engine), prune, engine=engine)
    plain = PlainKneserNey(sentences, order, found.discounts, prune)
    names = {4: BOS, 5: EOS, 6: UNK}
    seen = [set() for _ in range(order)]
    for n, columns in enumerate(found.table.orders, start=1):
        for row, log_prob, backoff in zip(found.table.rows(n).tolist(), columns.log_probs.tolist(), columns.backoffs.tolist()):
            gram = tuple(names.get(token, token) for token in row)
            seen[n - 1].add(gram)
            if gram != (BOS,):
                assert math.exp(log_prob) == pytest.approx(plain.probability(gram[:-1], gram[-1]), rel=1e-4, abs=1e-7)
            if n < order and gram[-1] not in (EOS, UNK):
                assert math.exp(backoff) == pytest.approx(plain.handed_down(gram), rel=1e-4, abs=1e-7)
    for n in range(order):
        assert seen[n] - {(UNK,)} == plain.kept[n] - {(UNK,)}


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_context_sums_to_one(data):
    vocab_size = data.draw(st.integers(1, 6))
    sentences = data.draw(texts(vocab_size))
    order = data.draw(st.integers(1, 5))
    prune = (0, *sorted(data.draw(st.lists(st.integers(0, 2), max_size=order - 1))))[:order]
    allowed = data.draw(st.none() | st.lists(st.booleans(), min_size=vocab_size, max_size=vocab_size))
    counts = count(sentences, vocab_size, order)
    table = estimate(counts, prune, allowed=None if allowed is None else torch.tensor(allowed)).table
    automaton, parts = automaton_from_table(table)
    totals = automaton.scores(torch.arange(automaton.num_states)).exp().sum(1)
    totals += automaton.final_scores(torch.arange(automaton.num_states)).exp()
    if parts["unk_tokens"].numel() == 0:  # nobody gets what <unk> has
        totals += math.exp(parts["unk_log_prob"]) * _unknown_weight(automaton)
    assert totals.tolist() == pytest.approx([1.0] * automaton.num_states, abs=1e-5)


def _unknown_weight(automaton):
    """How much of p(<unk>) each state hands down to it: the product of the weights on the way to the root."""
    weight = torch.ones(automaton.num_states)
    at = torch.arange(automaton.num_states)
    for _ in range(automaton.context_length):
        weight *= torch.where(at == 0, 1.0, automaton.tensors.backoff_weights[at].exp())
        at = automaton.tensors.backoff_states[at].to(torch.int64)
    return weight


def test_engines_agree():
    random.seed(3)
    sentences = [[min(int(random.expovariate(0.1)), 49) for _ in range(random.randint(1, 20))] for _ in range(3000)]
    tables = [estimate(count(sentences, 50, 5, 500, engine=engine), (0, 0, 1), engine=engine).table for engine in ENGINES]
    for first, second in zip(tables[0].orders, tables[1].orders):
        assert torch.equal(first.tokens, second.tokens) and torch.equal(first.prefixes, second.prefixes)
        torch.testing.assert_close(first.log_probs, second.log_probs, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(first.backoffs, second.backoffs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("sentences", [[[]], [[0]], [[1, 1, 1, 1, 1, 1]] * 5, [[-1, -1]], [[], [], []], [[2]] * 1000])
def test_tiny_texts_fall_back_and_say_so(sentences, caplog):
    found = estimate(count(sentences, 3, 4))
    assert 1 in found.fallback_orders
    assert "no discounts can be computed for 1-grams" in caplog.text
    assert found.table.order >= 1


def test_no_fallback_is_an_error():
    with pytest.raises(
        ValueError, match=r"no discounts can be computed for 1-grams: no 1-gram has the adjusted count 2.*fallb"
    ):
        estimate(count([[0, 1]], 3, 2), discount_fallback=None)


@pytest.mark.parametrize("fallback", [(0.5, 1.0), (0.5, 1.0, 4.0), (-1, 1, 1), ()])
def test_bad_fallbacks(fallback):
    with pytest.raises(ValueError, match="discount_fallback should be"):
        estimate(count([[0, 1]], 3, 2), discount_fallback=fallback)


def test_everything_pruned_leaves_a_lower_order():
    table = estimate(count([[0, 1, 2], [0, 2]], 3, 4), (0, 0, 9)).table
    assert table.order == 2


@pytest.mark.parametrize(
    ("prune", "message"),
    [
        ((0, 2, 1), "may not fall"),
        ((1,), "first threshold must be 0"),
        ((0, 0, 0, 1), "4 thresholds"),
        ((0, -1), "counts of 0 and up"),
        ((0, 0.5), "counts of 0 and up"),
    ],
)
def test_bad_thresholds(prune, message):
    with pytest.raises(ValueError, match=message):
        thresholds_of(prune, 3)


def test_thresholds():
    assert thresholds_of((), 3) == (0, 0, 0)
    assert thresholds_of((0, 0, 1), 5) == (0, 0, 1, 1, 1)


def test_a_limited_vocabulary():
    sentences = np.random.default_rng(0).integers(0, 4, (50, 6)).tolist()
    table = estimate(count(sentences, 4, 3), allowed=torch.tensor([True, False, True, True])).table
    assert all(1 not in table.rows(n) for n in (1, 2, 3))
    assert 1 in estimate(count(sentences, 4, 3)).table.rows(1)
