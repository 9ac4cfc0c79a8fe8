"""Run the steps of estimation in the native core (`csrc/counting.cpp`, `csrc/kneser_ney.cpp`), as `reference` defines them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...engines.native import Function, Struct
from ..room import IN_MEMORY, Room
from ..table import first_children, sorting
from . import Packing, SortedRun, TrieOrder

__all__ = ["count", "discount", "left_extensions", "merge", "pack", "suffix_rows", "trie"]

# For fewer elements than this, a second thread costs more than it saves.
ELEMENTS_PER_THREAD = 1 << 18


class NgpulmPacking(Struct):
    """A `Packing` in the form that the core reads."""

    @classmethod
    def of(cls, packing: Packing) -> NgpulmPacking:
        lengths = np.array(packing.digits, dtype=np.int64)
        return cls(lengths=lengths, num_words=len(lengths), base=packing.base, end=packing.cut)


_pack = Function("ngpulm_pack")
_count_distinct = Function("ngpulm_count_distinct")
_count_equal = Function("ngpulm_count_equal")
_merged_size = Function("ngpulm_merged_size")
_merge = Function("ngpulm_merge")
_trie_sizes = Function("ngpulm_trie_sizes")
_trie = Function("ngpulm_trie")
_left_extensions = Function("ngpulm_left_extensions")
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


def trie(run: SortedRun, packing: Packing, room: Room = IN_MEMORY) -> list[TrieOrder]:
    packed, order, stride = NgpulmPacking.of(packing), packing.order, run.words.shape[1]
    bounds = room.blocks(len(run), ELEMENTS_PER_THREAD)
    sizes = np.zeros((len(bounds) - 1, order), dtype=np.int64)  # n-grams that are new in each block, by order
    room.in_blocks(_trie_sizes, bounds, (run.words, stride, packed), sizes)
    total = sizes.sum(axis=0).tolist()
    room.plan(sum(total))
    if room.is_on_disk:
        bounds = room.blocks(len(run), ELEMENTS_PER_THREAD)
        sizes = np.zeros((len(bounds) - 1, order), dtype=np.int64)
        room.in_blocks(_trie_sizes, bounds, (run.words, stride, packed), sizes)
    dtypes = (torch.int64, torch.int32, torch.int64)
    orders = [TrieOrder(*(room.zeros(size, dtype) for dtype in dtypes)) for size in total]
    arrays = np.array([column.data_ptr() for columns in orders for column in columns])
    starts, carried = np.cumsum(sizes, axis=0) - sizes, np.zeros_like(sizes)
    room.in_blocks(_trie, bounds, (run.words, run.counts, stride, packed, arrays), starts, carried)
    for n, columns in enumerate(orders):  # occurrences of n-grams that began in an earlier block
        began = np.flatnonzero(carried[:, n])
        np.add.at(columns.counts.numpy(), starts[began, n] - 1, carried[began, n])
    return orders


def suffix_rows(
    below: TrieOrder,
    order: TrieOrder,
    suffixes_below: Tensor | None,
    num_ids: int,
    room: Room = IN_MEMORY,
    blocks: np.ndarray | None = None,
) -> Tensor:
    size = order.tokens.numel()
    out = room.zeros(size, torch.int32)
    blocks = room.blocks(size, ELEMENTS_PER_THREAD) if blocks is None else blocks
    if suffixes_below is None:
        row_of = torch.zeros(num_ids, dtype=torch.int32)
        row_of[below.tokens] = torch.arange(below.tokens.numel(), dtype=torch.int32)
        for rows in room.spans(size):
            out[rows] = row_of[order.tokens[rows]]
        return out
    num_parents = 1 + max((int(suffixes_below[rows].max()) for rows in room.spans(suffixes_below.numel())), default=-1)
    first_child = first_children(below.prefixes, num_parents, room)
    arguments = (order.prefixes, order.tokens, below.tokens, suffixes_below, first_child, out)
    room.in_blocks(_suffix_rows, blocks, arguments)
    return out


def left_extensions(suffixes: Tensor, num_rows: int, room: Room = IN_MEMORY, blocks: np.ndarray | None = None) -> Tensor:
    counts = room.zeros(num_rows, torch.int64)
    blocks = room.blocks(suffixes.numel(), ELEMENTS_PER_THREAD) if blocks is None else blocks
    room.in_blocks(_left_extensions, blocks, (suffixes, counts))
    return counts


def discount(
    prefixes: Tensor,
    num_contexts: int,
    counts: Tensor,
    dropped: Tensor | None,
    discounts: tuple[float, float, float],
    lower: Tensor,
    suffixes: Tensor | None,
    room: Room = IN_MEMORY,
    blocks: np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    size = counts.numel()
    probabilities, weights = room.zeros(size, torch.float32), room.zeros(num_contexts, torch.float32)
    for rows in room.spans(num_contexts):
        weights[rows] = 1.0
    by_count = torch.tensor([0.0, *discounts], dtype=torch.float64)
    arguments = (size, prefixes, counts, dropped, by_count, lower, suffixes, probabilities, weights)
    room.in_blocks(_discount, room.blocks(size, ELEMENTS_PER_THREAD) if blocks is None else blocks, arguments)
    return probabilities, weights
