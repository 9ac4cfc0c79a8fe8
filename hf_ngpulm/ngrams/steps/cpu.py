"""The steps of estimation as compiled loops. What each does is said in `reference`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ..packing import Packing, Run, TrieOrder
from .reference import ascending

compiled: Any = njit(nogil=True, cache=True, error_model="numpy")
# Fewer elements than this aren't worth a second thread.
ELEMENTS_PER_THREAD = 1 << 18


def pack(digits: Tensor, num_starts: int, packing: Packing) -> Tensor:
    words = np.empty((len(packing.digits), num_starts), dtype=np.int64)
    _pack(digits.numpy(), packing.base, packing.end, np.array(packing.digits), words)
    return torch.from_numpy(words)


def count(words: Tensor) -> Run:
    array = words.numpy()
    if len(array) == 1:
        array = np.sort(array, axis=1)
    else:
        array = words[:, ascending(words)].numpy()
    distinct = _count_distinct(array)
    out, counts = np.empty((len(array), distinct), dtype=np.int64), np.empty(distinct, dtype=np.int64)
    _count_equal(array, out, counts)
    return Run(torch.from_numpy(out), torch.from_numpy(counts))


def merge(first: Run, second: Run) -> Run:
    arrays = tuple(tensor.numpy() for run in (first, second) for tensor in run)
    size = _merged_size(*arrays)
    words, counts = np.empty((len(arrays[0]), size), dtype=np.int64), np.empty(size, dtype=np.int64)
    _merge(*arrays, words, counts)
    return Run(torch.from_numpy(words), torch.from_numpy(counts))


def trie(run: Run, packing: Packing) -> list[TrieOrder]:
    words, counts = (tensor.numpy() for tensor in run)
    places = [packing.place(position) for position in range(packing.order)]
    word_of = np.array([word for word, _ in places])
    factors = np.array([factor for _, factor in places], dtype=np.int64)
    same, length = np.empty(len(run), dtype=np.uint8), np.empty(len(run), dtype=np.uint8)
    _in_blocks(_compare_neighbours, len(run), words, packing.base, word_of, factors, same, length)

    def make(n: int) -> TrieOrder:
        size = _trie_size(same, length, n)
        order = (np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int32), np.zeros(size, dtype=np.int64))
        _trie_order(words[word_of[n - 1]], factors[n - 1], packing.base, counts, same, length, n, *order)
        return TrieOrder(*map(torch.from_numpy, order))

    with ThreadPoolExecutor(_threads(len(run))) as pool:
        return list(pool.map(make, range(1, packing.order + 1)))


def suffix_rows(below: TrieOrder, order: TrieOrder, suffixes_below: Tensor | None, num_ids: int) -> Tensor:
    out = np.empty(order.tokens.numel(), dtype=np.int32)
    if suffixes_below is None:
        row_of = np.zeros(num_ids, dtype=np.int32)
        row_of[below.tokens.numpy()] = np.arange(below.tokens.numel())
        return torch.from_numpy(row_of[order.tokens.numpy()])
    first_child = _first_children(below.prefixes.numpy(), int(suffixes_below.max()) + 1 if suffixes_below.numel() else 0)
    arrays = (order.prefixes, order.tokens, below.tokens, suffixes_below)
    _in_blocks(_suffix_rows, out.size, *(tensor.numpy() for tensor in arrays), first_child, out)
    return torch.from_numpy(out)


def left_extensions(suffixes: Tensor, num_rows: int) -> Tensor:
    out = np.zeros(num_rows, dtype=np.int64)
    _left_extensions(suffixes.numpy(), out)
    return torch.from_numpy(out)


def discount(
    prefixes: Tensor,
    num_contexts: int,
    counts: Tensor,
    dropped: Tensor | None,
    discounts: tuple[float, float, float],
    lower: Tensor,
    suffixes: Tensor | None,
) -> tuple[Tensor, Tensor]:
    size = counts.numel()
    probabilities = np.empty(size, dtype=np.float32)
    weights = np.ones(num_contexts, dtype=np.float32)
    _in_blocks(
        _discount,
        size,
        prefixes.numpy(),
        counts.numpy(),
        np.zeros(0, dtype=np.bool_) if dropped is None else dropped.numpy(),
        np.array([0.0, *discounts]),
        lower.numpy(),
        np.zeros(0, dtype=np.int32) if suffixes is None else suffixes.numpy(),
        probabilities,
        weights,
    )
    return torch.from_numpy(probabilities), torch.from_numpy(weights)


def _threads(size: int) -> int:
    return max(1, min(os.cpu_count() or 1, size // ELEMENTS_PER_THREAD))


def _in_blocks(kernel: Callable[..., None], size: int, *arguments: object) -> None:
    """Call `kernel(first, last, ...)` for blocks of rows, on several threads."""
    threads = _threads(size)
    if threads == 1:
        kernel(0, size, *arguments)
        return
    bounds = [size * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(kernel, *block, *arguments) for block in pairwise(bounds)]:
            done.result()


@compiled
def _pack(digits, base, end, lengths, words):
    # From right to left: an n-gram is its first token before the one that starts a position later, less its last token.
    window = lengths[0]
    top = np.int64(1)
    for _ in range(window - 1):
        top *= base
    cut = np.int64(1)  # the last word may hold fewer tokens than the window
    for _ in range(window - lengths[-1]):
        cut *= base
    num_words, num_starts = words.shape
    ahead = np.zeros((num_words - 1) * window + 1, dtype=np.int64)  # windows of the positions that follow, in a ring
    ring = len(ahead)
    next_end = len(digits) + ring
    packed = np.int64(0)
    for i in range(len(digits) - 1, -1, -1):
        digit = np.int64(digits[i])
        if digit == end:
            packed = np.int64(0)
            next_end = i
        packed = digit * top + packed // base
        ahead[i % ring] = packed
        if i < num_starts:
            for k in range(num_words):
                at = i + k * window
                # A position behind the digits that there are counts as one behind the sentence's end.
                value = ahead[at % ring] if at <= next_end and at < len(digits) else np.int64(0)
                words[k, i] = value // cut if k == num_words - 1 else value


@compiled
def _differ(words, i, j):
    k = 0
    while k < words.shape[0] and words[k, i] == words[k, j]:
        k += 1
    return k < words.shape[0]


@compiled
def _count_distinct(words):
    total = 0
    for i in range(words.shape[1]):
        if i == 0 or _differ(words, i, i - 1):
            total += 1
    return total


@compiled
def _count_equal(words, out, counts):
    row = -1
    for i in range(words.shape[1]):
        if i == 0 or _differ(words, i, i - 1):
            row += 1
            for k in range(words.shape[0]):
                out[k, row] = words[k, i]
            counts[row] = 0
        counts[row] += 1


@compiled
def _order_of(first, i, second, j):
    """-1, 0 or 1: how row i of the one compares with row j of the other."""
    for k in range(first.shape[0]):
        if first[k, i] < second[k, j]:
            return -1
        if first[k, i] > second[k, j]:
            return 1
    return 0


@compiled
def _merged_size(first, first_counts, second, second_counts):
    i, j, total = 0, 0, 0
    while i < len(first_counts) and j < len(second_counts):
        order = _order_of(first, i, second, j)
        i += order <= 0
        j += order >= 0
        total += 1
    return total + len(first_counts) - i + len(second_counts) - j


@compiled
def _merge(first, first_counts, second, second_counts, words, counts):
    i, j = 0, 0
    for row in range(len(counts)):
        if i == len(first_counts):
            order = 1
        elif j == len(second_counts):
            order = -1
        else:
            order = _order_of(first, i, second, j)
        total = np.int64(0)
        if order <= 0:
            for k in range(words.shape[0]):
                words[k, row] = first[k, i]
            total += first_counts[i]
            i += 1
        if order >= 0:
            for k in range(words.shape[0]):
                words[k, row] = second[k, j]
            total += second_counts[j]
            j += 1
        counts[row] = total


@compiled
def _compare_neighbours(begin, last, words, base, word_of, factors, same, length):
    """Tokens that each row shares with the row before it, and its own number of tokens."""
    order = len(factors)
    before, here = np.full(order, -1, dtype=np.int64), np.empty(order, dtype=np.int64)
    for i in range(begin - 1 if begin else 0, last):
        size = 0
        for position in range(order):
            here[position] = words[word_of[position], i] // factors[position] % base
            if here[position] == 0:
                break
            size += 1
        shared = 0
        while shared < size and here[shared] == before[shared]:
            shared += 1
        for position in range(size):
            before[position] = here[position]
        if size < order:
            before[size] = -1
        if i >= begin:
            same[i], length[i] = shared, size


@compiled
def _trie_size(same, length, n):
    total = 0
    for i in range(len(same)):
        total += same[i] < n <= length[i]
    return total


@compiled
def _trie_order(word, factor, base, run_counts, same, length, n, prefixes, tokens, counts):
    row, parent = -1, -1 if n > 1 else 0
    for i in range(len(same)):
        if n > 1:
            parent += same[i] < n - 1 <= length[i]
        if length[i] < n:
            continue
        if same[i] < n:
            row += 1
            prefixes[row] = parent
            tokens[row] = word[i] // factor % base - 1
        counts[row] += run_counts[i]


@compiled
def _first_children(prefixes, num_parents):
    out = np.zeros(num_parents + 1, dtype=np.int64)
    row = 0
    for parent in range(num_parents):
        while row < len(prefixes) and prefixes[row] < parent:
            row += 1
        out[parent] = row
    while row < len(prefixes) and prefixes[row] < num_parents:
        row += 1
    out[num_parents] = row
    return out


@compiled
def _suffix_rows(begin, last, prefixes, tokens, tokens_below, suffixes_below, first_child, out):
    # What follows a context follows its suffix too, and both lists ascend: walk them side by side.
    context, at, behind = np.int64(-1), np.int64(0), np.int64(0)
    for row in range(begin, last):
        if prefixes[row] != context:
            context = prefixes[row]
            at = first_child[suffixes_below[context]]
            behind = first_child[suffixes_below[context] + 1]
        token = tokens[row]
        step = np.int64(1)
        while at + step < behind and tokens_below[at + step] <= token:  # gallop
            at += step
            step *= 2
        step //= 2
        while step > 0:
            if at + step < behind and tokens_below[at + step] <= token:
                at += step
            step //= 2
        out[row] = at


@compiled
def _left_extensions(suffixes, out):
    for i in range(len(suffixes)):
        out[suffixes[i]] += 1


@compiled
def _discount(begin, last, prefixes, counts, dropped, discounts, lower, suffixes, probabilities, weights):
    # A context belongs to the block in which its first row lies.
    row = begin
    while 0 < row < last and prefixes[row] == prefixes[row - 1]:
        row += 1
    while row < last:
        context = prefixes[row]
        total, spared = np.int64(0), 0.0
        end = row
        while end < len(prefixes) and prefixes[end] == context:
            total += counts[end]
            if len(dropped) and dropped[end]:
                spared += counts[end]
            else:
                spared += discounts[min(counts[end], 3)]
            end += 1
        weight = spared / total if total > 0 else 1.0
        weights[context] = weight
        for i in range(row, end):
            below = lower[suffixes[i]] if len(suffixes) else lower[0]
            probabilities[i] = (counts[i] - discounts[min(counts[i], 3)]) / total + weight * below
        row = end
