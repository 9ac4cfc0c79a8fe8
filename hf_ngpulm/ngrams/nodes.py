"""N-grams of all orders as the nodes of a trie, in which longer n-grams find their prefixes (`csrc/table.cpp`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..engines.native import Function, Struct

if TYPE_CHECKING:
    from .table import NGramOrder


class NgpulmNGramNodes(Struct):
    """`Nodes` as the core reads them."""


_sort = Function("ngpulm_sort")
_first_children = Function("ngpulm_first_children")
_find_prefixes = Function("ngpulm_find_prefixes")


def sorting(words: Tensor) -> Tensor:
    """Return the permutation int64 `[N]` that sorts n-grams `words` int64 `[W, N]`."""
    by_key = torch.empty_like(words[0])
    _sort(words, *words.shape, by_key)
    return by_key


def first_children(prefixes: Tensor, num_parents: int) -> Tensor:
    """Return where the n-grams that follow each n-gram of the order below begin: int64 `[num_parents + 1]`."""
    first_child = torch.empty(num_parents + 1, dtype=torch.int64)
    _first_children(prefixes, prefixes.numel(), num_parents, first_child)
    return first_child


class Nodes:
    """The n-grams of the orders so far, numbered through after the empty one, so that longer ones find their prefixes."""

    def __init__(self, num_ids: int, num_ngrams: int) -> None:
        self.tokens = torch.zeros(1 + num_ngrams, dtype=torch.int32)
        self.first_child = torch.zeros(2 + num_ngrams, dtype=torch.int64)
        self.unigram_of = torch.zeros(num_ids, dtype=torch.int64)
        self.struct = NgpulmNGramNodes(
            tokens=self.tokens, first_child=self.first_child, unigram_of=self.unigram_of, num_ids=num_ids
        )
        self.parents, self.end = 0, 1  # the first node of the order that was added last, and of the next

    def append(self, order: NGramOrder) -> None:
        """Add an order, whose rows are sorted."""
        first, end = self.end, self.end + len(order)
        self.tokens[first:end] = order.tokens
        self.first_child[self.parents : first + 1] = first_children(order.prefixes, first - self.parents) + first
        if self.parents == 0:
            self.unigram_of[order.tokens] = torch.arange(first, end)
        self.parents, self.end = first, end

    def prefixes(self, tokens: Tensor) -> Tensor:
        """Return rows int64 `[N]` of n-grams `tokens` int32 `[N, n]` but for the last token, in the order before; -1 for
        none."""
        rows = torch.zeros(len(tokens), dtype=torch.int64)
        if tokens.shape[1] > 1:
            _find_prefixes(0, len(tokens), self.struct, tokens, tokens.shape[1], self.parents, rows)
        return rows
