"""The arcs that phrases run along, and how they are found again."""

from __future__ import annotations

import numpy as np
import pytest
from automata import automata, build_automaton, seeds
from hypothesis import given, settings

from hf_ngpulm.boosting.spelling import Spelling
from hf_ngpulm.graph.following import follow, place_of, table_of_states

# States: 0 "", 1 "0", 2 "1", 3 "0 1", 4 "<s>". Arcs 0 .. 3 are the root's; 4 is 1's, 5 is 3's, 6 is 4's.
ARCS = [{0: (-1.0, 1), 1: (-1.0, 2), 2: (-1.0, 0), 3: (-1.0, 0)}, {1: (-1.0, 3)}, {}, {2: (-1.0, 0)}, {1: (-1.0, 2)}]
AUTOMATON = build_automaton(4, ARCS, [0, 0, 0, 2, 0], [-0.5] * 5, start=4)
ARRAYS = tuple(getattr(AUTOMATON, name).numpy() for name in ("arc_offsets", "arc_tokens", "arc_targets", "backoff_states"))


def followed(tokens, backs_off, free=0, initial=False):
    arcs, _, is_longer, (seen,) = follow(ARRAYS, 0, 4, [Spelling(0, tokens, len(tokens), free, False, initial)], backs_off)
    return dict(zip(arcs.tolist(), is_longer.tolist())), seen


@pytest.mark.parametrize(
    "tokens, stopping, backing_off, seen",
    [
        ((0, 1, 2), {0: True, 4: True, 5: True}, {}, 3),
        ((0, 1, 2, 3), {0: True, 4: True, 5: True}, {3: False}, 3),  # nothing is known of what lies before the 3
        ((0, 2, 1), {0: True}, {2: False, 1: False}, 1),
        ((0, 1, 3), {0: True, 4: True}, {3: False}, 2),  # two steps back
        ((2,), {2: True}, {}, 1),
    ],
)
def test_phrases_from_the_empty_context(tokens, stopping, backing_off, seen):
    assert followed(tokens, False) == (stopping, seen)
    assert followed(tokens, True) == (stopping | backing_off, seen)


def test_what_stands_before_a_phrase_is_no_part_of_it():
    # From the root, by 0, which is free, and from the start without it.
    assert followed((0, 1, 2), False, free=1) == ({4: True, 5: True, 6: True}, 2)
    assert followed((0, 1, 2), True, free=1) == ({4: True, 5: True, 6: True, 2: False}, 2)


def test_a_spelling_for_the_beginning_is_followed_from_the_start():
    assert followed((1, 2), False, initial=True) == ({6: True}, 1)


def test_tokens_that_the_automaton_has_no_arc_for():
    sparse = build_automaton(3, [{0: (-1.0, 0)}], [0], [-2.0])
    arrays = tuple(getattr(sparse, name).numpy() for name in ("arc_offsets", "arc_tokens", "arc_targets", "backoff_states"))
    arcs, _, _, seen = follow(arrays, 0, 0, [Spelling(0, (2, 0), 2, 0, False, False)], True)
    assert arcs.tolist() == [] and seen.tolist() == [0]
    assert follow(arrays, 0, 0, [], True)[0].tolist() == []


@given(automata(most=1), seeds)
@settings(deadline=None, max_examples=40)
def test_the_table_finds_every_state(automaton, seed):
    drawn = np.random.default_rng(seed)
    arcs = np.flatnonzero(drawn.random(automaton.num_arcs) < drawn.choice([0.02, 0.3, 1.0]))
    longer = drawn.choice([0.0, 0.0, 1.5], len(arcs)).astype(np.float32)
    offsets, backoffs, root = automaton.arc_offsets.numpy(), automaton.backoff_states.numpy(), int(automaton.roots[0])
    table = table_of_states(arcs, longer, offsets, backoffs, root)
    owners = np.searchsorted(offsets, arcs, "right") - 1
    adds = {int(state) for state in owners[longer > 0]}

    def find(state):
        at = place_of(state - root, len(table) - 1) if len(table) else 0
        while len(table) and table[at, 2]:
            if table[at, 0] == state - root:
                return at
            at = (at + 1) % len(table)
        return -1

    for state in range(automaton.num_states):
        entry, own = find(state), np.flatnonzero(owners == state)
        assert (entry >= 0) == (len(own) > 0)
        if entry >= 0:
            assert table[entry, 1:3].tolist() == [own[0], len(own)] and bool(table[entry, 4]) == (state in adds)
            at = state
            while backoffs[at] != at and backoffs[at] != root and backoffs[at] not in adds:
                at = backoffs[at]
            following = backoffs[at] if backoffs[at] not in (at, root) else None
            assert table[entry, 3] == (-1 if following is None else find(following))
