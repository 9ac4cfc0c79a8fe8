"""The arcs that phrases run along, and how they are found again."""

from __future__ import annotations

import numpy as np
import pytest
from automata import automata, build_automaton, seeds
from hypothesis import given, settings

from hf_ngpulm.phrases.following import bit_of, follow, needed, owner_above, owners_of
from hf_ngpulm.text.spelling import Spelling

# States: 0 "", 1 "0", 2 "1", 3 "0 1", 4 "<s>". Arcs 0 .. 3 are the root's; 4 is 1's, 5 is 3's, 6 is 4's.
ARCS = [{0: (-1.0, 1), 1: (-1.0, 2), 2: (-1.0, 0), 3: (-1.0, 0)}, {1: (-1.0, 3)}, {}, {2: (-1.0, 0)}, {1: (-1.0, 2)}]
AUTOMATON = build_automaton(4, ARCS, [0, 0, 0, 2, 0], [-0.5] * 5, start=4)
ARRAYS = tuple(getattr(AUTOMATON, name).numpy() for name in ("arc_offsets", "arc_tokens", "arc_targets", "backoff_states"))


def followed(tokens, backs_off, free=0, initial=False):
    states, found, _, (seen,) = follow(ARRAYS, 0, 4, [Spelling(0, tokens, len(tokens), free, False, initial)], backs_off)
    return list(zip(states.tolist(), found.tolist())), seen


@pytest.mark.parametrize(
    "tokens, stopping, backing_off, seen",
    [
        ((0, 1, 2), [(0, 0), (1, 1), (3, 2)], [], 3),
        ((0, 1, 2, 3), [(0, 0), (1, 1), (3, 2)], [(0, 3)], 3),  # nothing is known of what lies before the 3
        ((0, 2, 1), [(0, 0)], [(1, 2), (0, 1)], 1),
        ((0, 1, 3), [(0, 0), (1, 1)], [(3, 3)], 2),  # two steps back, from where the phrase has come
        ((2,), [(0, 2)], [], 1),
    ],
)
def test_phrases_from_the_empty_context(tokens, stopping, backing_off, seen):
    assert followed(tokens, False) == (stopping, seen)
    assert followed(tokens, True) == (stopping + backing_off, seen)


def test_what_stands_before_a_phrase_is_no_part_of_it():
    # From the root, by 0, which is free, and from the start without it.
    assert followed((0, 1, 2), False, free=1) == ([(1, 1), (3, 2), (4, 1)], 2)
    assert followed((0, 1, 2), True, free=1) == ([(1, 1), (3, 2), (4, 1), (2, 2)], 2)


def test_a_spelling_for_the_beginning_is_followed_from_the_start():
    assert followed((1, 2), False, initial=True) == ([(4, 1)], 1)


def test_tokens_that_the_automaton_has_no_arc_for():
    sparse = build_automaton(3, [{0: (-1.0, 0)}], [0], [-2.0])
    arrays = tuple(getattr(sparse, name).numpy() for name in ("arc_offsets", "arc_tokens", "arc_targets", "backoff_states"))
    states, _, _, seen = follow(arrays, 0, 0, [Spelling(0, (2, 0), 2, 0, False, False)], True)
    assert states.tolist() == [] and seen.tolist() == [0]
    assert follow(arrays, 0, 0, [], True)[0].tolist() == []


def drawn_arcs(automaton, seed):
    """States and tokens, ascending, with discounts; and the states that each state backs off to."""
    drawn = np.random.default_rng(seed)
    chosen = drawn.random((automaton.num_states, automaton.vocab_size)) < drawn.choice([0.0, 0.05, 0.3, 1.0])
    states, tokens = np.nonzero(chosen)
    backoffs, chains = automaton.backoff_states.numpy(), []
    for state in range(automaton.num_states):
        chain = [state]
        while backoffs[chain[-1]] != chain[-1]:
            chain.append(int(backoffs[chain[-1]]))
        chains.append(chain)
    return states, tokens, drawn.choice([0.0, 1.0, 1.5], len(states)).astype(np.float32), backoffs, chains


@given(automata(most=1), seeds)
@settings(deadline=None, max_examples=40)
def test_every_state_with_arcs_is_found_from_those_that_back_off_to_it(automaton, seed):
    states, _, _, backoffs, chains = drawn_arcs(automaton, seed)
    root = int(automaton.roots[0])
    found = owners_of(states, backoffs, root)
    owners = sorted(set(states.tolist()))
    assert (found.states + root).tolist() == owners
    filters = found.filters

    def first_of(chain):
        return next((owners.index(state) for state in chain if state in owners and state != root), -1)

    for state, chain in enumerate(chains):
        if root in chain:  # what lies behind the root is no part of the row's automaton
            chain = chain[: chain.index(root)]
        arguments = (found.states, 0, len(owners), filters, 0, len(filters), backoffs, root, state)
        assert owner_above(*arguments) == first_of(chain)
        if state in owners:
            first, end, link = found.spans[owners.index(state)].tolist()
            assert np.flatnonzero(states == state).tolist() == list(range(first, end))
            if state != root:
                assert link == first_of(chain[1:])
            byte, bit = bit_of(state - root, len(filters))
            assert filters[byte] & bit


@given(automata(most=1), seeds)
@settings(deadline=None, max_examples=40)
def test_what_is_left_out_changes_no_discount(automaton, seed):
    states, tokens, discounts, backoffs, chains = drawn_arcs(automaton, seed)
    kept = needed(states, tokens, discounts, backoffs)

    def largest(chosen):
        found = np.zeros((automaton.num_states, automaton.vocab_size))
        found[states[chosen], tokens[chosen]] = discounts[chosen]
        return np.array([found[chain].max(0) for chain in chains])

    every = np.ones(len(states), dtype=bool)
    assert (largest(kept) == largest(every)).all()
    for n in np.flatnonzero(kept & (discounts > 0))[:20]:  # and each of the others would
        fewer = kept.copy()
        fewer[n] = False
        assert (largest(fewer) != largest(every)).any()
