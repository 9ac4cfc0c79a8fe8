"""Joining the prefixes of one text as a compiled loop, see `hf_ngpulm.search.ctc_beam`."""

from __future__ import annotations

import numpy as np

from ...automaton.compiled import compiled

NONE = np.float32(-np.inf)
NEGLIGIBLE = 25.0  # a summand less likely than another by this power of e is lost in single precision


@compiled
def add_logs(a, b):
    """log(exp(a) + exp(b))"""
    if a < b:
        a, b = b, a
    return a if b < a - NEGLIGIBLE or b == -np.inf else a + np.log1p(np.exp(np.float32(b - a)))


@compiled
def slots_for(count):
    """Slots of a hash table for some entries: a power of two."""
    slots = 4
    while slots < 2 * count:
        slots *= 2
    return slots


@compiled
def join_texts(texts, last_tokens, fused, blank_scores, token_scores, totals, table, slots):
    """Join the prefixes of a row; what is in the table before, -1, is so again behind it. Returns whether one lost all it had.

    Args:
        texts, last_tokens, fused, blank_scores, token_scores: `[K]`, the latter two are changed.
        totals: float64 `[K]`, of both, are changed.
        table: int32 `[2, N]`, N a power of two above K: the best place of each text, and of each text and last token.
        slots: int32 `[2, K]`, room for where in the table each place is.
    """
    num_beams, last_slot = texts.size, table.shape[1] - 1
    is_shared = False
    for k in range(num_beams):
        slots[0, k] = -1
        if totals[k] == -np.inf:
            continue
        key = texts[k]
        for kind in range(2):
            slot = (key >> np.int64(32)) & last_slot  # the higher bits depend on all characters
            while True:
                j = table[kind, slot]
                if j < 0 or (texts[j] == texts[k] and (kind == 0 or last_tokens[j] == last_tokens[k])):
                    break
                slot = (slot + 1) & last_slot
            slots[kind, k] = slot
            is_shared |= j >= 0
            if j < 0 or totals[k] + fused[k] > totals[j] + fused[j]:
                table[kind, slot] = k
            key = (key ^ np.int64(last_tokens[k])) * np.int64(6364136223846793005)
    for k in range(num_beams if is_shared else 0):
        if slots[0, k] < 0:
            continue
        of_text, of_token = table[0, slots[0, k]], table[1, slots[1, k]]
        if of_text != k:
            blank_scores[of_text] = add_logs(np.float64(blank_scores[of_text]), np.float64(blank_scores[k]))
            blank_scores[k] = NONE
        if of_token != k:
            token_scores[of_token] = add_logs(np.float64(token_scores[of_token]), np.float64(token_scores[k]))
            token_scores[k] = NONE
    has_lost = False
    for k in range(num_beams):
        if slots[0, k] < 0:
            continue
        table[0, slots[0, k]] = table[1, slots[1, k]] = -1
        if is_shared:
            totals[k] = add_logs(np.float64(blank_scores[k]), np.float64(token_scores[k]))
            has_lost |= totals[k] == -np.inf
    return has_lost


@compiled
def join_at_end(texts, last_tokens, fused, blank_scores, token_scores):
    """Leave only the best prefix of each text of rows `[B, K]`, with what all of them have: where their utterances end."""
    batch_size, num_beams = texts.shape
    table = np.full((2, slots_for(num_beams)), -1, dtype=np.int32)
    slots = np.empty((2, num_beams), dtype=np.int32)
    totals = np.empty(num_beams, dtype=np.float64)
    for row in range(batch_size):
        for k in range(num_beams):
            blank_scores[row, k] = add_logs(blank_scores[row, k], token_scores[row, k])
            token_scores[row, k] = NONE
            totals[k] = blank_scores[row, k]
        join_texts(texts[row], last_tokens[row], fused[row], blank_scores[row], token_scores[row], totals, table, slots)
