"""Estimate models by interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998), as in KenLM's lmplz (Heafield et al.
2013).

Each order has three steps. First, adjusted counts replace the numbers of occurrences. (The adjusted count of an n-gram is the
number of distinct tokens before it.) Then the counts of counts determine the discounts. Finally, each context passes the
discounted mass on to the context's suffix.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .counting import NEVER, NGramCounts
from .room import Room
from .steps import TrieOrder, steps_for
from .table import NGramOrder, NGramTable, one_thread

ELEMENTS_PER_BLOCK = 1 << 18  # fewer aren't worth a second thread
logger = logging.getLogger(__name__)

DISCOUNT_FALLBACK = (0.5, 1.0, 1.5)  # the values of lmplz
# Log backoff weight of a context that passes no mass on: log10 of 1e-99, the zero of ARPA files, as a natural log.
LOG_ZERO = -99.0 * 2.302585092994046


class Discounts(NamedTuple):
    """The discounts of adjusted counts 1, 2, and 3 or more."""

    one: float
    two: float
    three: float


@dataclass(frozen=True)
class Estimate:
    """An estimated language model, its discounts, and the numbers of n-grams before pruning."""

    table: NGramTable  # the n-grams
    discounts: tuple[Discounts, ...]  # the discounts of each order
    # the orders that got the fallback discounts, because their counts of counts determined no discounts
    fallback_orders: tuple[int, ...]
    num_counted: tuple[int, ...]  # number of n-grams of each order before pruning


def thresholds_of(prune: Sequence[int], order: int) -> tuple[int, ...]:
    """Return the pruning threshold of each order. The last value in `prune` also holds for all higher orders.

    Raises:
        ValueError: a threshold isn't an integer of 0 or more, the threshold of unigrams isn't 0, a threshold is lower than the
            threshold before, or there are more thresholds than orders.
    """
    prune = tuple(prune)
    if not all(isinstance(threshold, int) and threshold >= 0 for threshold in prune):
        raise ValueError(f"prune should be counts of 0 and up, one an order, got {prune}")
    if len(prune) > order:
        raise ValueError(f"prune has {len(prune)} thresholds, {prune}, but the model only {order} orders")
    if prune and prune[0] != 0:
        raise ValueError(f"unigrams can't be pruned: the first threshold must be 0, got prune={prune}")
    if any(later < earlier for earlier, later in pairwise(prune)):
        raise ValueError(f"pruning thresholds may not fall from one order to the next, got prune={prune}")
    prune = prune or (0,)
    return prune + (prune[-1],) * (order - len(prune))


@one_thread()
def estimate(
    counts: NGramCounts,
    prune: Sequence[int] = (),
    discount_fallback: Sequence[float] | None = DISCOUNT_FALLBACK,
    allowed: Tensor | None = None,
    engine: str = "auto",
    done: Callable[[], Any] | None = None,
) -> Estimate:
    """Estimate a language model from counted n-grams.

    Args:
        counts: the counts, on the device that computes the estimate.
        prune: a threshold for each order 1, 2, ...: n-grams that occur at most this often are dropped. The first threshold must
            be 0. The last also holds for all higher orders. `(0, 0, 1)` drops n-grams of order 3 and higher that occur once.
        discount_fallback: discounts for orders whose counts of counts determine no discounts (in small or artificial text).
            None raises an error for such an order.
        allowed: bool `[vocab_size]`, tokens that are allowed. Other tokens count as unknown, and n-grams with such tokens are
            dropped.
        done: function to call after each order.

    Raises:
        ValueError: the thresholds are invalid, or discounts can't be computed and `discount_fallback` is None.
    """
    if discount_fallback is not None:
        discount_fallback = check_fallback(discount_fallback)
    order = len(counts.orders)
    thresholds = thresholds_of(prune, order)
    device = counts.orders[0].tokens.device
    steps = steps_for(device, engine)
    vocab_size, first_seen = counts.vocab_size, counts.first_seen.to(device)
    bos, unk = vocab_size, vocab_size + 2
    num_ids = vocab_size + 3
    bad = bad_tokens(vocab_size, allowed).to(device)

    room = counts.room
    tries = [with_unknown(counts.orders[0], unk), *counts.orders[1:]]
    num_counted = tuple(len(trie.tokens) for trie in counts.orders)
    del counts  # so that arrays can be freed before the end
    blocks = [room.blocks_by_suffix(tries, n, ELEMENTS_PER_BLOCK) for n in range(1, order + 1)]
    suffixes: list[Tensor | None] = [None]
    for n in range(2, order + 1):
        suffixes.append(steps.suffix_rows(tries[n - 2], tries[n - 1], suffixes[-1], num_ids, room, blocks[n - 1]))
    starts = _rows_after(tries, bos)
    quirk = _last_by_lmplz(tries, suffixes, first_seen, vocab_size, room)

    discounts: list[Discounts] = []
    fallback_orders: list[int] = []
    orders: list[NGramOrder] = []
    kept: list[Tensor] = []
    has_bad = lower = torch.empty(0)
    for n, trie in enumerate(tries, start=1):
        # An adjusted count is the number of distinct tokens before an n-gram. N-grams of the highest order, and n-grams that
        # begin with <s>, keep their numbers of occurrences.
        size = len(trie.tokens)
        adjusted = trie.counts
        if n < order:
            links = suffixes[n]
            assert links is not None
            adjusted = steps.left_extensions(links, size, room, blocks[n])
            adjusted[starts[n - 1]] = trie.counts[starts[n - 1]]
        if n == 1:
            adjusted = adjusted.clone()
            adjusted[trie.tokens == bos] = 0
        last = None if n == order or quirk[n - 1] is None else (adjusted[quirk[n - 1]], trie.counts[quirk[n - 1]])
        of_order, is_fallback = discounts_of(n, _counts_of_counts(adjusted, room), last, discount_fallback)
        discounts.append(of_order)
        if is_fallback:
            fallback_orders.append(n)

        bad_below, has_bad = has_bad, _bools(trie, room)
        kept.append(_bools(trie, room))
        for rows in room.spans(size):
            has_bad[rows] = bad[trie.tokens[rows].to(torch.int64)]
            if n > 1:
                has_bad[rows] |= bad_below[trie.prefixes[rows]]
            kept[-1][rows] = ~has_bad[rows] & (trie.counts[rows] > thresholds[n - 1] if thresholds[n - 1] else True)
        num_kept = sum(int(kept[-1][rows].sum()) for rows in room.spans(size))
        dropped = None
        if num_kept < size:
            dropped = _bools(trie, room)
            for rows in room.spans(size):
                dropped[rows] = ~kept[-1][rows]
        if n == 1:
            kept[0] |= trie.tokens >= vocab_size
            probabilities = unigram_probabilities(trie, adjusted, dropped, kept[0], of_order, vocab_size, steps)
        else:
            num_contexts = len(tries[n - 2].tokens)
            probabilities, weights = steps.discount(
                trie.prefixes, num_contexts, adjusted, dropped, of_order, lower, suffixes[n - 1], room, blocks[n - 1]
            )
            for rows in room.spans(num_contexts):
                weights[rows].log_().clamp_(min=LOG_ZERO)
            orders[-1] = replace(orders[-1], backoffs=weights)
        del adjusted, dropped
        suffixes[n - 1] = None
        if n < order:
            tries[n - 1] = TrieOrder(trie.prefixes, trie.tokens, trie.counts[:0].clone())
        # The probabilities of the highest order aren't needed any more.
        lower, log_probs = probabilities, probabilities if n == order else _like(probabilities, room)
        for rows in room.spans(size):
            log_probs[rows] = probabilities[rows].log().clamp_(min=LOG_ZERO, max=0.0)
        backoffs = _like(probabilities, room) if n == order else log_probs[:0]  # the next order brings them
        orders.append(NGramOrder(trie.prefixes, trie.tokens, log_probs, backoffs))
        if done is not None:
            done()
    table = NGramTable(vocab_size, tuple(orders)).keep(kept, room)
    return Estimate(table, tuple(discounts), tuple(fallback_orders), num_counted)


def unigram_probabilities(
    trie: TrieOrder, adjusted: Tensor, dropped: Tensor | None, kept: Tensor, discounts: Discounts, vocab_size: int, steps: Any
) -> Tensor:
    """Return the probabilities of unigrams, float32 `[N]`, which are interpolated with the uniform distribution.

    `adjusted`, `[N]`, has the adjusted counts. `kept`, `[N]`, marks the unigrams of the model (including `<s>`, `</s>` and
    `<unk>`). `steps` is the engine's module. For other arguments see `steps.discount`.
    """
    uniform = 1.0 / (int(kept.sum()) - 1)  # all kept unigrams except <s>
    lower = torch.full((1,), uniform, dtype=torch.float32, device=trie.tokens.device)
    probabilities, weights = steps.discount(trie.prefixes, 1, adjusted, dropped, discounts, lower, None)
    probabilities[trie.tokens == vocab_size] = 1.0
    probabilities[trie.tokens == vocab_size + 2] = weights[0] * uniform
    return probabilities


def _bools(trie: TrieOrder, room: Room) -> Tensor:
    return room.zeros(len(trie.tokens), torch.bool).to(trie.tokens.device)


def _like(values: Tensor, room: Room) -> Tensor:
    return room.zeros(len(values), values.dtype).to(values.device)


def bad_tokens(vocab_size: int, allowed: Tensor | None) -> Tensor:
    """Return a mask of the tokens whose n-grams are dropped, bool `[vocab_size + 3]`: `<unk>`, and tokens that aren't allowed.

    `allowed`: bool `[vocab_size]`, or None if all tokens are allowed.
    """
    bad = torch.zeros(vocab_size + 3, dtype=torch.bool)
    if allowed is not None:
        bad[:vocab_size] = ~allowed.cpu()
    bad[vocab_size + 2] = True
    return bad


def check_fallback(fallback: Sequence[float]) -> Sequence[float]:
    if len(fallback) != 3 or not all(0 < value <= j for j, value in enumerate(fallback, start=1)):
        raise ValueError(
            "discount_fallback should be the discounts of counts 1, 2 and 3, each above 0 and at most the count, "
            f"such as {DISCOUNT_FALLBACK}; got {tuple(fallback)}"
        )
    return fallback


def with_unknown(unigrams: TrieOrder, unk: int) -> TrieOrder:
    """Return the unigrams, with `<unk>` (id `unk`) in the last row. `<unk>` has count 0 if the text has no unknown token."""
    if unigrams.tokens.numel() and int(unigrams.tokens[-1]) == unk:
        return unigrams
    return TrieOrder(
        torch.cat([unigrams.prefixes, unigrams.prefixes.new_zeros(1)]),
        torch.cat([unigrams.tokens, unigrams.tokens.new_full((1,), unk)]),
        torch.cat([unigrams.counts, unigrams.counts.new_zeros(1)]),
    )


def _rows_after(tries: list[TrieOrder], token: int) -> list[slice]:
    """Return, for each order, the rows of the n-grams that begin with a token."""
    first = int(torch.searchsorted(tries[0].tokens, token))
    ranges = [slice(first, first + 1)]
    for trie in tries[1:]:
        bounds = torch.tensor([ranges[-1].start, ranges[-1].stop], device=trie.prefixes.device)
        ranges.append(slice(*torch.searchsorted(trie.prefixes, bounds).tolist()))
    return ranges


def _counts_of_counts(adjusted: Tensor, room: Room) -> list[int]:
    """Return six numbers: how many n-grams have the adjusted count 0, 1, 2, 3, 4, and 5 or more."""
    counts = torch.zeros(6, dtype=torch.int64, device=adjusted.device)
    for rows in room.spans(len(adjusted)):
        counts += torch.bincount(adjusted[rows].clamp(max=5), minlength=6)
    return counts.tolist()


def discounts_of(
    n: int, counts_of_counts: Sequence[int], last: tuple[Any, Any] | None, fallback: Sequence[float] | None
) -> tuple[Discounts, bool]:
    """Return the discounts of one order, in closed form (Chen and Goodman 1998, equation 26). Also return whether these are the
    fallback.

    Args:
        n: the order.
        counts_of_counts: the number of n-grams with the adjusted count 0, 1, 2, 3, 4, and 5 or more.
        last: the adjusted count and the number of occurrences of the n-gram that lmplz sorts last. lmplz uses the number of
            occurrences as this n-gram's count. None leaves `counts_of_counts` unchanged.
        fallback: as `discount_fallback` of `estimate`.

    Raises:
        ValueError: the counts determine no discounts, and there is no fallback.
    """
    if last is not None:
        # lmplz uses the occurrences of this one n-gram, so equal discounts need the same.
        counts_of_counts = list(counts_of_counts)
        counts_of_counts[min(int(last[0]), 5)] -= 1
        counts_of_counts[min(int(last[1]), 5)] += 1
    ones, twos, threes = counts_of_counts[1:4]
    if ones and twos and threes:
        # Use lmplz's precision, since in borderline cases rounding decides whether the fallback is used.
        single = np.float32
        share = single(ones) / single(ones + 2.0 * twos)
        discounts = Discounts(
            *(
                float(single(j) - single(j + 1) * share * single(counts_of_counts[j + 1]) / single(counts_of_counts[j]))
                for j in (1, 2, 3)
            )
        )
        if all(0 <= value <= j for j, value in enumerate(discounts, start=1)):
            return discounts, False
        why = f"they would be {', '.join(f'{value:.3f}' for value in discounts)}"
    else:
        rare = next(j for j in (1, 2, 3) if not counts_of_counts[j])
        why = f"no {n}-gram has the adjusted count {rare}"
    if fallback is None:
        raise ValueError(
            f"no discounts can be computed for {n}-grams: {why}. Is the text small, artificial or full of repeated sentences? "
            f"Pass discount_fallback={DISCOUNT_FALLBACK} to go on with these"
        )
    logger.warning("no discounts can be computed for %d-grams (%s): %s are used", n, why, tuple(fallback))
    return Discounts(*fallback), True


def rank_of(first_seen: Tensor, vocab_size: int) -> Tensor:
    """Return each token's rank in the order in which lmplz sorts tokens, int64 `[vocab_size + 3]`; -1 for a token that doesn't
    occur.
    """
    rank = torch.where(first_seen == NEVER, -1, first_seen + 3)
    rank[vocab_size], rank[vocab_size + 1], rank[vocab_size + 2] = 1, 2, 0
    return rank


def _last_by_lmplz(
    tries: list[TrieOrder], suffixes: list[Tensor | None], first_seen: Tensor, vocab_size: int, room: Room
) -> list[int | None]:
    """For each order below the highest, return the row of the n-gram that lmplz sorts last.

    lmplz sorts n-grams from their last token to their first, and tokens by their first occurrence in the text. Its statistics
    use the number of occurrences of the last n-gram, but the adjusted counts of all other n-grams. In a small text this affects
    the discounts.
    """
    rank = rank_of(first_seen, vocab_size)
    rows: list[int | None] = []
    unigrams = tries[0].tokens.to(torch.int64)
    last = unigrams != vocab_size
    row = int(torch.where(last, rank[unigrams], -1).argmax())
    for n in range(1, len(tries)):
        rows.append(row)
        if n == len(tries) - 1:
            break
        links = suffixes[n]
        assert links is not None
        places = [torch.nonzero(links[rows] == row)[:, 0] + rows.start for rows in room.spans(len(links))]
        candidates = torch.cat([first_seen[:0], *places])
        if candidates.numel() == 0:
            break
        at = candidates
        for trie in reversed(tries[1 : n + 1]):
            at = trie.prefixes[at]
        first_tokens = unigrams[at]
        best = int(rank[first_tokens].argmax())
        row = int(candidates[best])
        if int(first_tokens[best]) == vocab_size:
            break
    return rows + [None] * (len(tries) - len(rows))
