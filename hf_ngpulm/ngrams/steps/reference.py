"""Define the steps of estimation in plain torch, which also runs on a GPU. The steps work in memory with any `room`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..room import IN_MEMORY, Room
from . import Packing, SortedRun, TrieOrder


def pack(digits: Tensor, num_starts: int, packing: Packing) -> Tensor:
    """Return the n-grams that start at the first `num_starts` positions. The digit `packing.cut` ends an n-gram.

    Args:
        digits: int32 `[num_starts + order - 1]`, all sentences concatenated, including `<s>` and `</s>`.

    Returns:
        The packed n-grams, int64 `[W, num_starts]`, where W is the number of 63-bit words of an n-gram.
    """
    going_on = torch.ones(num_starts, dtype=torch.bool, device=digits.device)
    words = torch.zeros(len(packing.digits), num_starts, dtype=torch.int64, device=digits.device)
    for position in range(packing.order):
        digit = digits[position : position + num_starts]
        word, factor = packing.place(position)
        words[word] += torch.where(going_on, digit, 0).to(torch.int64) * factor
        going_on &= digit != packing.cut
    return words


def count(words: Tensor) -> SortedRun:
    """Return the distinct n-grams in ascending order with their counts."""
    return _sum_equal(words, torch.ones_like(words[0]))


def merge(first: SortedRun, second: SortedRun) -> SortedRun:
    """Return the n-grams of two runs. If an n-gram is in both runs, its counts are added."""
    return _sum_equal(torch.cat([first.words, second.words], 1), torch.cat([first.counts, second.counts]))


def _sum_equal(words: Tensor, counts: Tensor) -> SortedRun:
    by_key = ascending(words)
    words = words[:, by_key]
    new = torch.ones(counts.numel(), dtype=torch.bool, device=counts.device)
    if counts.numel():
        new[1:] = (words[:, 1:] != words[:, :-1]).any(0)
    row = torch.cumsum(new, 0) - 1
    total = torch.zeros(int(new.sum()), dtype=torch.int64, device=counts.device).index_add_(0, row, counts[by_key])
    return SortedRun(words[:, new], total)


def ascending(words: Tensor) -> Tensor:
    """Return the permutation `[R]` that sorts n-grams, by stable sorts from the last word to the first."""
    by_key = torch.sort(words[-1])[1]
    for word in reversed(words[:-1]):
        by_key = by_key[torch.sort(word[by_key], stable=True)[1]]
    return by_key


def trie(run: SortedRun, packing: Packing, room: Room = IN_MEMORY) -> list[TrieOrder]:
    """Return the n-grams of all orders, which are the prefixes of the n-grams in the run.

    Args:
        run: the n-grams. `run.words` may have more columns than there are n-grams.
        room: where the columns are; `room.plan` is called first.
    """
    orders: list[TrieOrder] = []
    new = torch.zeros(len(run), dtype=torch.bool, device=run.counts.device)
    new[:1] = True
    parents = torch.zeros(len(run), dtype=torch.int64, device=run.counts.device)
    for position in range(packing.order):
        word, factor = packing.place(position)
        digit = run.words[word, : len(run)] // factor % packing.base
        new[1:] |= digit[1:] != digit[:-1]
        there = digit > 0
        first = new & there
        rows = torch.cumsum(first, 0) - 1
        counts = torch.zeros(int(first.sum()), dtype=torch.int64, device=rows.device)
        counts.index_add_(0, rows[there], run.counts[there])
        orders.append(TrieOrder(parents[first], (digit[first] - 1).to(torch.int32), counts))
        parents = rows
    return orders


def suffix_rows(
    below: TrieOrder,
    order: TrieOrder,
    suffixes_below: Tensor | None,
    num_ids: int,
    room: Room = IN_MEMORY,
    blocks: np.ndarray | None = None,
) -> Tensor:
    """Return the suffix of each n-gram of order n, as a row of the (n-1)-grams. The suffix lacks the first token.

    Args:
        below, order: the n-grams of orders n - 1 and n.
        suffixes_below: this function's result for order n - 1; None for n = 2.
        num_ids: number of token ids, including the special tokens.
        room: where the result is.
        blocks: blocks of the n-grams, for `Room.in_blocks`.

    Returns:
        int32 `[N]`.
    """
    if suffixes_below is None:
        return torch.searchsorted(below.tokens, order.tokens, out_int32=True)
    wanted = suffixes_below[order.prefixes].to(torch.int64) * num_ids + order.tokens
    return torch.searchsorted(below.prefixes * num_ids + below.tokens, wanted, out_int32=True)


def left_extensions(suffixes: Tensor, num_rows: int, room: Room = IN_MEMORY, blocks: np.ndarray | None = None) -> Tensor:
    """Return the number of distinct tokens before each n-gram, int64 `[num_rows]`. `num_rows`: the number of n-grams.

    This is the number of n-grams that are one token longer and have the n-gram as their suffix.
    """
    return torch.bincount(suffixes, minlength=num_rows)


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
    """Return the interpolated probabilities of one order (Chen and Goodman 1998, section 4.1). Pruning works as in KenLM's
    lmplz.

    Args:
        prefixes: int64 `[N]`, ascending: the row of each n-gram's context.
        num_contexts: C, the number of n-grams that are one token shorter.
        counts: int64 `[N]`, adjusted counts.
        dropped: bool `[N]`, n-grams that pruning drops. The lower order gets the whole count of such an n-gram. None without
            pruning.
        discounts: discounts of counts 1, 2, and 3 or more.
        lower: float32, probabilities of the n-grams that are one token shorter.
        suffixes: int32 `[N]`, the row of `lower` that each n-gram is interpolated with; None if `lower` has one row.

    Returns:
        Two tensors: the probabilities, float32 `[N]` (arbitrary for dropped n-grams), and each context's weight of the lower
        order, float32 `[C]` (1 if no n-gram follows the context).
    """
    sums = context_sums(prefixes, num_contexts, counts, dropped)
    weight = weights_of(sums, discounts)
    backed_off = lower if suffixes is None else lower[suffixes]
    probabilities = interpolated(counts, discounts, sums[0][prefixes], weight[prefixes], backed_off)
    return probabilities, weight.to(torch.float32)


def context_sums(contexts: Tensor, num_contexts: int, counts: Tensor, dropped: Tensor | None) -> Tensor:
    """Return five sums for each context, from which the context's weight is computed, int64 `[5, num_contexts]`.

    The first two sums add adjusted counts: over all n-grams with the context, and over the dropped n-grams with the context.
    The other three sums are the numbers of kept n-grams with the adjusted counts 1, 2, and 3 or more. All sums are whole
    numbers, so the order of addition has no effect. `contexts`, int64 `[N]`, has the context of each n-gram.
    """
    sums = torch.zeros(5, num_contexts, dtype=torch.int64, device=counts.device)
    sums[0].index_add_(0, contexts, counts)
    if dropped is not None:
        sums[1].index_add_(0, contexts, torch.where(dropped, counts, 0))
    for j in (1, 2, 3):
        has_count = counts.clamp(max=3) == j
        sums[1 + j].index_add_(0, contexts, (has_count if dropped is None else has_count & ~dropped).to(torch.int64))
    return sums


def weights_of(sums: Tensor, discounts: tuple[float, float, float]) -> Tensor:
    """Return the weight of the lower order for each context, float64 `[C]`, from its `context_sums`."""
    total, whole, *rows_of = sums.to(torch.float64)
    spared = whole
    for number, discount in zip(rows_of, discounts):
        spared = spared + number * discount
    return torch.where(sums[0] > 0, spared / total, 1.0)


def interpolated(
    counts: Tensor, discounts: tuple[float, float, float], total: Tensor, weight: Tensor, backed_off: Tensor
) -> Tensor:
    """Return interpolated probabilities, float32 `[N]`, of n-grams with the adjusted counts `counts`.

    `total` is the sum of the counts in each n-gram's context. `weight` is the weight that this context gives the lower order,
    and `backed_off` is the probability in the lower order.
    """
    taken = torch.tensor([0.0, *discounts], dtype=torch.float64, device=counts.device)[counts.clamp(max=3)]
    return ((counts.to(torch.float64) - taken) / total + weight * backed_off).to(torch.float32)
