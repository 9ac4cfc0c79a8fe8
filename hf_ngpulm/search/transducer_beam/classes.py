"""The classes that may follow a hypothesis: normalised, and the best of them, as compiled loops."""

from __future__ import annotations

import numpy as np

from ...automaton.compiled import compiled
from ..networks.cpu_networks import exp, highest_class, sum_for_confidence, sum_of_classes
from ..networks.cpu_vectors import BLOCK, add_blocks, at_least, bound_of, lowest_bit

NEGLIGIBLE = 40.0  # a summand less likely than another by this power of e is lost in double precision


@compiled
def add(a, b):
    """log(exp(a) + exp(b))"""
    if a < b:
        a, b = b, a
    return a if b < a - NEGLIGIBLE or b == -np.inf else a + np.log1p(np.exp(b - a))


@compiled
def normalisers(logits, at, classes, blank):
    """Log of the sum of exponentials of all classes, and of all but the blank, NaN if there is none; and the highest."""
    of_blank, above = logits[at, blank], highest_class(logits, at, blank + 1, classes)
    highest = highest_class(logits, at, 0, blank)
    if above > highest or above != above:
        highest = above
    if not (highest < np.inf and of_blank < np.inf):
        return np.float64(np.nan), np.float64(np.nan), highest
    others = -np.inf
    if highest > -np.inf:
        total = sum_of_classes(logits, at, 0, blank, highest) + sum_of_classes(logits, at, blank + 1, classes, highest)
        others = np.float64(highest) + np.log(np.float64(total))
    return add(others, np.float64(of_blank)), others, max(highest, of_blank)


@compiled
def confidence_sum(logits, at, classes, log_sum, highest, measure, alpha):
    if measure == 0:
        return exp(np.float32(highest) - np.float32(log_sum))
    return sum_for_confidence(logits, at, classes, np.float32(log_sum), 0, measure, alpha)


@compiled
def insert(ranks, entries, size, most, rank, entry):
    """Put an entry in a list that is sorted, the highest rank first, and holds `most`; returns its new size."""
    if size == most:
        if rank <= ranks[size - 1]:
            return size
        size -= 1
    at = size
    while at > 0 and ranks[at - 1] < rank:
        ranks[at], entries[at] = ranks[at - 1], entries[at - 1]
        at -= 1
    ranks[at], entries[at] = rank, entry
    return size + 1


@compiled
def fuse(logits, at, lines, line, has_lines, classes, blank, fused):
    """What all classes but the blank score."""
    if has_lines:
        blocks = classes // BLOCK
        if blocks > 0:
            ours = lines.ctypes.data + 4 * line * lines.shape[1]
            add_blocks(logits.ctypes.data + 4 * at * logits.shape[1], ours, fused.ctypes.data, blocks)
        for label in range(blocks * BLOCK, classes):
            value = logits[at, label] + lines[line, label]
            fused[label] = value if value == value else np.float32(-np.inf)  # what is impossible in two ways
    else:
        for label in range(np.uintp(0), np.uintp(classes)):
            fused[label] = logits[at, label]
    fused[blank] = -np.inf


@compiled
def best_classes(fused, tops, most, offset, ranks, entries):
    """Put the `most` highest classes above -inf into a sorted list, `offset` added to each; returns its size."""
    least, size, address = bound_of(fused, most, tops), 0, fused.ctypes.data
    for block in range(fused.size // BLOCK):
        hits = at_least(address + 4 * BLOCK * block, least)
        while hits != 0:
            label = block * BLOCK + lowest_bit(hits)
            hits &= hits - 1
            if fused[label] > -np.inf:
                size = insert(ranks, entries, size, most, np.float64(fused[label]) + offset, label)
    return size
