"""The automaton of phrases gives any transcript what the plain definition gives it, whichever way phrases overlap."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm.engines.choice import ENGINES
from hf_ngpulm.phrases.automaton import Spellings, phrase_automaton
from hf_ngpulm.phrases.reference import total_bonus


@st.composite
def cases(draw):
    """Spellings over few tokens, so that they overlap in every way, and transcripts of the same tokens."""
    vocab_size = draw(st.integers(1, 5))
    tokens = st.integers(0, vocab_size - 1)
    phrases = draw(st.lists(st.lists(tokens, min_size=1, max_size=5), max_size=7))
    count, length = len(phrases), sum(map(len, phrases))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    start_token = draw(st.one_of(st.none(), tokens))
    initial = rng.random(count) < 0.3 if start_token is None else np.zeros(count, bool)
    spellings = Spellings(
        np.array([token for phrase in phrases for token in phrase], dtype=np.int64),
        np.array([len(phrase) for phrase in phrases], dtype=np.int64),
        rng.normal(size=length),
        rng.choice([-1.5, -0.25, 0.0, 0.5, 1.0, 2.0], size=count),
        rng.random(count) < draw(st.sampled_from([0.0, 0.5, 1.0])),
        initial,
    )
    firsts = np.cumsum(spellings.lengths) - spellings.lengths
    if start_token is not None and count:
        spellings.payments[firsts[spellings.tokens[firsts] == start_token]] = 0.0
    transcripts = draw(st.lists(st.lists(tokens, max_size=9), min_size=1, max_size=6))
    return spellings, vocab_size, rng.random(vocab_size) < 0.5, start_token, transcripts


@given(cases())
@settings(max_examples=examples(300), deadline=None)
def test_the_sum_over_a_transcript_is_the_definition(case):
    spellings, vocab_size, begins_word, start_token, transcripts = case
    automaton = phrase_automaton(spellings, vocab_size, begins_word, start_token)
    automaton.validate()
    longest = max(map(len, transcripts))
    rows = torch.zeros((len(transcripts), longest), dtype=torch.int64)
    for row, transcript in zip(rows, transcripts):
        row[: len(transcript)] = torch.tensor(transcript, dtype=torch.int64)
    lengths = torch.tensor([len(transcript) for transcript in transcripts])
    found = automaton.score_sequences(rows, lengths)
    expected = [total_bonus(transcript, spellings, begins_word, start_token) for transcript in transcripts]
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    # A state is known from the last tokens, as where decoders hold none.
    torch.testing.assert_close(automaton.states_after(rows, lengths), automaton.score_tokens(rows, lengths)[1], rtol=0, atol=0)


@given(cases())
@settings(max_examples=20, deadline=None)
def test_engines_agree(case):
    spellings, vocab_size, begins_word, start_token, _ = case
    automaton = phrase_automaton(spellings, vocab_size, begins_word, start_token)
    states = torch.arange(automaton.num_states, dtype=torch.int32)
    automaton.engine = "reference"
    expected = automaton.advance(states)
    for engine in ENGINES[1:]:
        automaton.engine = engine
        found = automaton.advance(states)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
        assert torch.equal(found[1], expected[1])


def spelled(*phrases, bonus=1.0, bounded=False):
    lengths = np.array([len(phrase) for phrase in phrases], dtype=np.int64)
    tokens = np.array([token for phrase in phrases for token in phrase], dtype=np.int64)
    payments = np.concatenate([bonus * np.arange(1, n + 1) for n in lengths]) if len(phrases) else np.zeros(0)
    flags = np.full(len(phrases), bounded)
    return Spellings(tokens, lengths, payments, bonus * lengths.astype(float), flags, np.zeros(len(phrases), bool))


def scores_of(automaton, tokens):
    """What each token scores, and the end."""
    scores, states = automaton.score_tokens(torch.tensor([tokens]))
    return [*scores[0].tolist(), float(automaton.final_scores(states))]


def test_a_match_is_paid_token_by_token_and_gives_back_what_fails():
    automaton = phrase_automaton(spelled([0, 1, 2]), 5, np.zeros(5, bool))
    assert scores_of(automaton, [0, 1, 2, 3]) == [1, 1, 1, 0, 0]
    assert scores_of(automaton, [0, 1, 3]) == [1, 1, -2, 0]
    assert scores_of(automaton, [0, 1]) == [1, 1, -2]  # the transcript ends
    assert scores_of(automaton, [0, 0, 1, 2]) == [1, 0, 1, 1, 0]  # gives back one and begins anew


def test_a_complete_phrase_keeps_its_bonus_when_a_longer_one_fails():
    automaton = phrase_automaton(spelled([0, 1], [0, 1, 2, 3]), 6, np.zeros(6, bool))
    assert sum(scores_of(automaton, [0, 1, 2, 5])) == 2
    assert sum(scores_of(automaton, [0, 1, 2, 3])) == 4


def test_overlapping_phrases_count_each():
    automaton = phrase_automaton(spelled([0, 1], [1, 2]), 4, np.zeros(4, bool))
    assert sum(scores_of(automaton, [0, 1, 2])) == 4


def test_phrases_that_must_end_with_a_word():
    begins_word = np.array([True, False, False, True, False])
    automaton = phrase_automaton(spelled([0, 1], bounded=True), 5, begins_word)
    assert scores_of(automaton, [0, 1, 3]) == [1, 1, 0, 0]
    assert scores_of(automaton, [0, 1, 2]) == [1, 1, -2, 0]
    assert scores_of(automaton, [0, 1]) == [1, 1, 0]


def test_no_phrases():
    automaton = phrase_automaton(spelled(), 5, np.zeros(5, bool), start_token=2)
    automaton.validate()
    assert scores_of(automaton, [0, 2, 4]) == [0, 0, 0, 0]


def test_many_differences_share_their_arcs():
    """Phrases that end like the beginnings of others don't each have arcs for half the vocabulary."""
    rng = np.random.default_rng(0)
    phrases = [[*rng.integers(1000, 2000, 2), first] for first in range(300)] + [[first, first + 400] for first in range(300)]
    begins_word = np.arange(4000) < 2000
    automaton = phrase_automaton(spelled(*phrases, bounded=True), 4000, begins_word)
    assert automaton.num_arcs < 1000 + 10 * 2001


@pytest.mark.parametrize("bounded", [False, True])
def test_a_long_phrase(bounded):
    """The longest there may be: chains twice as long are still within what files may have."""
    automaton = phrase_automaton(spelled([0] * 500, bounded=bounded), 2, np.ones(2, bool))
    automaton.validate()
    assert sum(scores_of(automaton, [0] * 500 + [1])) == 500
    assert sum(scores_of(automaton, [0] * 499)) == 0
