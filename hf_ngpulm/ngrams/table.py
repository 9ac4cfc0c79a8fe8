"""Define `NGramTable`: the n-grams of a backoff language model, with one set of columns per order.

An n-gram is stored as its last token and the row of its prefix among the (n-1)-grams. Rows are sorted by (prefix, token), so
``prefix * num_ids + token`` is an ascending key. So an n-gram is found by binary search in one int64 tensor, for any order and
vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..engines.native import Function, Struct
from ..errors import NGramFormatError
from .room import IN_MEMORY, Room

NUM_SPECIAL = 3  # <s>, </s> and <unk> have the ids after the vocabulary
MAX_ORDER = 64  # of models read from files, since the time to read them is quadratic in the order


class NgpulmNGramNodes(Struct):
    """`_Nodes` in the form that the core reads (`csrc/table.cpp`)."""


_sort = Function("ngpulm_sort")
_first_children = Function("ngpulm_first_children")
_find_prefixes = Function("ngpulm_find_prefixes")


def sorting(words: Tensor) -> Tensor:
    """Return the permutation, int64 `[N]`, that sorts the packed n-grams `words`, int64 `[W, N]`."""
    by_key = torch.empty_like(words[0])
    _sort(words, *words.shape, by_key)
    return by_key


def first_children(prefixes: Tensor, num_parents: int, room: Room = IN_MEMORY) -> Tensor:
    """Return the row of each n-gram's first extension by one token, int64 `[num_parents + 1]`.

    The last entry is the end of the last n-gram's extensions. `prefixes` has the prefix of each extension, ascending.
    `num_parents` is the number of n-grams.
    """
    first_child = room.zeros(num_parents + 1, torch.int64)
    room.in_blocks(_first_children, room.blocks(num_parents + 1, num_parents + 1), (prefixes, prefixes.numel(), first_child))
    return first_child


@contextmanager
def one_thread() -> Iterator[None]:
    """Make torch run its operators only on the calling thread.

    Building a table takes hundreds of operators of about a millisecond each. If other programs use the cores, waiting for a
    second thread takes ten times as long as doing the second thread's work on this thread.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class NGramOrder:
    """The n-grams of one order.

    Args:
        prefixes: int64 `[N]`, row of each n-gram's prefix among the (n-1)-grams; 0 for unigrams.
        tokens: int32 `[N]`, last token.
        log_probs: float32 `[N]`, natural log of p(last token | prefix).
        backoffs: float32 `[N]`, natural log of the backoff weight; 0 for an n-gram without a backoff.
    """

    prefixes: Tensor
    tokens: Tensor
    log_probs: Tensor
    backoffs: Tensor

    def __len__(self) -> int:
        return self.tokens.numel()


