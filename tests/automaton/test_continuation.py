"""Sentences that follow one another: the automaton says what its definition says, and long texts become likelier."""

from __future__ import annotations

import math
import random

import pytest
import torch
from automata import as_dictionaries
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm import NGramLM
from hf_ngpulm.automaton.continuation import continued

VOCAB = 8


def trained(seed: int, order: int) -> NGramLM:
    """A model of sentences that begin with low tokens and end with high ones."""
    generator = random.Random(seed)
    texts = [sorted(generator.choices(range(VOCAB), k=generator.randint(1, 6))) for _ in range(60)]
    return NGramLM.train(texts, vocab_size=VOCAB, order=order)


def by_hand(states, state, token, start, share, ends):
    """Score of a token (or of </s>, the token after the vocabulary) by the definition, in the original automaton's states."""
    score = 0.0
    while token not in states[state].arcs:
        begins = ends.get(state, -math.inf) + math.log(share)
        if state not in (0, start) and begins > states[state].backoff_weight:
            score += begins
            state = start
        else:
            score += states[state].backoff_weight
            state = states[state].backoff_state
    weight, target = states[state].arcs[token]
    return score + weight + (math.log(1 - share) if token == VOCAB else 0.0), target


@given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0.05, 0.95), st.lists(st.integers(0, VOCAB - 1), max_size=12))
@settings(deadline=None, max_examples=60)
def test_it_says_what_its_definition_says(seed, order, share, tokens):
    lm = trained(seed, order)
    states, start = as_dictionaries(lm.automaton), int(lm.starts[0])
    ends = {number: state.arcs[VOCAB][0] for number, state in enumerate(states) if VOCAB in state.arcs}
    changed = lm.continued(share)
    changed.validate()
    assert (changed.num_states, changed.num_arcs) == (lm.num_states, lm.num_arcs)
    state, expected = start, []
    for token in tokens:
        score, state = by_hand(states, state, token, start, share, ends)
        expected.append(score)
    expected.append(by_hand(states, state, VOCAB, start, share, ends)[0])
    for engine in ("cpu", "reference"):
        changed.engine = engine
        found, last = changed.score_tokens(torch.tensor([tokens], dtype=torch.int64).view(1, -1))
        torch.testing.assert_close(torch.cat([found[0], changed.final_scores(last)]), torch.tensor(expected))
        if len(tokens) <= changed.context_length:
            assert changed.states_after(torch.tensor([tokens], dtype=torch.int64).view(1, -1)).tolist() == last.tolist()


def test_a_second_sentence_becomes_likelier_and_the_first_stays():
    lm = NGramLM.train([[0, 2, 7], [1, 3, 7], [0, 4, 5, 7]] * 4, vocab_size=VOCAB, order=4)
    changed = lm.continued()
    one, two = [0, 2, 7], [0, 2, 7, 1, 3, 7]
    score = lambda lm, tokens: float(lm.score_sequences(torch.tensor([tokens]), eos=False))  # noqa: E731
    assert score(changed, one) == pytest.approx(score(lm, one), abs=1e-5)
    assert score(changed, two) > score(lm, two) + 1


def test_it_is_saved_and_loaded(tmp_path):
    changed = trained(1, 3).continued(0.3)
    changed.save_pretrained(tmp_path)
    loaded = NGramLM.from_pretrained(tmp_path)
    assert loaded.config.continued == 0.3 and loaded.context_length == changed.context_length
    tokens = torch.randint(0, VOCAB, (5, 9))
    assert torch.equal(loaded.score_sequences(tokens), changed.score_sequences(tokens))


def test_what_goes_on_already_is_refused_and_has_no_n_grams():
    changed = trained(2, 3).continued()
    with pytest.raises(ValueError, match=r"already, with the share 0\.5"):
        changed.continued()
    with pytest.raises(ValueError, match="use the model that it was made from"):
        changed.to_table()


@pytest.mark.parametrize("share", [0.0, 1e-9, 1.0, -1.0, math.nan])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match=f"between 0 and 1, got {share}"):
        trained(3, 2).continued(share)


def test_a_model_without_a_start_goes_on_from_its_root():
    lm = trained(4, 1)
    assert int(continued(lm.automaton, 0.5, 2).starts[0]) == int(lm.starts[0]) == 0
