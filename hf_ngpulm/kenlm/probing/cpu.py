"""Word queries as compiled loops for the CPU. What they do is said in `reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import compiled
from ...automaton.threads import in_threads
from .reference import LN10
from .tables import KEY_FACTOR, LONGEST_WORDS, MIDDLE_WORDS, WORD_FACTOR, ProbingStates, ProbingTables

_KEY_FACTOR, _WORD_FACTOR = np.uint64(KEY_FACTOR), np.uint64(WORD_FACTOR + 2**64)
_LN10 = np.float32(LN10)
_ELEMENTS_PER_ROW = 64  # as much work as a query of the automaton


def score(tables: ProbingTables, states: ProbingStates, words: Tensor, num_words: int) -> tuple[Tensor, ProbingStates]:
    scores = torch.empty(words.shape, dtype=torch.float32)
    following = ProbingStates(*(torch.empty_like(tensor) for tensor in states))
    entries = tables.entries.numpy()
    arrays = [tensor.contiguous().numpy() for tensor in (*tables[1:], *states, words)]
    out = [tensor.numpy() for tensor in (scores, *following)]

    score_rows: Any = _score_rows

    def run(first: int, last: int) -> None:
        score_rows(first, last, entries, entries.view(np.float32), *arrays, num_words, *out)

    in_threads(run, words.shape[0], _ELEMENTS_PER_ROW)
    return scores, following


@compiled
def _score_rows(
    first, last, entries, weights, begins, buckets, probes, words, backoffs, lengths, new, num_words,
    scores, new_words, new_backoffs, new_lengths,
):  # fmt: skip
    width = words.shape[1]
    for row in range(first, last):
        word = new[row]
        if word < 0 or word >= num_words:
            scores[row] = 0
            new_lengths[row] = lengths[row]
            for i in range(width):
                new_words[row, i] = words[row, i]
                new_backoffs[row, i] = backoffs[row, i]
            continue
        length = min(lengths[row], width)
        log_prob = -abs(weights[2 * word])
        ends = entries[2 * word] < 0
        new_backoffs[row, 0] = weights[2 * word + 1]
        new_length = 1 if entries[2 * word + 1] != -(2**31) else 0
        matched = 1
        key = np.uint64(word)
        for i in range(length):
            if ends:
                break
            key = (key * _KEY_FACTOR) ^ (np.uint64(1 + words[row, i]) * _WORD_FACTOR)
            size = MIDDLE_WORDS if i + 1 < width else LONGEST_WORDS
            at = _find(entries, begins[i], buckets[i], probes[i], size, key)
            if at < 0:
                break
            log_prob = -abs(weights[at + 2])
            ends = entries[at + 2] < 0
            matched = i + 2
            if i + 1 < width:
                new_backoffs[row, i + 1] = weights[at + 3]
                if entries[at + 3] != -(2**31):
                    new_length = i + 2
        for i in range(matched - 1, length):
            log_prob += backoffs[row, i]
        scores[row] = log_prob * _LN10
        new_lengths[row] = new_length
        for i in range(width):
            if i >= new_length:
                new_words[row, i] = 0
                new_backoffs[row, i] = 0
            else:
                new_words[row, i] = words[row, i - 1] if i else word


@compiled
def _find(entries, begin, buckets, probes, size, key):
    """Where the bucket of a key begins in the entries, -1 if there is none."""
    low, high = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    if low == 0 and high == 0:
        return -1
    bucket = np.int64(key % np.uint64(buckets))
    for _ in range(probes):
        at = begin + bucket * size
        found_low, found_high = np.uint32(entries[at]), np.uint32(entries[at + 1])
        if found_low == low and found_high == high:
            return at
        if found_low == 0 and found_high == 0:
            return -1
        bucket += 1
        if bucket == buckets:
            bucket = 0
    return -1
