"""Bootstrap: the exact distribution over all draws, and what statistics knows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hf_ngpulm.evaluation import ErrorCounts, bootstrap, paired_significance, word_errors


def corpus(errors, words):
    return ErrorCounts.together(ErrorCounts(e, 0, 0, n - e) for e, n in zip(errors, words, strict=True))


def test_equal_to_all_draws():
    errors_a, errors_b, words = [0, 3, 1, 2], [2, 1, 2, 2], [2, 6, 3, 4]
    rates, differences = [], []
    for draw in itertools.product(range(4), repeat=4):
        total = sum(words[i] for i in draw)
        rates.append(sum(errors_a[i] for i in draw) / total)
        differences.append(sum(errors_a[i] - errors_b[i] for i in draw) / total)
    a, b = corpus(errors_a, words), corpus(errors_b, words)
    found = bootstrap(a, level=0.8, resamples=40_000)
    assert found.rate == a.rate and found.level == 0.8
    assert [found.low, found.high] == pytest.approx(np.quantile(rates, [0.1, 0.9]), abs=0.01)
    compared = paired_significance(a, b, level=0.8, resamples=40_000)
    assert compared.difference == pytest.approx(-1 / 15)
    assert [compared.low, compared.high] == pytest.approx(np.quantile(differences, [0.1, 0.9]), abs=0.01)
    assert compared.p_value == pytest.approx(np.mean(np.array(differences) >= 0), abs=0.01)


def test_equal_to_the_normal_distribution():
    random = np.random.default_rng(1)
    errors = (random.random(2000) < 0.3).astype(int)
    found = bootstrap(corpus(errors, [1] * 2000), resamples=4000)
    half = 1.96 * np.sqrt(found.rate * (1 - found.rate) / 2000)
    assert [found.low, found.high] == pytest.approx([found.rate - half, found.rate + half], abs=0.002)


def test_intervals_hold_the_true_rate():
    random = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        words = random.integers(1, 12, size=80)
        difficulty = random.beta(1, 4, size=80)  # errors of an utterance hang together; 0.2 of all words on average
        found = bootstrap(corpus(random.binomial(words, difficulty), words), level=0.9, resamples=400)
        held += found.low <= 0.2 <= found.high
    assert 168 <= held <= 192


def test_p_values():
    random = np.random.default_rng(3)
    words = np.full(300, 10)
    errors = random.binomial(words, 0.3)
    same = corpus(errors, words)
    assert paired_significance(same, same, resamples=500).p_value == 1.0
    better, worse = corpus(np.maximum(errors - 1, 0), words), corpus(errors, words)
    assert paired_significance(better, worse, resamples=999).p_value == 1 / 1000
    assert paired_significance(worse, better, resamples=999).p_value == 1.0
    # Of two that are as good, A comes out better at the level of 10% in one of ten cases.
    found = [
        paired_significance(corpus(random.binomial(words, 0.3), words), corpus(random.binomial(words, 0.3), words), 0.9, 300)
        for _ in range(300)
    ]
    assert 15 <= sum(comparison.p_value <= 0.1 for comparison in found) <= 45


def test_seeds():
    counts = corpus([0, 1, 2, 5], [3, 4, 5, 6])
    assert bootstrap(counts, resamples=200, seed=7) == bootstrap(counts, resamples=200, seed=7)
    assert len({bootstrap(counts, resamples=200, seed=seed).low for seed in range(20)}) > 1


def test_draws_without_words_are_left_out():
    found = bootstrap(corpus([0, 1], [0, 2]), resamples=1000)
    assert (found.low, found.high) == (0.5, 0.5)


def test_bad_input():
    counts = word_errors(["a b", "c"], ["a", "c"])
    with pytest.raises(ValueError, match=r"counts should be counts of several utterances, got ErrorCounts\(substitutions=0"):
        bootstrap(counts.utterances[0])
    with pytest.raises(ValueError, match="counts has no words in its references"):
        bootstrap(word_errors(["", ""], ["a", ""]))
    with pytest.raises(ValueError, match=r"level should lie between 0 and 1.* got 95"):
        bootstrap(counts, level=95)
    with pytest.raises(ValueError, match="resamples should be a whole number of at least 1, got 0"):
        bootstrap(counts, resamples=0)
    with pytest.raises(ValueError, match="got 2 and 1 utterances"):
        paired_significance(counts, word_errors(["a b"], ["a"]))
    with pytest.raises(ValueError, match=r"number 1 has 1 units .words or characters. in a and 2 in b"):
        paired_significance(counts, word_errors(["a b", "c d"], ["a", "c"]))
