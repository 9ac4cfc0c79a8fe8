"""Run the steps of estimation in the native core (`csrc/counting.cpp`, `csrc/kneser_ney.cpp`), as `reference` defines them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from ...engines.native import Function, Struct
from ...engines.threads import block_bounds, in_blocks
from ..table import first_children, sorting
from . import Packing, SortedRun, TrieOrder
from .reference import left_extensions

__all__ = ["count", "discount", "left_extensions", "merge", "pack", "suffix_rows", "trie"]

# For fewer elements than this, a second thread costs more than it saves.
ELEMENTS_PER_THREAD = 1 << 18


class NgpulmPacking(Struct):
    """A `Packing` in the form that the core reads."""

    @classmethod
    def of(cls, packing: Packing) -> NgpulmPacking:
        lengths = np.array(packing.digits, dtype=np.int64)
        return cls(lengths=lengths, num_words=len(lengths), base=packing.base, end=packing.end)


_pack = Function("ngpulm_pack")
_count_distinct = Function("ngpulm_count_distinct")
_count_equal = Function("ngpulm_count_equal")
_merged_size = Function("ngpulm_merged_size")
_merge = Function("ngpulm_merge")
_trie_sizes = Function("ngpulm_trie_sizes")
_trie = Function("ngpulm_trie")
_suffix_rows = Function("ngpulm_suffix_rows")
_discount = Function("ngpulm_discount")


def pack(digits: Tensor, num_starts: int, packing: Packing) -> Tensor:
    words = torch.empty(len(packing.digits), num_starts, dtype=torch.int64)
    _pack(digits, digits.numel(), num_starts, NgpulmPacking.of(packing), words)
    return words


def count(words: Tensor) -> SortedRun:
    if len(words) == 1:
        words = torch.from_numpy(np.sort(words.numpy(), axis=1))
    else:
        words = words[:, sorting(words)]
    distinct = _count_distinct(words, *words.shape)
    out, counts = words.new_empty(len(words), distinct), words.new_empty(distinct)
    _count_equal(words, *words.shape, distinct, out, counts)
    return SortedRun(out, counts)


def merge(first: SortedRun, second: SortedRun) -> SortedRun:
    num_words = len(first.words)
    size = _merged_size(first.words, len(first), second.words, len(second), num_words)
    words, counts = first.words.new_empty(num_words, size), first.words.new_empty(size)
    _merge(*first, len(first), *second, len(second), num_words, size, words, counts)
    return SortedRun(words, counts)


def trie(run: SortedRun, packing: Packing) -> list[TrieOrder]:
    given, order = NgpulmPacking.of(packing), packing.order
    bounds = block_bounds(len(run), ELEMENTS_PER_THREAD)
    # Blocks begin where the first token changes, so that no n-gram is in two blocks.
    first_words, (_, factor) = run.words[0].numpy(), packing.place(0)
    bounds[1:-1] = np.searchsorted(first_words, first_words[bounds[1:-1]] // factor * factor)
    sizes = np.zeros((len(bounds) - 1, order), dtype=np.int64)  # n-grams of each block and order
    in_blocks(_trie_sizes, bounds, (run.words, len(run), given), sizes)
    offsets = [0, *accumulate(sizes.sum(axis=0).tolist())]
    columns = TrieOrder(*(torch.empty(offsets[-1], dtype=dtype) for dtype in (torch.int64, torch.int32, torch.int64)))
    in_blocks(_trie, bounds, (*run, len(run), given, np.array(offsets), *columns), np.cumsum(sizes, axis=0) - sizes)
    return [TrieOrder(*(column[first:last] for column in columns)) for first, last in pairwise(offsets)]


def suffix_rows(below: TrieOrder, order: TrieOrder, suffixes_below: Tensor | None, num_ids: int) -> Tensor:
    if suffixes_below is None:
        row_of = torch.zeros(num_ids, dtype=torch.int32)
        row_of[below.tokens] = torch.arange(below.tokens.numel(), dtype=torch.int32)
        return row_of[order.tokens]
    num_parents = int(suffixes_below.max()) + 1 if suffixes_below.numel() else 0
    first_child = first_children(below.prefixes, num_parents)
    out = torch.empty_like(order.tokens)
    arguments = (order.prefixes, order.tokens, below.tokens, suffixes_below, first_child, out)
    in_blocks(_suffix_rows, block_bounds(out.numel(), ELEMENTS_PER_THREAD), arguments)
    return out


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
    probabilities, weights = torch.empty(size), torch.ones(num_contexts)
    by_count = torch.tensor([0.0, *discounts], dtype=torch.float64)
    arguments = (size, prefixes, counts, dropped, by_count, lower, suffixes, probabilities, weights)
    in_blocks(_discount, block_bounds(size, ELEMENTS_PER_THREAD), arguments)
    return probabilities, weights
