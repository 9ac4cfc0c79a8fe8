"""Automata that come and go in one pool answer as they do alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from automata import build_automaton
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm.automaton import BackoffAutomaton
from hf_ngpulm.automaton.pool import SMALLEST, AutomatonPool

VOCAB_SIZE = 4


def chain(length: int, weight: float) -> BackoffAutomaton:
    """A root, and a state for each token more of the one sequence that it knows."""
    arcs = [{state % VOCAB_SIZE: (weight + state, state + 1)} for state in range(length)] + [{}]
    return build_automaton(VOCAB_SIZE, arcs, [0] * (length + 1), [0.0] + [-weight] * length)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=25))
@settings(max_examples=100, deadline=None)
def test_each_is_itself_whatever_comes_and_goes(moves):
    pool = AutomatonPool(VOCAB_SIZE, torch.device("cpu"))
    inside: dict[int, BackoffAutomaton] = {}
    for adds, key, length in moves:
        if adds:
            inside.setdefault(key, chain(length, float(key + 1)))
            pool.add(key, inside[key])
        elif key in inside:
            pool.drop(key)
            del inside[key]
        assert set(pool.places) == set(inside)
        for key, automaton in inside.items():
            place = pool.places[key]
            states = torch.arange(automaton.num_states, dtype=torch.int32)
            found = torch.ops.hf_ngpulm.advance(list(pool.tensors), states + place.states[0], VOCAB_SIZE, "auto")
            expected = automaton.advance(states)
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1] + place.states[0])
            assert place.root == place.states[0] + int(automaton.roots[0])
    parts = sorted(place.states for place in pool.places.values())
    assert all(first + size <= after for (first, size), (after, _) in pairwise(parts))


def test_rooms_are_used_again_and_others_stay():
    pool = AutomatonPool(VOCAB_SIZE, torch.device("cpu"))
    automata = [chain(SMALLEST // 3, float(n)) for n in range(1, 4)]
    places = [pool.add(n, automaton) for n, automaton in enumerate(automata)]
    size = pool.tensors.num_states
    for _ in range(20):
        pool.drop(1)
        assert pool.add(1, automata[1]) == places[1]
        pool.drop(0)
        pool.add(0, automata[0])
    assert pool.tensors.num_states == size
    assert pool.places[2] == places[2]
    assert pool.add(2, automata[2]) == places[2]  # is there already


def test_the_state_of_nobody():
    pool = AutomatonPool(VOCAB_SIZE, torch.device("cpu"))
    for _ in range(2):
        scores, states = torch.ops.hf_ngpulm.advance(
            list(pool.tensors), torch.zeros(1, dtype=torch.int32), VOCAB_SIZE, "reference"
        )
        assert not scores.any() and not states.any()
        pool.add("x", chain(3, 1.0))


def test_another_vocabulary():
    with pytest.raises(ValueError, match="different sizes"):
        AutomatonPool(VOCAB_SIZE + 1, torch.device("cpu")).add(0, chain(2, 1.0))
