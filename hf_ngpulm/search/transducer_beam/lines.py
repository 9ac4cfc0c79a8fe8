"""What language models add to the score of each class, one line for each prediction, as compiled loops."""

from __future__ import annotations

import numpy as np

from ...automaton.compiled import compiled, score_one


@compiled
def first_lines(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    rows, lm_states, weights, num_lms, vocab_size, slots_of_row, lines,
):  # fmt: skip
    one, chain = np.empty(max(vocab_size, 1), dtype=np.float32), np.empty(16, dtype=np.int32)
    if lines.shape[0]:
        for row in rows:
            chain = fill_line(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                lm_states, row, 0, weights, num_lms, vocab_size, one, chain, lines, row * slots_of_row,
            )  # fmt: skip


@compiled
def lines_of_rows(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    rows, scores, slots, lm_states, weights, num_lms, vocab_size, slots_of_row, lines,
):  # fmt: skip
    """The lines of all hypotheses of some rows anew."""
    one, chain = np.empty(max(vocab_size, 1), dtype=np.float32), np.empty(16, dtype=np.int32)
    for row in rows:
        for place in range(scores.shape[1]):
            if scores[row, place] > -np.inf:
                chain = fill_line(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    lm_states, row, place, weights, num_lms, vocab_size, one, chain, lines,
                    row * slots_of_row + slots[row, place],
                )  # fmt: skip


@compiled
def fill_line(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    lm_states, row, place, weights, num_lms, vocab_size, one, chain, lines, line,
):  # fmt: skip
    """What the LMs of a hypothesis add to the score of each class."""
    classes = lines.shape[1]
    scored = min(vocab_size, classes)
    total = np.float32(0.0)
    for m in range(num_lms):
        total += weights[row, m]
    # As likely as one of V tokens that are equally likely.
    of_others = -total * np.log(np.float32(vocab_size)) if vocab_size else np.float32(0.0)
    for label in range(scored, classes):
        lines[line, label] = of_others
    is_first = True
    for m in range(weights.shape[1]):
        weight = weights[row, m]
        if weight != 0.0:
            chain = score_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                lm_states[row, place, m], vocab_size, chain, one,
            )  # fmt: skip
            if is_first:
                for label in range(np.uintp(0), np.uintp(scored)):
                    lines[line, label] = weight * one[label]
            else:
                for label in range(np.uintp(0), np.uintp(scored)):
                    lines[line, label] += weight * one[label]
            is_first = False
    if is_first:
        for label in range(np.uintp(0), np.uintp(scored)):
            lines[line, label] = 0.0
    return chain