@dataclass(frozen=True)
class NGramTable:
    """All n-grams of a model, by order, unigrams first.

    Token ids are `0 .. vocab_size - 1`; `<s>`, `</s>` and `<unk>` follow. `<unk>` replaces every token id that has no unigram.
    """

    vocab_size: int
    orders: tuple[NGramOrder, ...]

    @property
    def bos(self) -> int:
        return self.vocab_size

    @property
    def eos(self) -> int:
        return self.vocab_size + 1

    @property
    def unk(self) -> int:
        return self.vocab_size + 2

    @property
    def num_ids(self) -> int:
        return self.vocab_size + NUM_SPECIAL

    @property
    def order(self) -> int:
        return len(self.orders)

    @property
    def num_ngrams(self) -> tuple[int, ...]:
        return tuple(len(order) for order in self.orders)

    @classmethod
    @one_thread()
    def from_rows(cls, vocab_size: int, rows: Sequence[tuple[Tensor, Tensor, Tensor]]) -> NGramTable:
        """Build a table from plain rows, which may be in any order.

        Args:
            vocab_size: number of token ids.
            rows: for each order n from 1 on, token ids `[N, n]`, log-probabilities `[N]` and backoffs `[N]` (natural logs). The
                backoffs of the highest order become 0, because no context has that length.

        Raises:
            NGramFormatError: a token id is out of range, an n-gram occurs twice, a log-probability or backoff is invalid, or an
                n-gram's prefix isn't among the (n-1)-grams.
        """
        if not rows or rows[0][0].shape[0] == 0:
            raise NGramFormatError("a language model needs at least one unigram, this one has none")
        num_ids = vocab_size + NUM_SPECIAL
        orders: list[NGramOrder] = []
        nodes = _Nodes(num_ids, sum(len(tokens) for tokens, *_ in rows))
        for n, (tokens, log_probs, backoffs) in enumerate(rows, start=1):
            log_probs, backoffs = log_probs.to(torch.float32), backoffs.to(torch.float32)
            if n == len(rows):
                backoffs = torch.zeros_like(backoffs)
            _check_values(vocab_size, n, tokens, log_probs, backoffs)
            tokens = tokens.to(torch.int32).contiguous()
            prefixes = nodes.prefixes(tokens)
            if n > 1 and bool((prefixes < 0).any()):
                lost = int(torch.nonzero(prefixes < 0)[0, 0])
                raise NGramFormatError(
                    f"the {n}-gram {_name(vocab_size, tokens[lost])} has no prefix: "
                    f"{_name(vocab_size, tokens[lost, :-1])} isn't among the {n - 1}-grams. Write the model with its "
                    "full contexts (KenLM and SRILM do; pruning tools may not)"
                )
            columns = [prefixes, tokens[:, n - 1].contiguous(), log_probs, backoffs]
            keys = prefixes * num_ids + tokens[:, n - 1]
            if not bool((keys[1:] > keys[:-1]).all()):
                by_key = sorting(keys[None])
                keys, columns = keys[by_key], [column[by_key] for column in columns]
                doubles = torch.nonzero(keys[1:] == keys[:-1])
                if doubles.numel():
                    double = tokens[by_key[int(doubles[0, 0])]]
                    raise NGramFormatError(f"the {n}-gram {_name(vocab_size, double)} occurs more than once")
            orders.append(NGramOrder(*columns))
            nodes.append(orders[-1])
        return cls(vocab_size, tuple(orders))

    def keep(self, kept: Sequence[Tensor], room: Room = IN_MEMORY) -> NGramTable:
        """Return a table of the kept n-grams. Highest orders that become empty are removed.

        Args:
            kept: bool `[N]` for each order. The prefix of a kept n-gram must be kept.
            room: where the columns are.
        """
        orders: list[NGramOrder] = []
        rows: Tensor | None = None  # row of each kept n-gram in the new order below; None if all are kept
        for order, mask in zip(self.orders, kept):
            total = sum(int(mask[span].sum()) for span in room.spans(len(order)))
            new_rows = None
            if rows is not None or total < len(order):
                old, size, first = order, len(order), 0
                order = NGramOrder(*(room.zeros(total, column.dtype).to(column.device) for column in vars(old).values()))
                new_rows = room.zeros(size, torch.int64).to(mask.device)
                for span in room.spans(size):
                    here = mask[span]
                    torch.cumsum(here, 0, out=new_rows[span]).add_(first - 1)
                    last = first + int(here.sum())
                    for name, column in vars(old).items():
                        taken = column[span][here]
                        vars(order)[name][first:last] = rows[taken] if name == "prefixes" and rows is not None else taken
                    first = last
                new_rows = None if total == size else new_rows
            orders.append(order)
            rows = new_rows
        while len(orders) > 1 and len(orders[-1]) == 0:
            orders.pop()
        backoffs = orders[-1].backoffs
        orders[-1] = replace(orders[-1], backoffs=room.zeros(len(backoffs), backoffs.dtype).to(backoffs.device))
        return NGramTable(self.vocab_size, tuple(orders))

    def to(self, device: torch.device | str) -> NGramTable:
        """Return the table on another device."""
        orders = (NGramOrder(*(column.to(device) for column in vars(order).values())) for order in self.orders)
        return NGramTable(self.vocab_size, tuple(orders))

    @cached_property
    def offsets(self) -> list[int]:
        """The node of each order's first row, followed by the number of nodes.

        Nodes number the n-grams of all orders consecutively, from 1 on. Node 0 is the empty n-gram.
        """
        offsets = [1]
        for order in self.orders:
            offsets.append(offsets[-1] + len(order))
        return offsets

    def row_of_unigram(self, token_id: int) -> int | None:
        """Return the row of a token's unigram; None if the token has no unigram."""
        tokens = self.orders[0].tokens
        row = int(torch.searchsorted(tokens, token_id))
        return row if row < tokens.numel() and int(tokens[row]) == token_id else None

    def rows(self, n: int) -> Tensor:
        """Return the token ids of all n-grams of order `n`, int64 `[N, n]`."""
        tokens = torch.empty(len(self.orders[n - 1]), n, dtype=torch.int64, device=self.orders[n - 1].tokens.device)
        at = torch.arange(len(tokens), device=tokens.device)
        for position in reversed(range(n)):
            tokens[:, position] = self.orders[position].tokens[at]
            at = self.orders[position].prefixes[at]
        return tokens


