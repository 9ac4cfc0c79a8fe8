"""Estimate a model by the tasks of a cluster; see `partitions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.cluster import Cluster
from .counting import NEVER
from .kneser_ney import (
    LOG_ZERO,
    Discounts,
    Estimate,
    bad_tokens,
    check_fallback,
    discounts_of,
    rank_of,
    thresholds_of,
    unigram_probabilities,
    with_unknown,
)
from .partitions import SAMPLE, Plan, Statistics, bounds_of, cut, finish, gather, smooth, weigh
from .room import Room
from .steps import Packing, SortedRun, TrieOrder, steps_for
from .table import NGramOrder, NGramTable, one_thread

# Bytes that a task needs for each n-gram (of any order) in its partition: `gather` needs 83 bytes, its results 60 bytes
# (benchmarks/results/scale.json). The number of n-grams is overestimated.
BYTES_PER_NGRAM = 160
# Number of counted n-grams of the highest order in a partition, if the memory permits. Each partition sends data to each other
# partition three times, so many small partitions cost more than they save.
SMALLEST_PARTITION = 1 << 20
NUM_STEPS = 4  # that `estimate` reports


@dataclass(frozen=True)
class CountedPart:
    """The counted n-grams of a part of the text. `slices` divides the n-grams among partitions."""

    run: Any  # a task's result: words [W, R] and counts [R]
    size: int  # R
    sample: np.ndarray  # some first words


def counted_part(run: SortedRun) -> tuple[tuple[np.ndarray, np.ndarray], int, np.ndarray]:
    """Return a sorted run's packed n-grams and counts, its number of n-grams, and a sample of the first packed integers."""
    words, counts = run.words.numpy()[:, : len(run)], run.counts.numpy()
    return (np.ascontiguousarray(words), counts), len(run), words[0, :: max(1, len(run) // (4 * SAMPLE))].copy()


def seen_earlier(before: np.ndarray | None, seen: np.ndarray, sentences: int) -> np.ndarray:
    """Join two texts, and return `first_seen` (see `NGramCounts`) of the joined text.

    `before` is `first_seen` of the first text; None if there is no first text. `sentences` is the number of sentences in the
    first text. `seen` is `first_seen` of the second text.
    """
    placed = np.where(seen == NEVER, NEVER, seen + sentences * 2**31)
    return placed if before is None else np.minimum(before, placed)


@one_thread()
def estimate(
    cluster: Cluster,
    parts: Sequence[CountedPart],
    first_seen: np.ndarray,
    packing: Packing,
    prune: Sequence[int] = (),
    discount_fallback: Sequence[float] | None = None,
    allowed: Tensor | None = None,
    memory: int = 4 << 30,
    room: Room | None = None,
    partitions: int | None = None,
    done: Callable[[], Any] | None = None,
) -> Estimate:
    """Estimate a language model from the counted parts of a text. The result equals the result of `kneser_ney.estimate`.

    Args:
        cluster: the cluster that runs the tasks.
        parts: the counted parts, in the order of the text.
        first_seen: as in `NGramCounts`.
        packing: how n-grams are packed. The last token comes first.
        prune, discount_fallback, allowed: as for `kneser_ney.estimate`.
        memory: bytes that a task may use.
        room: where the table is stored.
        partitions: number of partitions; by default enough for `memory`, and for larger texts at least one per CPU.
        done: function to call after each of the four steps.

    Raises:
        ValueError: as for `kneser_ney.estimate`.
    """
    fallback = None if discount_fallback is None else check_fallback(discount_fallback)
    order, vocab_size, room = packing.order, packing.vocab_size, room or Room()
    done = done or (lambda: None)
    size = sum(part.size for part in parts)
    count = partitions or max(min(cluster.cpus, size // SMALLEST_PARTITION), -(-size * order * BYTES_PER_NGRAM // memory))
    rank = rank_of(torch.from_numpy(first_seen), vocab_size).numpy()
    bad = bad_tokens(vocab_size, allowed)
    thresholds = thresholds_of(prune, order)
    # Samples in proportion to the parts' sizes.
    most = max(part.size for part in parts)
    samples = [part.sample[np.linspace(0, len(part.sample) - 1, 4 * SAMPLE * part.size // most).astype(int)] for part in parts]
    plan = Plan(packing, bounds_of(samples, count, packing), thresholds, bad.numpy(), rank)
    size, shared = plan.size, cluster.shared(plan)

    slices = [cluster.submit(cut, part.run, plan.bounds, returns=size) for part in parts]
    gathered = [cluster.submit(gather, shared, *(one[p] for one in slices), returns=2 + size) for p in range(size)]
    del slices
    found: list[Statistics] = [cluster.get(one[1]) for one in gathered]
    done()
    last = max(found, key=lambda one: one.last_rank).last
    occurrences, extensions = (np.sum([getattr(one, name) for one in found], 0) for name in ("occurrences", "extensions"))
    unigrams, probabilities, first = _unigrams(plan, occurrences, extensions, bad, fallback)
    by_order = [first]
    for n in range(2, order + 1):
        counts_of_counts = np.sum([one.counts_of_counts[n - 1] for one in found], 0).tolist()
        quirk = last[n - 2] if n < order and n - 2 < len(last) else None
        by_order.append(discounts_of(n, counts_of_counts, quirk, fallback))
    discounts = [each for each, _ in by_order]
    num_counted = (len(np.flatnonzero(occurrences)), *(sum(one.sizes[n] for one in found) for n in range(1, order)))
    done()

    weighed = [
        cluster.submit(weigh, shared, discounts, gathered[p][0], *(one[2 + p] for one in gathered), returns=2 + size)
        for p in range(size)
    ]
    by_token = np.zeros(vocab_size + 3, dtype=np.float32)
    by_token[unigrams.tokens.numpy()] = probabilities.numpy()
    weights = np.ones_like(by_token)
    bounds = bounds_of([one.sample for one in found], size, packing)
    lower = cluster.shared(by_token)
    ranges = len(bounds) + 1
    smoothed = [
        cluster.submit(
            smooth, shared, discounts, lower, bounds, gathered[p][0], weighed[p][0], *(one[2 + p] for one in weighed),
            returns=ranges,
        )
        for p in range(size)
    ]  # fmt: skip
    for one in weighed:
        tokens, of_tokens = cluster.get(one[1]) or (slice(0), 1.0)
        weights[tokens] = of_tokens
    del gathered, weighed
    done()
    finished = [cluster.submit(finish, shared, *(one[r] for one in smoothed)) for r in range(ranges)]
    del smoothed
    kept = ~bad[unigrams.tokens.to(torch.int64)] | (unigrams.tokens >= vocab_size)
    of_unigrams = (
        unigrams.prefixes,
        unigrams.tokens,
        _logs(probabilities, 0.0),
        _logs(torch.from_numpy(weights)[unigrams.tokens]),
    )
    orders = [NGramOrder(*(column[kept] for column in of_unigrams))]
    orders += _joined(cluster, finished, order, orders[0].tokens, vocab_size, room)
    done()
    while len(orders) > 1 and not len(orders[-1]):
        orders.pop()
    orders[-1].backoffs.zero_()
    fallbacks = tuple(n for n, (_, is_fallback) in enumerate(by_order, start=1) if is_fallback)
    return Estimate(NGramTable(vocab_size, tuple(orders)), tuple(discounts), fallbacks, num_counted)


def _unigrams(
    plan: Plan, occurrences: np.ndarray, extensions: np.ndarray, bad: Tensor, fallback: Sequence[float] | None
) -> tuple[TrieOrder, Tensor, tuple[Discounts, bool]]:
    """Return the unigrams, their probabilities, and a pair: the discounts, and whether the discounts are the fallback.

    `occurrences` and `extensions` are sums of the fields of `Statistics`. `bad` is a mask of the tokens whose n-grams are
    dropped.
    """
    order, vocab_size = plan.order, plan.packing.vocab_size
    tokens = torch.from_numpy(np.flatnonzero(occurrences))
    trie = TrieOrder(torch.zeros_like(tokens), tokens.to(torch.int32), torch.from_numpy(occurrences)[tokens])
    trie = with_unknown(trie, vocab_size + 2)
    tokens = trie.tokens.to(torch.int64)
    adjusted = trie.counts if order == 1 else torch.from_numpy(extensions)[tokens]
    adjusted = torch.where(tokens == vocab_size, 0, adjusted)
    last = plan.last_unigram
    quirk = None if order == 1 else (extensions[last], occurrences[last])
    counts_of_counts = torch.bincount(adjusted.clamp(max=5), minlength=6).tolist()
    found = discounts_of(1, counts_of_counts, quirk, fallback)
    dropped, kept = bad[tokens], ~bad[tokens] | (tokens >= vocab_size)
    steps = steps_for(torch.device("cpu"), plan.engine)
    is_dropped = dropped if bool(dropped.any()) else None
    return trie, unigram_probabilities(trie, adjusted, is_dropped, kept, found[0], vocab_size, steps), found


def _joined(
    cluster: Cluster, finished: Sequence[Any], order: int, unigrams: Tensor, vocab_size: int, room: Room
) -> list[NGramOrder]:
    """Return the orders from 2 on. `finished` are the results of `partitions.finish`, one for each range of first tokens."""
    sizes = [[len(columns[0]) for columns in cluster.get(one)] for one in finished]
    room.plan(sum(map(sum, sizes)))
    row_of = torch.zeros(vocab_size + 3, dtype=torch.int64)
    row_of[unigrams.to(torch.int64)] = torch.arange(len(unigrams))
    dtypes = torch.int64, torch.int32, torch.float32, torch.float32
    total = [sum(each) for each in zip(*sizes)]
    orders = [NGramOrder(*(room.zeros(size, dtype) for dtype in dtypes)) for size in total]
    at = [0] * order
    for one in finished:
        before = 0
        for n, columns in enumerate(cluster.get(one)):
            prefixes, tokens, probabilities, weights = (torch.from_numpy(column.copy()) for column in columns)
            rows = slice(at[n + 1], at[n + 1] + len(tokens))
            orders[n].prefixes[rows] = row_of[prefixes] if n == 0 else prefixes + before
            orders[n].tokens[rows] = tokens
            orders[n].log_probs[rows] = _logs(probabilities, 0.0)
            orders[n].backoffs[rows] = _logs(weights)
            before, at[n + 1] = at[n + 1], rows.stop
    return orders


def _logs(values: Tensor, most: float | None = None) -> Tensor:
    return values.log().clamp_(min=LOG_ZERO, max=most)
