"""The hash tables of KenLM's probing models, as tensors.

Unigrams are an array of two floats (log-probability and backoff) by word id. Every further order is a hash table with linear
probing: buckets of a 64-bit key and the weights, two floats or, in the highest order, one. A key stands at the bucket
`key mod buckets` or after it, before the next empty bucket; an empty bucket has key 0. The key of `a b c` is made from its
last word to its first: `combine(combine(c, b), a)`, where `combine(key, word)` is `(key * KEY_FACTOR) xor ((1 + word) *
WORD_FACTOR)` modulo 2 ** 64 (`csrc/kenlm_probing.cpp`). The sign of a log-probability, which needs none, says whether no
longer n-gram ends in this one; a backoff of minus zero that no longer n-gram begins with it. After KenLM's
`lm/search_hashed.hh` and `util/probing_hash_table.hh`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....errors import NGramFormatError
from ..header import Header

# Int32s of a bucket: below the highest order, and in it.
MIDDLE_WORDS, LONGEST_WORDS = 4, 3
_MIDDLE = np.dtype([("key", "<u8"), ("log_prob", "<f4"), ("backoff", "<f4")])
_LONGEST = np.dtype([("key", "<u8"), ("log_prob", "<f4")])
_VOCABULARY_BUCKET = 12
_BUCKETS_PER_BLOCK = 1 << 20


class ProbingTables(NamedTuple):
    """The tables of a model of order `n`.

    The file's own bytes, weights in log10. `entries` begins with the unigrams.
    """

    entries: Tensor  # int32 [M]: everything, one after the other
    begins: Tensor  # int64 [n - 1]: where the table of each order from 2 on begins in `entries`
    buckets: Tensor  # int64 [n - 1]
    probes: Tensor  # int64 [n - 1]: the most buckets that a key can be searched in


class ProbingLayout(NamedTuple):
    """Offsets from the start of the file: of the unigrams, of each further order's table; buckets of each; and the end."""

    counts: tuple[int, ...]
    unigrams: int
    tables: tuple[int, ...]
    buckets: tuple[int, ...]
    end: int


def num_buckets(entries: int, multiplier: float) -> int:
    return max(entries + 1, int(np.float32(multiplier) * np.float32(entries)))  # rounded as KenLM does, to single precision


def vocabulary_size(header: Header) -> int:
    """Return bytes of the vocabulary's hash table."""
    return 8 + _VOCABULARY_BUCKET * num_buckets(header.counts[0], header.probing_multiplier)


def probing_layout(header: Header, begin: int) -> ProbingLayout:
    at = begin + 8 * (header.counts[0] + 1)  # one more, for <unk>
    tables, buckets = [], []
    for n in range(2, header.order + 1):
        tables.append(at)
        buckets.append(num_buckets(header.counts[n - 1], header.probing_multiplier))
        at += buckets[-1] * (_LONGEST if n == header.order else _MIDDLE).itemsize
    return ProbingLayout(header.counts, begin, tuple(tables), tuple(buckets), at)


def read_tables(layout: ProbingLayout, data: np.ndarray, num_words: int) -> ProbingTables:
    """Check the tables and make tensors of them, which share the file's memory.

    What is checked: every weight is a number, every key stands where a search finds it, there are as many as the header says
    (and those that KenLM put in for pruned suffixes), and each table has an empty bucket, at which searches end.

    Raises:
        NGramFormatError: a damaged file.
    """
    unigrams = data[layout.unigrams : layout.unigrams + 8 * num_words].view("<f4").reshape(-1, 2)
    _check_weights(unigrams[:, 0], "log-probability", 1)
    _check_weights(unigrams[:, 1], "backoff", 1)
    probes = []
    for n, (begin, buckets) in enumerate(zip(layout.tables, layout.buckets), start=2):
        highest = n == len(layout.counts)
        record = _LONGEST if highest else _MIDDLE
        table = data[begin : begin + buckets * record.itemsize].view(record)
        for block in _blocks(buckets):
            used = table[block][table["key"][block] != 0]
            _check_weights(used["log_prob"], "log-probability", n)
            if not highest:
                _check_weights(used["backoff"], "backoff", n)
        probes.append(1 + _longest_way(table["key"], n, layout.counts[n - 1], highest))
    starts = [(begin - layout.unigrams) // 4 for begin in layout.tables]
    return ProbingTables(
        torch.from_numpy(data[layout.unigrams : layout.end].view("<i4")),
        torch.tensor(starts, dtype=torch.int64),
        torch.tensor(layout.buckets, dtype=torch.int64),
        torch.tensor(probes, dtype=torch.int64),
    )


def _blocks(size: int) -> Iterator[slice]:
    for first in range(0, size, _BUCKETS_PER_BLOCK):
        yield slice(first, min(first + _BUCKETS_PER_BLOCK, size))


def _check_weights(values: np.ndarray, what: str, n: int) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        raise NGramFormatError(f"a {n}-gram has the {what} {values[bad][0]:g}, which should be a finite number: a damaged file")


def _longest_way(keys: np.ndarray, n: int, count: int, exact: bool) -> int:
    """Return the most buckets that a key stands behind its own."""
    buckets, used, longest = len(keys), 0, 0
    last = buckets - 1
    while last >= 0 and keys[last] != 0:
        last -= 1
    # The last empty bucket so far; counting from after the table's end, around which searches go on.
    last_empty = last - buckets
    for block in _blocks(buckets):
        here = keys[block]
        at = np.arange(block.start, block.stop)
        empty = here == 0
        empties = np.maximum.accumulate(np.where(empty, at, last_empty))
        last_empty = int(empties[-1])
        own = (here % np.uint64(buckets)).astype(np.int64)
        own = np.where(own > at, own - buckets, own)
        lost = ~empty & (own <= empties)
        if last < 0 or lost.any():
            what = "no empty bucket" if last < 0 else "a key where no search finds it"
            raise NGramFormatError(f"the hash table of the {n}-grams has {what}: a damaged file")
        used += int(len(here) - empty.sum())
        longest = max(longest, int(np.where(empty, 0, at - own).max()))
    if used < count or (exact and used > count):
        raise NGramFormatError(
            f"the hash table of the {n}-grams holds {used}, by the header it should be {count}: a damaged file"
        )
    return longest
