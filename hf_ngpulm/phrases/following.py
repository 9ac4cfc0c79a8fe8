"""Following phrases through an automaton, token by token, and finding again what was met, as compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..automaton.compiled import compiled, find_arc
from ..text.spelling import Spelling


def follow(
    automaton: tuple[np.ndarray, ...], root: int, start: int, spellings: Sequence[Spelling], backs_off: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The arcs that phrases take.

    A phrase is followed from the empty context, and one that may begin a transcript otherwise than in its midst (without the
    delimiter before it) from the start as well. An arc is told by the state that it leaves and its token: each state has one
    for each token, though it may be that of a shorter context.

    Args:
        automaton: its arc offsets, tokens and targets, and its backoff states.
        root, start: its states without context, and at the beginning of a transcript.
        backs_off: whether phrases go on where a state has no n-gram with the token; they end otherwise.

    Returns:
        int64 `[N]` states, tokens and numbers of spellings; and for each spelling how many of its tokens go on with an n-gram.
    """
    tokens = np.array([token for spelling in spellings for token in spelling.tokens], dtype=np.int64)
    ends = np.cumsum([0, *(len(spelling.tokens) for spelling in spellings)]).astype(np.int64)
    free = np.array([spelling.free for spelling in spellings], dtype=np.int64)
    initial = np.array([spelling.initial for spelling in spellings], dtype=np.bool_)
    found = np.empty((3, 2 * len(tokens)), dtype=np.int64)
    seen = np.zeros(len(spellings), dtype=np.int64)
    arguments = (*automaton, root, start, tokens, ends, free, initial, backs_off, found, seen)
    count = _follow(*arguments)
    return found[0, :count], found[1, :count], found[2, :count], seen


@compiled
def _follow(
    arc_offsets, arc_tokens, arc_targets, backoff_states, root, start, tokens, ends, free, initial, backs_off, found, seen
):
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
                    found[0, count], found[1, count], found[2, count] = state, token, n
                    count += 1
                    known += goes_on
                state = np.int64(arc_targets[arc])
            seen[n] = max(seen[n], known)
    return count


@compiled
def needed(states, tokens, discounts, backoff_states):
    """Of arcs in the order of their states and tokens, those whose discount no shorter context of their states has, too.

    Args:
        states, tokens: int64 `[N]`.
        discounts: float32 `[N]`.

    Returns:
        bool `[N]`.
    """
    kept = np.ones(states.size, dtype=np.bool_)
    for n in range(states.size):
        state = states[n]
        while kept[n] and backoff_states[state] != state:
            state = np.int64(backoff_states[state])
            low, high = 0, states.size
            while low < high:
                middle = (low + high) >> 1
                if states[middle] < state or (states[middle] == state and tokens[middle] < tokens[n]):
                    low = middle + 1
                else:
                    high = middle
            if low < states.size and states[low] == state and tokens[low] == tokens[n]:
                kept[n] = discounts[low] < discounts[n]
    return kept


class Owners(NamedTuple):
    """The states that arcs leave, and how to find them.

    Args:
        states: int32 `[S]`, ascending, numbers less the root's.
        spans: int32 `[S, 3]`, of each state its first arc, the one behind its last, and which is the next state that it backs
            off to, but for the root, that has any; -1 for none.
        filters: uint8 `[F]`, F a power of two, or 0 if there are no arcs: bits by `bit_of` a state. Where it isn't set, the
            state isn't among these, which most states aren't.
    """

    states: np.ndarray
    spans: np.ndarray
    filters: np.ndarray


def owners_of(states: np.ndarray, backoff_states: np.ndarray, root: int) -> Owners:
    """The states that arcs leave.

    Args:
        states: of each arc, ascending.
        backoff_states, root: of the automaton.
    """
    states, firsts, counts = np.unique(states, return_index=True, return_counts=True)
    found = Owners(
        (states - root).astype(np.int32),
        np.stack([firsts, firsts + counts, np.full_like(firsts, -1)], 1).astype(np.int32),
        np.zeros(1 << int(len(states) - 1).bit_length() if len(states) else 0, dtype=np.uint8),
    )
    _fill(found.states, found.filters)
    _link(*found, backoff_states, root)
    return found


@compiled
def bit_of(state, size):
    """Which byte and which bit of a filter tells of a state (less the root)."""
    mixed = np.int64(state) * np.int64(-7046029254386353131)
    mixed ^= mixed >> np.int64(32)
    return (mixed >> np.int64(3)) & (size - 1), np.uint8(1 << (mixed & 7))


@compiled
def owner_of(states, first, last, state):
    """Which state of a list, from the place `first` to `last`, this is, counted from `first`; -1 for none."""
    low, high = np.int64(first), np.int64(last)
    while low < high:
        middle = (low + high) >> 1
        if states[middle] < state:
            low = middle + 1
        else:
            high = middle
    return low - first if low < last and states[low] == state else -1


@compiled
def owner_above(states, first, last, filters, first_byte, last_byte, backoff_states, root, state):
    """Which of a list a state is, or else the next one that it backs off to, but for the root; -1 for none."""
    size = np.int64(last_byte - first_byte)
    while size > 0 and state != root:
        byte, bit = bit_of(state - root, size)
        if filters[first_byte + byte] & bit:
            found = owner_of(states, first, last, state - root)
            if found >= 0:
                return found
        if backoff_states[state] == state:
            break
        state = backoff_states[state]
    return -1


@compiled
def _fill(states, filters):
    for n in range(states.size):
        byte, bit = bit_of(states[n], np.int64(filters.size))
        filters[byte] |= bit


@compiled
def _link(states, spans, filters, backoff_states, root):
    for n in range(states.size):
        state = states[n] + root
        if backoff_states[state] != state:
            above = backoff_states[state]
            spans[n, 2] = owner_above(states, 0, states.size, filters, 0, filters.size, backoff_states, root, above)