class _Nodes:
    """The n-grams of the orders added so far, as numbered nodes in which prefixes are looked up. Node 0 is the empty n-gram."""

    def __init__(self, num_ids: int, num_ngrams: int) -> None:
        self.tokens = torch.zeros(1 + num_ngrams, dtype=torch.int32)
        self.first_child = torch.zeros(2 + num_ngrams, dtype=torch.int64)
        self.unigram_of = torch.zeros(num_ids, dtype=torch.int64)
        self.struct = NgpulmNGramNodes(
            tokens=self.tokens, first_child=self.first_child, unigram_of=self.unigram_of, num_ids=num_ids
        )
        self.parents, self.end = 0, 1  # first node of the newest order, and first node of the next order

    def append(self, order: NGramOrder) -> None:
        """Add an order. Its rows must be sorted."""
        first, end = self.end, self.end + len(order)
        self.tokens[first:end] = order.tokens
        self.first_child[self.parents : first + 1] = first_children(order.prefixes, first - self.parents) + first
        if self.parents == 0:
            self.unigram_of[order.tokens] = torch.arange(first, end)
        self.parents, self.end = first, end

    def prefixes(self, tokens: Tensor) -> Tensor:
        """Return the row of each n-gram's prefix among the (n-1)-grams, int64 `[N]`; -1 if the prefix is missing.

        `tokens` has the n-grams' token ids, int32 `[N, n]`.
        """
        rows = torch.zeros(len(tokens), dtype=torch.int64)
        if tokens.shape[1] > 1:
            _find_prefixes(0, len(tokens), self.struct, tokens, tokens.shape[1], self.parents, rows)
        return rows


def _check_values(vocab_size: int, n: int, tokens: Tensor, log_probs: Tensor, backoffs: Tensor) -> None:
    outside = (tokens < 0) | (tokens >= vocab_size + NUM_SPECIAL)
    if bool(outside.any()):
        value = int(tokens[outside][0])
        raise NGramFormatError(f"token id {value} in a {n}-gram is outside the vocabulary 0..{vocab_size - 1}")
    for what, values, ceiling in (("log-probability", log_probs, 0.0), ("backoff", backoffs, float("inf"))):
        bad = ~torch.isfinite(values) | (values > ceiling)
        if bool(bad.any()):
            row = int(torch.nonzero(bad)[0, 0])
            raise NGramFormatError(
                f"the {n}-gram {_name(vocab_size, tokens[row])} has the {what} {float(values[row]):g}, "
                f"which should be a finite number{' of at most 0' if ceiling == 0 else ''}"
            )


def _name(vocab_size: int, token_ids: Tensor) -> str:
    """Return an n-gram as text for messages, for example `(5 <s> 17)`."""
    special = {vocab_size: "<s>", vocab_size + 1: "</s>", vocab_size + 2: "<unk>"}
    return "(" + " ".join(special.get(int(i), str(int(i))) for i in token_ids) + ")"
