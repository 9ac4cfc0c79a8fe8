"""Pruning by relative entropy: the formula against the definition, the size asked for, and what is left sums to one."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm import NGramLM
from hf_ngpulm.automaton import automaton_from_table
from hf_ngpulm.language_model.pruning import prune_table, relative_entropies
from hf_ngpulm.ngrams.table import NGramTable

DATA = Path(__file__).parents[1] / "data" / "lmplz"
VOCAB = 5
# Token 4 never occurs: it has what <unk> has, and every context sums to one.
sentences = st.lists(st.lists(st.integers(0, VOCAB - 2), max_size=8), min_size=1, max_size=20)


def trained(rows, order):
    return NGramLM.train(rows, vocab_size=VOCAB, order=order)


def all_scores(automaton):
    states = torch.arange(automaton.num_states)
    return torch.cat([automaton.scores(states), automaton.final_scores(states)[:, None]], 1).double()


def check_sums(automaton):
    assert float((all_scores(automaton).exp().sum(1) - 1).abs().max()) < 1e-5


def state_behind(automaton, context):
    state = automaton.initial_states(1, bos=bool(context) and context[0] == VOCAB)
    for token in context[1:] if context and context[0] == VOCAB else context:
        state = automaton.step(state, torch.tensor([token]))[1]
    return int(state)


@settings(deadline=None, max_examples=40)
@given(sentences, st.integers(2, 4))
def test_relative_entropy_is_what_it_says(rows, order):
    table = trained(rows, order).to_table()
    automaton, _ = automaton_from_table(table)
    scores = all_scores(automaton)
    found = relative_entropies(table)
    for n in range(2, table.order + 1):
        grams = [tuple(gram) for gram in table.rows(n).tolist()]
        for gram, value in list(zip(grams, found[n - 2].tolist()))[:25]:
            context, token = gram[:-1], VOCAB if gram[-1] == VOCAB + 1 else gram[-1]
            state = state_behind(automaton, list(context))
            with_it = scores[state].exp()
            lower = scores[int(automaton.tensors.backoff_states[state])].exp()
            seen = {VOCAB if other[-1] == VOCAB + 1 else other[-1] for other in grams if other[:-1] == context} - {token}
            rest = [other for other in range(VOCAB + 1) if other not in seen]
            weight = float(with_it[rest].sum() / lower[rest].sum())
            without = with_it.clone()
            without[rest] = weight * lower[rest]
            history = 1.0
            for i, word in enumerate(context):
                if word == VOCAB:
                    history *= float(scores[0, VOCAB].exp())
                else:
                    history *= float(scores[state_behind(automaton, list(context[:i])), word].exp())
            wanted = history * float((with_it * (with_it / without).log()).sum())
            assert value == pytest.approx(wanted, rel=1e-2, abs=1e-6)
            assert value > -1e-6


@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_pruned_models_sum_to_one_and_have_the_size(data):
    lm = trained(data.draw(sentences), data.draw(st.integers(2, 5)))
    total, unigrams = sum(lm.num_ngrams), lm.num_ngrams[0]
    target = data.draw(st.integers(unigrams, total))
    pruned = lm.prune(max_ngrams=target)
    assert sum(pruned.num_ngrams) == target
    assert pruned.num_ngrams[0] == unigrams
    check_sums(pruned)
    kept = {tuple(gram) for n in range(1, pruned.order + 1) for gram in pruned.to_table().rows(n).tolist()}
    assert all(gram[:-1] in kept for gram in kept if len(gram) > 1)
    assert kept <= {tuple(gram) for n in range(1, lm.order + 1) for gram in lm.to_table().rows(n).tolist()}


@pytest.fixture(scope="module")
def commands():
    with gzip.open(DATA / "demo.ids.gz", "rt") as file:
        rows = [list(map(int, line.split())) for line in file]
    return NGramLM.train(rows[:1200], vocab_size=256, order=5), rows[1200:]


def test_less_pruning_predicts_better(commands):
    lm, rest = commands
    total = sum(lm.num_ngrams)
    pruned = [lm.prune(max_ngrams=total * part // 10) for part in (9, 5, 2, 1)]
    perplexities = [model.perplexity(rest).per_token for model in (lm, *pruned)]
    assert perplexities[1] < 1.02 * perplexities[0]
    assert perplexities[1] < perplexities[2] < perplexities[3] < perplexities[4]
    # Better than leaving the same number out by order.
    lower = NGramLM.from_table(NGramTable(256, lm.to_table().orders[:2]))
    assert lm.prune(max_ngrams=sum(lower.num_ngrams)).perplexity(rest).per_token < lower.perplexity(rest).per_token


def test_a_threshold(commands):
    lm, _ = commands
    sizes = [sum(lm.prune(threshold=threshold).num_ngrams) for threshold in (0, 1e-8, 1e-6, 1e-4)]
    assert sum(lm.num_ngrams) >= sizes[0] > sizes[1] > sizes[2] > sizes[3] >= lm.num_ngrams[0]


def test_what_a_pruned_model_says_of_itself(commands):
    lm, _ = commands
    pruned = lm.prune(max_ngrams=3000)
    assert pruned.config.training.max_ngrams == 3000
    assert "relative entropy, to 3,000 n-grams" in pruned.model_card()
    assert lm.prune(max_ngrams=10**9).num_ngrams == lm.num_ngrams


def test_training_to_a_size(commands):
    _, rows = commands
    trained_small = NGramLM.train(rows, vocab_size=256, order=4, max_ngrams=1000)
    assert sum(trained_small.num_ngrams) == 1000
    check_sums(trained_small)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({}, "either max_ngrams"),
        ({"max_ngrams": 9, "threshold": 1e-8}, "either max_ngrams"),
        ({"max_ngrams": 3}, "max_ngrams=3 is below the 6 unigrams"),
        ({"threshold": -1.0}, "threshold should be 0 or more, got -1.0"),
        ({"threshold": math.nan}, "threshold should be 0 or more, got nan"),
    ],
)
def test_bad_targets(settings_, message):
    with pytest.raises(ValueError, match=message):
        prune_table(trained([[0, 1, 2]], 2).to_table(), **settings_)
