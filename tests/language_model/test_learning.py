"""What a language model learns from a few texts: held to a plain definition, to retraining without a text, and to sums of 1."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm import NGramLM
from hf_ngpulm.config.tuned import ModelIdentity, TunedDecoding
from hf_ngpulm.language_model.learning import LEAST, MOST, TextCounts, fitted_weight, model_of, weight_for
from hf_ngpulm.text.vocabulary import Vocabulary

V = 4
TEXTS = st.lists(st.lists(st.integers(0, V - 1), max_size=6), min_size=1, max_size=8)


def counted(texts, order=3):
    counts = TextCounts(V, order)
    for text in texts:
        counts.add(text)
    return counts


def defined(texts, history, token, order=3):
    """Witten and Bell's probability, straight from the texts."""
    padded = [(V, *text, V + 1) for text in texts]
    probability = 1 / (V + 1)
    for length in range(min(order - 1, len(history)) + 1):
        context = tuple(history[len(history) - length :])
        after = Counter(
            text[i + length]
            for text in padded
            for i in range(len(text) - length)
            if text[i : i + length] == context and i + length > 0
        )
        if not after:
            break
        probability = (after[token] + len(after) * probability) / (after.total() + len(after))
    return probability


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.lists(st.integers(0, V - 1), max_size=5))
def test_probabilities_are_as_defined(texts, other):
    counts = counted(texts)
    padded = (V, *other, V + 1)
    expected = [defined(texts, padded[:end], padded[end]) for end in range(1, len(padded))]
    assert counts.probabilities(other) == pytest.approx(expected, rel=1e-12)
    lm = NGramLM(model_of(counts, Vocabulary(V)))
    ((scores, _, _),) = lm.scored([other])
    assert [math.exp(score) for score in scores] == pytest.approx(expected, rel=1e-5)
    states = lm.states_after(torch.tensor([other], dtype=torch.int64)) if other else lm.initial_states(1)
    assert float(lm.scores(states).exp().sum() + lm.final_scores(states).exp()) == pytest.approx(1, rel=1e-5)


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.data())
def test_leaving_a_text_out_is_counting_without_it(texts, data):
    place = data.draw(st.integers(0, len(texts) - 1))
    rest = counted([text for n, text in enumerate(texts) if n != place])
    counts = counted(texts)
    assert counts.probabilities(texts[place], without=True) == pytest.approx(rest.probabilities(texts[place]), rel=1e-12)
    counts.remove(texts[place])
    assert vars(counts) == vars(rest)  # nothing is left behind


@settings(deadline=None, max_examples=30)
@given(TEXTS, TEXTS)
def test_a_mixture_is_the_weighted_sum(ours, theirs):
    base = NGramLM.from_texts(theirs, vocab_size=V, order=2, missing_unigrams="share")
    mixed = base.learn(ours, weight=0.25)
    counts = TextCounts(V)
    for text in ours:
        counts.add(text)
    for text in ours:  # every n-gram of a text that was learned is in the mixture
        (found, of_base) = (next(iter(lm.scored([text])))[0] for lm in (mixed, base))
        expected = [0.25 * p + 0.75 * math.exp(b) for p, b in zip(counts.probabilities(text), of_base)]
        assert [math.exp(score) for score in found] == pytest.approx(expected, rel=2e-4)


def test_the_weight_is_the_best():
    texts = [[0, 1, 2, 3], [0, 1, 2], [0, 1, 3, 2], [1, 2, 3], [0, 1, 2, 3]]
    base = NGramLM.from_texts([[3, 2, 1], [0, 2], [1, 3]], vocab_size=V, order=2)
    counts = counted(texts, 6)
    weight = weight_for(base, counts)
    ours = [p for text in texts for p in counts.probabilities(text, without=True)]
    theirs = [math.exp(score) for scores, *_ in base.scored(texts) for score in scores]

    def likelihood(share):
        return sum(math.log(share * a + (1 - share) * b) for a, b in zip(ours, theirs))

    tried = [share / 1000 for share in range(1, 951)]
    assert 0 < weight < MOST
    assert weight == pytest.approx(max(tried, key=likelihood), abs=2e-3)


def test_one_text_alone_changes_nothing_much():
    base = NGramLM.from_texts([[0, 1, 2, 3]] * 3 + [[1, 2]], vocab_size=V, order=3)
    assert base.learn([[0, 1, 2, 3]]) is base  # a single text has no others to be predicted from
    assert base.learn([]) is base
    assert fitted_weight(TextCounts(V), []) == 0.0
    assert base.learn([[3, 3]] * 4, weight=LEAST / 2) is base


def test_tuned_settings_stay():
    base = NGramLM.from_texts([[0, 1, 2]] * 3, vocab_size=V, order=2)
    tuned = TunedDecoding(ModelIdentity("org/asr", "ctc", "0" * 64), {"lm_weight": 0.5})
    base.config = replace(base.config, decoding=(tuned,))
    assert base.learn([[2, 1]], weight=0.5).config.decoding == (tuned,)


def test_evidence():
    assert TextCounts(V).evidence() == 0.0
    assert counted([[0, 1, 2, 3]] * 5).evidence() > 1.0
    assert counted([[0, 1], [2, 3]]).evidence() < 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lm: lm.learn([[0]], weight=1.0), "weight should be a number from 0 to below 1, got 1.0"),
        (lambda lm: lm.learn([[0]], weight="much"), "weight should be a number from 0 to below 1, got 'much'"),
        (lambda lm: lm.learn(["a text"]), "texts need the ASR model's tokenizer"),
        (lambda lm: lm.learn([[-1]]), r"token ids should be from 0 to 3, got \[-1\]"),
        (lambda lm: lm.continued().learn([[0]], weight=0.5), "can't express a continued model"),
        (lambda lm: TextCounts(V).remove([0]), "isn't among those that were added"),
        (lambda lm: TextCounts(V, 0), "order should be a whole number from 1 to"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(NGramLM.from_texts([[0, 1, 2]], vocab_size=V, order=2))
