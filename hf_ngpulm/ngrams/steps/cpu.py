"""The steps of estimation, by the native core (`csrc/counting.cpp`, `csrc/kneser_ney.cpp`), as `reference` defines them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from ...engines.native import Function, Struct
from ...engines.threads import block_bounds, in_blocks
from ..table import first_children, sorting
from . import Packing, Run, TrieOrder
from .reference import left_extensions

__all__ = ["count", "discount", "left_extensions", "merge", "pack", "suffix_rows", "trie"]

# Fewer elements than this aren't worth a second thread.
ELEMENTS_PER_THREAD = 1 << 18


class NgpulmPacking(Struct):
    """`Packing` as the core reads it: digits of each word, and what is a digit."""

    name = "NgpulmPacking"
    members = """
        const int64_t* lengths;
        int64_t num_words;
        int64_t base;
        int64_t end;
    """

    @classmethod
    def of(cls, packing: Packing) -> NgpulmPacking:
        lengths = np.array(packing.digits, dtype=np.int64)
        return cls(lengths=lengths, num_words=len(lengths), base=packing.base, end=packing.end)


_pack = Function(
    "int64_t ngpulm_pack(const int32_t* digits, int64_t num_digits, int64_t num_starts, const NgpulmPacking* packing,"
    " int64_t* words)",
    NgpulmPacking,
)
_count_distinct = Function("int64_t ngpulm_count_distinct(const int64_t* words, int64_t num_words, int64_t size)")
_count_equal = Function(
    "int64_t ngpulm_count_equal(const int64_t* words, int64_t num_words, int64_t size, int64_t distinct, int64_t* out,"
    " int64_t* counts)"
)
_merged_size = Function(
    "int64_t ngpulm_merged_size(const int64_t* first, int64_t first_size, const int64_t* second, int64_t second_size,"
    " int64_t num_words)"
)
_merge = Function(
    "int64_t ngpulm_merge(const int64_t* first, const int64_t* first_counts, int64_t first_size, const int64_t* second,"
    " const int64_t* second_counts, int64_t second_size, int64_t num_words, int64_t size, int64_t* words, int64_t* counts)"
)
_trie_sizes = Function(
    "int64_t ngpulm_trie_sizes(int64_t first, int64_t last, int64_t* sizes, const int64_t* words, int64_t size,"
    " const NgpulmPacking* packing)",
    NgpulmPacking,
)
_trie = Function(
    "int64_t ngpulm_trie(int64_t first, int64_t last, const int64_t* starts, const int64_t* words, const int64_t* run_counts,"
    " int64_t size, const NgpulmPacking* packing, const int64_t* offsets, int64_t* prefixes, int32_t* out_tokens,"
    " int64_t* counts)",
    NgpulmPacking,
)
_suffix_rows = Function(
    "int64_t ngpulm_suffix_rows(int64_t first, int64_t last, const int64_t* prefixes, const int32_t* tokens,"
    " const int32_t* tokens_below, const int32_t* suffixes_below, const int64_t* first_child, int32_t* out)"
)
_discount = Function(
    "int64_t ngpulm_discount(int64_t first, int64_t last, int64_t size, const int64_t* prefixes, const int64_t* counts,"
    " const uint8_t* dropped, const double* discounts, const float* lower, const int32_t* suffixes, float* probabilities,"
    " float* weights)"
)


def pack(digits: Tensor, num_starts: int, packing: Packing) -> Tensor:
    words = torch.empty(len(packing.digits), num_starts, dtype=torch.int64)
    _pack(digits, digits.numel(), num_starts, NgpulmPacking.of(packing), words)
    return words


def count(words: Tensor) -> Run:
    if len(words) == 1:
        words = torch.from_numpy(np.sort(words.numpy(), axis=1))
    else:
        words = words[:, sorting(words)]
    distinct = _count_distinct(words, *words.shape)
    out, counts = words.new_empty(len(words), distinct), words.new_empty(distinct)
    _count_equal(words, *words.shape, distinct, out, counts)
    return Run(out, counts)


def merge(first: Run, second: Run) -> Run:
    num_words = len(first.words)
    size = _merged_size(first.words, len(first), second.words, len(second), num_words)
    words, counts = first.words.new_empty(num_words, size), first.words.new_empty(size)
    _merge(*first, len(first), *second, len(second), num_words, size, words, counts)
    return Run(words, counts)


def trie(run: Run, packing: Packing) -> list[TrieOrder]:
    given, order = NgpulmPacking.of(packing), packing.order
    bounds = block_bounds(len(run), ELEMENTS_PER_THREAD)
    # Blocks begin where the first token changes: no n-gram is in two of them.
    first_words, (_, factor) = run.words[0].numpy(), packing.place(0)
    bounds[1:-1] = np.searchsorted(first_words, first_words[bounds[1:-1]] // factor * factor)
    sizes = np.zeros((len(bounds) - 1, order), dtype=np.int64)  # of each block
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
