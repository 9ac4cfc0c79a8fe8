"""Estimate a model in partitions of its n-grams, each small enough for the memory of one task.

N-grams are packed from their last token to their first, into one or several words (see `Packing`). The first word of an n-gram
holds the n-gram's last tokens. A partition has the n-grams of two and more tokens whose last two tokens lie in a range. So a
partition also has the suffixes of its n-grams, and needs no other partition for adjusted counts and interpolation. A context
(an n-gram without its last token) is usually in another partition. So a partition sends five whole numbers about each context
to that partition, and gets the context's weight back. Unigrams are estimated in one place.

The steps are functions of arrays, which run in one process or as tasks of a cluster (`on_cluster.estimate`):

    cut       sorted run of a part of the text -> a slice for each partition
    gather    slices -> the partition, its statistics, and the sums over contexts for each partition that has these contexts
    weigh     sums -> the backoff weights of the partition's n-grams, and for each partition the contexts that it asked for
    smooth    contexts -> the n-grams of the model with probabilities, for each partition of the model by first tokens
    finish    n-grams of a range of first tokens -> columns of the model's table

Only whole numbers are added across partitions, and logarithms are computed in one place. So the result equals the result of
`kneser_ney.estimate` bit for bit, for any number of partitions and any order of their results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .steps import Packing, SortedRun, steps_for
from .steps.reference import context_sums, interpolated, weights_of
from .table import one_thread, sorting

SAMPLE = 256  # n-grams of an order that say where to cut


@dataclass(frozen=True)
class Plan:
    """The data that all partitions share.

    Args:
        packing: how n-grams are packed. The last token comes first.
        bounds: int64 `[P - 1]`, the first packed integer at which each partition except the first begins.
        thresholds: pruning threshold of each order.
        bad: bool `[vocab_size + 3]`, tokens whose n-grams are dropped.
        rank: int64 `[vocab_size + 3]`, each token's rank in the order of lmplz (see `kneser_ney.rank_of`).
        engine: engine of the steps.
    """

    packing: Packing
    bounds: np.ndarray
    thresholds: tuple[int, ...]
    bad: np.ndarray
    rank: np.ndarray
    engine: str = "auto"

    @property
    def size(self) -> int:
        """The number of partitions."""
        return len(self.bounds) + 1

    @property
    def order(self) -> int:
        return self.packing.order

    @property
    def last_unigram(self) -> int:
        """The unigram that lmplz sorts last."""
        rank = self.rank.copy()
        rank[self.packing.vocab_size] = -1
        return int(rank.argmax())


class Level(NamedTuple):
    """The n-grams of one order in a partition, sorted from their last tokens.

    An n-gram is stored as its first token, and the row of its suffix (all other tokens) in the level below (order n - 1).
    """

    suffixes: np.ndarray  # int64 [N], row of the n-gram without its first token in the level below
    tokens: np.ndarray  # int32 [N], first token
    adjusted: np.ndarray  # int64 [N], adjusted count
    dropped: np.ndarray  # bool [N], n-grams that pruning drops
    contexts: np.ndarray  # int64 [N], number of the n-gram's context in the partition; empty for unigrams


@dataclass(frozen=True)
class Statistics:
    """The numbers about a partition that the probabilities depend on."""

    sizes: list[int]  # number of n-grams of each order in this partition; several partitions may have a unigram
    counts_of_counts: np.ndarray  # int64 [order, 6], for adjusted counts 0, 1, 2, 3, 4, and 5 or more; zeros for unigrams
    occurrences: np.ndarray  # int64 [vocab_size + 3], occurrences of unigrams
    extensions: np.ndarray  # int64 [vocab_size + 3], number of bigrams that end in each unigram
    # These fields are about the n-grams that lmplz sorts last, if this partition has them: `last_rank` is the rank of the
    # bigram's first token, `last` has the adjusted count and the number of occurrences for each order 2, 3, ...
    last_rank: int
    last: list[tuple[int, int]]
    sample: np.ndarray  # int64 [M], first words of n-grams from their first token


def cut(run: tuple[np.ndarray, np.ndarray], bounds: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the slices of a sorted run (words `[W, R]` and counts `[R]`), one for each partition."""
    words, counts = run
    return [(words[:, rows].copy(), counts[rows].copy()) for rows in _slices(words[0], bounds)]


