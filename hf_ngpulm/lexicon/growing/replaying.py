"""Which states a search has entered, found by going its ways once more.

A state whose scores hang on a stub is noted by that stub: the first one on its backoff chain (of a chain through several the
others are found when that one is expanded).
"""

from __future__ import annotations

import numpy as np

from ...automaton.cpu import borrowed_automaton, compiled, step_one


@compiled
def find_stub(backoff_states, stubs, state):
    """The first stub that a state backs off to, itself if it is one; -1 if there is none."""
    while stubs[state] == 0:
        lower = backoff_states[state]
        if lower == state:
            return -1
        state = lower
    return state


@compiled
def stubs_behind(backoff_states, stubs, states, wanted):
    """Write the stubs that the scores in some states hang on; how many."""
    count = 0
    for i in range(states.size):
        if states[i] >= 0:
            stub = find_stub(backoff_states, stubs, states[i])
            if stub >= 0:
                wanted[count] = stub
                count += 1
    return count


@compiled
def follow(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, vocab_size, stubs, states, links,
    labels, not_tokens, wanted,
):  # fmt: skip
    """Write the stubs that the scores of a search's hypotheses hang on, see `GrowingAutomaton.replay`; how many."""
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    num_beams = states.shape[1]
    now, then = np.empty(num_beams, dtype=np.int32), np.empty(num_beams, dtype=np.int32)
    count = 0
    for row in range(states.shape[0]):
        for k in range(num_beams):
            now[k] = states[row, k]
            if now[k] >= 0:
                stub = find_stub(backoff_states, stubs, now[k])
                if stub >= 0:
                    wanted[count] = stub
                    count += 1
        for step in range(labels.shape[1]):
            for k in range(num_beams):
                then[k] = now[links[row, step, k]]
                label = labels[row, step, k]
                if label < 0 or label == not_tokens or then[k] < 0:
                    continue
                _, state = step_one(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    then[k], label, vocab_size,
                )  # fmt: skip
                then[k] = state
                stub = find_stub(backoff_states, stubs, state)
                if stub >= 0:
                    wanted[count] = stub
                    count += 1
            now, then = then, now
    return count


@compiled
def follow_text(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, vocab_size, stubs, starts, roots, texts,
    lengths, context_length, wanted,
):  # fmt: skip
    """The same for texts that are read, see `GrowingAutomaton.read`."""
    count = 0
    for row in range(texts.shape[0]):
        if starts[row] < 0:
            continue
        begin, seen = lengths[row], 0
        while begin > 0 and seen < context_length:
            begin -= 1
            seen += 0 <= texts[row, begin] < vocab_size
        state = roots[row] if seen == context_length else starts[row]
        for position in range(begin, lengths[row] + 1):
            stub = find_stub(backoff_states, stubs, state)
            if stub >= 0:
                wanted[count] = stub
                count += 1
            if position < lengths[row]:
                _, state = step_one(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    state, texts[row, position], vocab_size,
                )  # fmt: skip
    return count
