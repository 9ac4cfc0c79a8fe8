"""What each token adds to a prefix, kept by state of the automata, and which tokens are worth a look: compiled loops."""

from __future__ import annotations

import numpy as np

from ...automaton.compiled import compiled, score_one
from .joining import NONE

KEPT_SCORES = 1 << 18
BLOCK = 64  # tokens that are looked at together
ROUNDING = 1e-3  # of sums in single precision


@compiled
def any_above(x, added, line, first, last, bound):
    """Whether a sum is above a bound. (Counting becomes vector instructions, which a maximum or an early end doesn't.)"""
    count = 0
    for token in range(np.uintp(first), np.uintp(last)):  # what may be negative is checked at every step
        count += x[token] + added[line, token] > bound
    return count > 0


@compiled
def list_sums_above(x, added, line, bound, classes, listed):
    """List the tokens with sums above a bound."""
    bound, count = np.float32(bound), 0
    for block in range(0, classes, BLOCK):
        end = min(block + BLOCK, classes)
        if any_above(x, added, line, block, end, bound):
            for token in range(np.uintp(block), np.uintp(end)):
                listed[count] = token
                count += x[token] + added[line, token] > bound
    return count


@compiled
def list_above(x, bound, classes, listed):
    """List the tokens with logits above a bound."""
    bound, count = np.float32(bound), 0
    for block in range(0, classes, BLOCK):
        end = min(block + BLOCK, classes)
        above = 0
        for token in range(np.uintp(block), np.uintp(end)):
            above += x[token] > bound
        if above:
            for token in range(np.uintp(block), np.uintp(end)):
                listed[count] = token
                count += x[token] > bound
    return count


# Slices of arrays count their references, which costs more than these functions do: they are given indices.
@compiled
def line_of(states, place, num_kept):
    mixed = np.int64(0)
    for m in range(states.shape[1]):
        mixed = (mixed ^ np.int64(states[place, m])) * np.int64(0x9E3779B1)
    return (mixed >> np.int64(15)) & (num_kept - 1)


@compiled
def are_equal(a, i, b, j):
    different = 0
    for m in range(a.shape[1]):
        different |= a[i, m] ^ b[j, m]
    return different == 0


@compiled
def keep(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, place, weights, row, bonus, unscored, blank, vocab_size, candidates,
    one, chain, at, added, added_highest, added_states,
):  # fmt: skip
    """Have what each token adds in the states of a place in the beam among what is kept.

    With one automaton a state differs from its backoff state, which is likely to be there, in a constant and its few arcs.
    `added_highest` is at least the highest of a line; `at` is room for one row of states.
    """
    num_kept, classes = added.shape
    if states.shape[1] != 1:
        return _fill_line(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            states, place, weights, row, bonus, unscored, blank, vocab_size, candidates, one, chain,
            line_of(states, place, num_kept), added, added_highest, added_states,
        )  # fmt: skip
    weight = weights[row, 0]
    at[0, 0] = states[place, 0]
    depth = 0
    while True:
        line = line_of(at, 0, num_kept)
        if added_highest[line] != np.inf and added_states[line, 0] == at[0, 0]:
            break
        backoff = backoff_states[at[0, 0]]
        if backoff == at[0, 0]:
            chain = _fill_line(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                at, 0, weights, row, bonus, unscored, blank, vocab_size, candidates, one, chain,
                line, added, added_highest, added_states,
            )  # fmt: skip
            break
        if depth == chain.size:
            chain = np.concatenate((chain, np.empty_like(chain)))
        chain[depth] = at[0, 0]
        depth += 1
        at[0, 0] = backoff
    for level in range(depth - 1, -1, -1):
        state = at[0, 0] = chain[level]
        shorter, line = line, line_of(at, 0, num_kept)  # may be the same, which does no harm
        shift = weight * backoff_weights[state]
        for token in range(np.uintp(0), np.uintp(candidates)):
            added[line, token] = added[shorter, token] + shift
        highest = added_highest[shorter] + shift
        if candidates < classes:
            highest = max(highest, bonus + unscored)
        for token in range(candidates, classes):
            added[line, token] = bonus + unscored
        for arc in range(arc_offsets[state], arc_offsets[state + 1]):
            token = arc_tokens[arc]
            if token < candidates:
                added[line, token] = bonus + weight * arc_weights[arc]
                highest = max(highest, added[line, token])
        added[line, blank] = NONE
        added_highest[line], added_states[line, 0] = highest, state
    return chain


@compiled
def _fill_line(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, place, weights, row, bonus, unscored, blank, vocab_size, candidates, one, chain,
    line, added, added_highest, added_states,
):  # fmt: skip
    """The same, from nothing."""
    classes = added.shape[1]
    for token in range(classes):
        added[line, token] = bonus if token < candidates else bonus + unscored
    for m in range(states.shape[1]):
        added_states[line, m] = states[place, m]
        weight = weights[row, m]
        if weight != 0.0:
            chain = score_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                states[place, m], vocab_size, chain, one,
            )  # fmt: skip
            for token in range(candidates):
                added[line, token] += weight * one[token]
    added[line, blank] = NONE
    highest = NONE
    for token in range(classes):
        highest = max(highest, added[line, token])
    added_highest[line] = highest
    return chain