def bounds_of(samples: Sequence[np.ndarray], count: int, packing: Packing) -> np.ndarray:
    """Choose the bounds of partitions of about the same size. Return the first packed integer of each partition except the
    first partition, int64 `[count - 1]` or fewer. N-grams whose first two packed tokens are equal are in the same partition.

    Args:
        samples: samples of the n-grams' first packed integers, one array for each part of the n-grams. The size of an array is
            about proportional to the size of its part.
    """
    pair = packing.base ** max(0, packing.digits[0] - 2)
    sample = np.sort(np.concatenate(samples))
    found: np.ndarray = np.unique(sample[[len(sample) * i // count for i in range(1, count)]] // pair * pair)
    return found[found > 0]


@one_thread()
def gather(plan: Plan, *slices: tuple[np.ndarray, np.ndarray]) -> list[Any]:
    """Return a list: the partition's `Level`s, the partition's `Statistics`, and one entry to send to each partition.

    An entry has the contexts that belong to the receiving partition: for each order from 2 on, the contexts' words `[W, C]` and
    their `context_sums` `[5, C]`.
    """
    packing, steps = plan.packing, steps_for(torch.device("cpu"), plan.engine)
    runs = [SortedRun(*map(_tensor, one)) for one in slices if len(one[1])]
    while len(runs) > 1:  # the shortest first
        runs.sort(key=len)
        runs.append(steps.merge(runs.pop(0), runs.pop(0)))
    if not runs:
        none = torch.zeros(len(packing.digits) + 1, 0, dtype=torch.int64)
        runs = [SortedRun(none[:-1], none[-1])]
    tries = steps.trie(runs.pop(), packing)
    bad, bos = torch.from_numpy(plan.bad.copy()), packing.vocab_size
    levels: list[Level] = []
    sent: list[list[Any]] = [[] for _ in range(plan.size)]
    counts_of_counts = np.zeros((plan.order, 6), dtype=np.int64)
    occurrences, of_unigrams = (np.zeros(len(plan.bad), dtype=np.int64) for _ in range(2))
    contexts = torch.zeros(len(packing.digits), len(tries[0].tokens), dtype=torch.int64)
    has_bad = torch.empty(0)
    for n, trie in enumerate(tries, start=1):
        tokens, size = trie.tokens.to(torch.int64), len(trie.tokens)
        adjusted = trie.counts
        if n < plan.order:
            extensions = torch.bincount(tries[n].prefixes, minlength=size)
            adjusted = torch.where(tokens == bos, adjusted, extensions)
        has_bad = bad[tokens] if n == 1 else bad[tokens] | has_bad[trie.prefixes]
        dropped = has_bad | (trie.counts <= plan.thresholds[n - 1]) if plan.thresholds[n - 1] else has_bad
        which = trie.prefixes[:0]
        if n == 1:
            occurrences[tokens.numpy()] = trie.counts.numpy()
            if plan.order > 1:
                of_unigrams[tokens.numpy()] = extensions.numpy()
        else:
            counts_of_counts[n - 1] = np.bincount(adjusted.clamp(max=5).numpy(), minlength=6)
            word, factor = packing.place(n - 2)
            contexts = contexts[:, trie.prefixes]
            contexts[word] += (tokens + 1) * factor
            distinct, which = _grouped(contexts)
            sums = context_sums(which, distinct.shape[1], adjusted, dropped)
            for to, columns in zip(sent, _slices(distinct[0].numpy(), plan.bounds)):
                to.append((distinct[:, columns].numpy().copy(), sums[:, columns].numpy().copy()))
        levels.append(Level(*(column.numpy() for column in (trie.prefixes, trie.tokens, adjusted, dropped, which))))
    last_rank, last = _last(plan, levels, [trie.counts.numpy() for trie in tries])
    sizes = [len(level.tokens) for level in levels]
    sample = np.concatenate([_from_first(plan, levels, n, _spread(sizes[n - 1]))[0] for n in range(1, plan.order + 1)])
    return [levels, Statistics(sizes, counts_of_counts, occurrences, of_unigrams, last_rank, last, sample), *sent]


def _last(plan: Plan, levels: list[Level], occurrences: list[np.ndarray]) -> tuple[int, list[tuple[int, int]]]:
    """Return the fields `last_rank` and `last` of `Statistics`; see `kneser_ney._last_by_lmplz`."""
    rows = np.flatnonzero(levels[0].tokens == plan.last_unigram)
    last_rank, last = -1, []
    for n in range(2, plan.order):
        if not len(rows):
            break
        candidates = np.arange(*np.searchsorted(levels[n - 1].suffixes, [rows[0], rows[0] + 1]))
        if not len(candidates):
            break
        ranks = plan.rank[levels[n - 1].tokens[candidates]]
        row = int(candidates[ranks.argmax()])
        if n == 2:
            last_rank = int(ranks.max())
        if levels[n - 1].tokens[row] == plan.packing.vocab_size:
            break
        last.append((int(levels[n - 1].adjusted[row]), int(occurrences[n - 1][row])))
        rows = np.array([row])
    return last_rank, last


@one_thread()
def weigh(plan: Plan, discounts: Sequence[Any], levels: list[Level], *sums: list[Any]) -> list[Any]:
    """Return a list: backoff weights, a pair for unigrams, and an answer to each partition.

    - The backoff weights, float32, belong to the partition's n-grams, for each order from 2 to the highest but one.
    - The pair has the unigrams that are contexts, int64, and their weights.
    - An answer is about the contexts that the receiving partition has sent. For each order from 2 on, it has the contexts'
      total counts, int64 `[C]`, and their weights, float64 `[C]`.

    Args:
        sums: from the `gather` of each partition, the entry for this partition.
    """
    packing = plan.packing
    backoffs: list[np.ndarray] = []
    answers: list[list[Any]] = [[] for _ in sums]
    unigrams: Any = None
    own = torch.zeros(len(packing.digits), 1, dtype=torch.int64)
    for n in range(2, plan.order + 1):
        asked = [sent[n - 2] for sent in sums]
        own = _extended(own, levels[n - 2], packing, n - 2)
        mine = own if n > 2 else own[:, :0]  # a unigram may be in several partitions
        distinct, which = _grouped(torch.cat([mine, *(_tensor(words) for words, _ in asked)], 1))
        total = torch.zeros(5, distinct.shape[1], dtype=torch.int64)
        ends = np.cumsum([mine.shape[1], *(words.shape[1] for words, _ in asked)]).tolist()
        places = [which[first:end] for first, end in pairwise(ends)]
        for place, (_, values) in zip(places, asked):
            total.index_add_(1, place, _tensor(values))
        weights = weights_of(total, discounts[n - 1])
        for answer, place in zip(answers, places):
            answer.append((total[0][place].numpy(), weights[place].numpy()))
        if n == 2:
            unigrams = (distinct[0] // packing.place(0)[1] - 1).numpy(), weights.to(torch.float32).numpy()
        else:
            backoffs.append(weights.to(torch.float32)[which[: ends[0]]].numpy())
    return [backoffs, unigrams, *answers]


@one_thread()
def smooth(
    plan: Plan,
    discounts: Sequence[Any],
    unigrams: np.ndarray,
    bounds: np.ndarray,
    levels: list[Level],
    backoffs: list[np.ndarray],
    *contexts: list[Any],
) -> list[Any]:
    """Return the model's n-grams of order 2 and higher, divided by first tokens into new partitions. Each new partition has a
    list, with the words (packed from the first token), probabilities and backoff weights of its n-grams for each order.

    Args:
        unigrams: float32 `[vocab_size + 3]`, probabilities.
        bounds: the first packed integer at which each new partition except the first begins.
        contexts: from the `weigh` of each partition, the answer to this partition.
    """
    below = torch.from_numpy(unigrams.copy())[_tensor(levels[0].tokens).to(torch.int64)]
    sent: list[list[Any]] = [[] for _ in range(len(bounds) + 1)]
    for n in range(2, plan.order + 1):
        level = levels[n - 1]
        which = _tensor(level.contexts)
        total, weight = (torch.from_numpy(np.concatenate([one[n - 2][i] for one in contexts])) for i in range(2))
        below = interpolated(
            _tensor(level.adjusted), discounts[n - 1], total[which], weight[which], below[_tensor(level.suffixes)]
        )
        kept = np.flatnonzero(~level.dropped)
        words = _from_first(plan, levels, n, kept)
        by_key = _sorting(torch.from_numpy(words)).numpy()
        words, kept = words[:, by_key], kept[by_key]
        probabilities = below.numpy()[kept]
        weights = backoffs[n - 2][kept] if n < plan.order else np.ones(len(kept), dtype=np.float32)
        for to, columns in zip(sent, _slices(words[0], bounds)):
            to.append((words[:, columns].copy(), probabilities[columns].copy(), weights[columns].copy()))
    return sent


@one_thread()
def finish(plan: Plan, *parts: list[Any]) -> list[tuple[np.ndarray, ...]]:
    """Return the columns of the model's table for a range of first tokens, in a tuple for each order from 2 on.

    The columns are prefixes int64 (their rows within this range; for bigrams the first token), tokens int32, probabilities, and
    backoff weights.

    Args:
        parts: for each partition, the n-grams that its `smooth` has returned for this range.
    """
    packing = plan.packing
    found = []
    below: Tensor | None = None
    for n in range(2, plan.order + 1):
        words, *columns = (np.concatenate(each, axis=-1) for each in zip(*(part[n - 2] for part in parts)))
        by_key = _sorting(torch.from_numpy(words)).numpy()
        keys = torch.from_numpy(words[:, by_key])
        word, factor = packing.place(n - 1)
        digits = keys[word] // factor % packing.base
        prefixes = keys.clone()
        prefixes[word] -= digits * factor
        if below is None:
            rows = prefixes[0] // packing.place(0)[1] - 1
        else:  # all prefixes are among the n-grams below, whose keys ascend
            distinct, which = _grouped(torch.cat([below, prefixes], 1))
            assert distinct.shape == below.shape
            rows = which[below.shape[1] :]
        found.append((rows.numpy(), (digits - 1).to(torch.int32).numpy(), *(column[by_key] for column in columns)))
        below = keys
    return found


def _slices(first_words: np.ndarray, bounds: np.ndarray) -> Iterator[slice]:
    """Yield the rows of each partition. `first_words`: each row's first packed integer, ascending. `bounds`: see `Plan`."""
    cuts = [0, *np.searchsorted(first_words, bounds).tolist(), len(first_words)]
    return (slice(*pair) for pair in pairwise(cuts))


def _tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor. A read-only array, such as an array in a cluster's memory, is copied first."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _sorting(words: Tensor) -> Tensor:
    return sorting(words.contiguous()) if words.shape[1] else torch.zeros(0, dtype=torch.int64)


def _grouped(words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct columns of packed n-grams `[W, N]` in ascending order, and the number of each column, int64 `[N]`."""
    by_key = _sorting(words)
    ordered = words[:, by_key]
    new = torch.ones(words.shape[1], dtype=torch.bool)
    new[1:] = reduce(torch.logical_or, (word[1:] != word[:-1] for word in ordered))
    which = torch.empty(words.shape[1], dtype=torch.int64)
    which[by_key] = torch.cumsum(new, 0) - 1
    return ordered[:, new], which


def _extended(below: Tensor, level: Level, packing: Packing, position: int) -> Tensor:
    """Return the packed words of a level's n-grams. `below` has the words of the level below. `position` is the
    position of the level's token in an n-gram.
    """
    words = below[:, _tensor(level.suffixes)]
    word, factor = packing.place(position)
    words[word] += (_tensor(level.tokens).to(torch.int64) + 1) * factor
    return words


def _from_first(plan: Plan, levels: list[Level], n: int, rows: np.ndarray) -> np.ndarray:
    """Return the n-grams of order `n` in the rows `rows`, packed from their first token: words int64 `[W, R]`."""
    words = np.zeros((len(plan.packing.digits), len(rows)), dtype=np.int64)
    for position, level in enumerate(reversed(levels[:n])):
        word, factor = plan.packing.place(position)
        words[word] += (level.tokens[rows].astype(np.int64) + 1) * factor
        rows = level.suffixes[rows]
    return words


def _spread(size: int) -> np.ndarray:
    return np.unique(np.linspace(0, size - 1, SAMPLE).astype(np.int64)) if size else np.zeros(0, dtype=np.int64)
