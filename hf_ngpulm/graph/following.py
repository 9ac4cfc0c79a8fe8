"""Following phrases through an automaton, token by token, and finding again what was met, as compiled loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..automaton.cpu import compiled, find_arc
from ..boosting.spelling import Spelling


def follow(
    automaton: tuple[np.ndarray, ...], root: int, start: int, spellings: Sequence[Spelling], backs_off: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The arcs that phrases take.

    A phrase is followed from the empty context, and one that may begin a transcript otherwise than in its midst (without the
    delimiter before it) from the start as well. An arc that goes on with an n-gram is met again in longer contexts, by the
    same token: those are left to whoever asks. One that is reached by backing off, or from the empty context behind other
    tokens, counts only where it is taken itself.

    Args:
        automaton: its arc offsets, tokens and targets, and its backoff states.
        root, start: its states without context, and at the beginning of a transcript.
        backs_off: whether phrases go on by backing off; they end otherwise.

    Returns:
        int64 `[N]` arcs, with the number of the spelling and (bool) whether it goes on with an n-gram; and for each spelling
        how many of its tokens do.
    """
    tokens = np.array([token for spelling in spellings for token in spelling.tokens], dtype=np.int64)
    ends = np.cumsum([0, *(len(spelling.tokens) for spelling in spellings)]).astype(np.int64)
    free = np.array([spelling.free for spelling in spellings], dtype=np.int64)
    initial = np.array([spelling.initial for spelling in spellings], dtype=np.bool_)
    arcs = np.empty((2, 2 * len(tokens)), dtype=np.int64)
    is_longer = np.empty(2 * len(tokens), dtype=np.bool_)
    seen = np.zeros(len(spellings), dtype=np.int64)
    arguments = (*automaton, root, start, tokens, ends, free, initial, backs_off, arcs, is_longer, seen)
    count = _follow(*arguments)
    return arcs[0, :count], arcs[1, :count], is_longer[:count], seen


@compiled
def _follow(
    arc_offsets, arc_tokens, arc_targets, backoff_states, root, start, tokens, ends, free, initial, backs_off,
    arcs, is_longer, seen,
):  # fmt: skip
    count = 0
    for n in range(free.size):
        for from_start in range(2):
            if (from_start == 1 and free[n] == 0 and not initial[n]) or (from_start == 0 and initial[n]):
                continue
            state = np.int64(start if from_start else root)
            first = ends[n] + (free[n] if from_start else 0)
            known = 0
            for at in range(first, ends[n + 1]):
                token = tokens[at]
                taken = state
                arc = find_arc(arc_tokens, arc_offsets[taken], arc_offsets[taken + 1], token)
                while arc < 0 and backoff_states[taken] != taken:
                    taken = np.int64(backoff_states[taken])
                    arc = find_arc(arc_tokens, arc_offsets[taken], arc_offsets[taken + 1], token)
                goes_on = taken == state and (at == first or taken != root)
                if arc < 0 or (not goes_on and not backs_off):
                    break
                if at >= ends[n] + free[n]:
                    arcs[0, count], arcs[1, count], is_longer[count] = arc, n, goes_on
                    count += 1
                    known += goes_on
                state = np.int64(arc_targets[arc])
            seen[n] = max(seen[n], known)
    return count


def table_of_states(
    arcs: np.ndarray, longer: np.ndarray, arc_offsets: np.ndarray, backoff_states: np.ndarray, root: int
) -> np.ndarray:
    """The states that some arcs leave, as a table with open addressing, at least half empty.

    Args:
        arcs: ascending.
        longer: what each adds to arcs of longer contexts, 0 for nothing.
        arc_offsets, backoff_states, root: of the automaton.

    Returns:
        int32 `[H, 5]`, H a power of two, or 0 if there are no arcs. Of each entry: a state's number less the root's; which of
        the arcs is its first; how many of them it has, 0 where an entry is empty; the entry of the next state that it backs off
        to, but for the root, of which an arc adds to those of longer contexts, -1 for none; and whether one of its own does.
    """
    if not len(arcs):
        return np.zeros((0, 5), dtype=np.int32)
    states, firsts, counts = np.unique(np.searchsorted(arc_offsets, arcs, "right") - 1, return_index=True, return_counts=True)
    adds = np.maximum.reduceat(longer, firsts) > 0
    table = np.zeros((1 << int(2 * len(states) - 1).bit_length(), 5), dtype=np.int32)
    _fill(table, states - root, firsts, counts, adds)
    _link(table, backoff_states, root)
    return table


@compiled
def place_of(state, mask):
    """Where in a table a state is looked for first."""
    mixed = np.int64(state) * np.int64(-7046029254386353131)
    return (mixed ^ (mixed >> np.int64(32))) & mask


@compiled
def _fill(table, states, firsts, counts, adds):
    mask = len(table) - 1
    for n in range(states.size):
        at = place_of(states[n], mask)
        while table[at, 2] > 0:
            at = (at + 1) & mask
        table[at, 0], table[at, 1], table[at, 2], table[at, 3], table[at, 4] = states[n], firsts[n], counts[n], -1, adds[n]


@compiled
def _link(table, backoff_states, root):
    mask = len(table) - 1
    for entry in range(len(table)):
        if table[entry, 2] == 0:
            continue
        state = table[entry, 0] + root
        while table[entry, 3] < 0 and backoff_states[state] != state and backoff_states[state] != root:
            state = backoff_states[state]
            at = place_of(state - root, mask)
            while table[at, 2] > 0 and table[at, 0] != state - root:
                at = (at + 1) & mask
            if table[at, 4] > 0:
                table[entry, 3] = at
