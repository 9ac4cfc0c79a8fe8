"""Recover the n-grams of KenLM's probing models from their hashes.

Unigrams are an array with two floats (log-probability and backoff) per word id. Every higher order is a hash table. A bucket
contains a 64-bit key and the weights: two floats, or one float in the highest order. The key of an empty bucket is 0. The key
of `a b c` is computed from the last word to the first word: `combine(combine(c, b), a)`, where `combine(key, word)` is `(key *
KEY_FACTOR) xor ((1 + word) * WORD_FACTOR)` modulo 2 ** 64 (`csrc/kenlm_probing.cpp`). Log-probabilities are never positive, so
KenLM uses their sign as a mark: a minus sign means that no longer n-gram ends with this n-gram. A backoff of minus zero means
that no longer n-gram begins with this n-gram. The layout follows KenLM's `lm/search_hashed.hh` and
`util/probing_hash_table.hh`.

A table holds no words, but `combine` can be inverted, because its factor is odd and has an inverse modulo 2 ** 64. For a
bigram, the reader tries every word as the first word. The inverse must be the id of a word. Few wrong inverses are small enough
to be an id. A longer n-gram has a prefix and a suffix that are one word shorter and already known. The end of the prefix is the
beginning of the suffix, so the reader tries only pairs that overlap. KenLM's marks exclude many pairs. The result is certain,
because exactly one n-gram must explain each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ...engines.native import Function
from ...engines.threads import in_threads
from ...errors import NGramFormatError
from .header import Header
from .vocabulary import num_buckets

# Limits of the work. At each limit, the work takes some minutes on one core. The first limits the number of bigrams times the
# number of candidates for the first word (2 to 5 billion trials per second). The second limits the pairs of overlapping n-grams
# of one order (about 60 million per second).
MOST_BIGRAM_TRIALS = 10**12
MOST_PAIRS = 10**10
_FILTER_BITS_PER_KEY = 32
_MIDDLE = np.dtype([("key", "<u8"), ("log_prob", "<f4"), ("backoff", "<f4")])
_LONGEST = np.dtype([("key", "<u8"), ("log_prob", "<f4")])

_try_words = Function("ngpulm_try_words")
_try_pairs = Function("ngpulm_try_pairs")


class ProbingLayout(NamedTuple):
    """Hold the positions of the parts of a probing file.

    Args:
        counts: number of n-grams of each order.
        unigrams: offset of the unigrams in bytes from the start of the file.
        tables, end: offsets of each higher order's hash table, and of the end of the last table.
        buckets: number of buckets of each table.
    """

    counts: tuple[int, ...]
    unigrams: int
    tables: tuple[int, ...]
    buckets: tuple[int, ...]
    end: int


class _HashTable(NamedTuple):
    """Hold the n-grams of one order, sorted by key."""

    keys: np.ndarray  # uint64 [N], ascending
    words: np.ndarray  # int32 [N, n]
    prefixes: np.ndarray  # int64 [N], index in the order n - 1 of the n-gram without its last word
    suffixes: np.ndarray  # int64 [N], index in the order n - 1 of the n-gram without its first word
    log_probs: np.ndarray  # float32 [N], log10, with KenLM's mark as its sign
    backoffs: np.ndarray  # float32 [N], log10, with KenLM's mark; 0 in the highest order

    def beginning_longer(self) -> np.ndarray:
        return np.flatnonzero((self.backoffs != 0) | ~np.signbit(self.backoffs))

    def ending_longer(self) -> np.ndarray:
        return np.flatnonzero(~np.signbit(self.log_probs))


def probing_layout(header: Header, begin: int) -> ProbingLayout:
    at = begin + 8 * (header.counts[0] + 1)  # one more unigram, for <unk>
    tables, buckets = [], []
    for n, count in enumerate(header.counts[1:], start=2):
        tables.append(at)
        buckets.append(num_buckets(count, header.probing_multiplier))
        at += buckets[-1] * (_LONGEST if n == len(header.counts) else _MIDDLE).itemsize
    return ProbingLayout(header.counts, begin, tuple(tables), tuple(buckets), at)


def read_probing(
    layout: ProbingLayout, data: np.ndarray, num_words: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the n-grams of each order: word ids int32 `[N, n]`, log-probabilities and backoffs (log10). Raises NGramFormatError
    if the file is damaged, or exceeds `MOST_BIGRAM_TRIALS` or `MOST_PAIRS`.
    """
    unigrams = data[layout.unigrams : layout.unigrams + 8 * num_words].view("<f4").reshape(-1, 2)
    words = np.arange(num_words)
    order = _HashTable(words.astype(np.uint64), words.astype(np.int32)[:, None], 0 * words, 0 * words, *unigrams.T)
    yield order.words, -np.abs(order.log_probs), order.backoffs
    for n, (begin, buckets) in enumerate(zip(layout.tables, layout.buckets), start=2):
        is_highest = n == len(layout.counts)
        record = _LONGEST if is_highest else _MIDDLE
        table = data[begin : begin + buckets * record.itemsize].view(record)
        table = table[table["key"] != 0]
        table = table[np.argsort(table["key"])]
        keys, count = table["key"].astype(np.uint64), layout.counts[n - 1]
        # The header doesn't count the pruned suffixes that KenLM inserts.
        if len(keys) < count or (is_highest and len(keys) > count):
            raise NGramFormatError(
                f"the hash table of the {n}-grams holds {len(keys)}, but the header implies {count}: a damaged file"
            )
        prefixes, suffixes = np.full(len(keys), -1), np.full(len(keys), -1)
        hits = (_find_bigrams if n == 2 else _find_longer)(order, keys, prefixes, suffixes)
        if hits != len(keys) or (prefixes < 0).any():
            raise NGramFormatError(
                f"{len(keys)} {n}-grams in the hash table, but {hits} combinations of words match them: a damaged file"
            )
        words = np.concatenate([order.words[prefixes, :1], order.words[suffixes]], 1)
        backoffs = np.zeros(len(keys), np.float32) if is_highest else table["backoff"]
        order = _HashTable(keys, words, prefixes, suffixes, table["log_prob"], backoffs)
        yield order.words, -np.abs(order.log_probs), order.backoffs


def _find_bigrams(unigrams: _HashTable, keys: np.ndarray, prefixes: np.ndarray, suffixes: np.ndarray) -> int:
    """Find the words of bigrams by their keys. Write each bigram's first word to `prefixes` and its last word to `suffixes`.

    Return how many pairs of words have a key in `keys`.
    """
    first_words = unigrams.beginning_longer()
    trials = len(first_words) * len(keys)
    if trials > MOST_BIGRAM_TRIALS:
        raise NGramFormatError(_too_large(f"{len(first_words):,} words times {len(keys):,} bigrams", MOST_BIGRAM_TRIALS))
    ends_longer = ~np.signbit(unigrams.log_probs)
    arguments = (keys, first_words, len(first_words), ends_longer, len(ends_longer), prefixes, suffixes)
    return _in_threads(_try_words, arguments, len(keys), 1 + len(first_words) // 8)


def _find_longer(below: _HashTable, keys: np.ndarray, prefixes: np.ndarray, suffixes: np.ndarray) -> int:
    """Find the words of longer n-grams by their keys. Write each n-gram's prefix and suffix, as rows of `below`, to `prefixes`
    and `suffixes`. `below`: the n-grams that are one word shorter.

    Return how many pairs of overlapping n-grams have a key in `keys`.
    """
    before, after = below.beginning_longer(), below.ending_longer()
    before = before[np.argsort(below.suffixes[before], kind="stable")]
    begins, ends = (np.searchsorted(below.suffixes[before], below.prefixes[after], side) for side in ("left", "right"))
    pairs = int((ends - begins).sum())
    if pairs > MOST_PAIRS:
        raise NGramFormatError(_too_large(f"{pairs:,} pairs of overlapping {below.words.shape[1]}-grams", MOST_PAIRS))
    # Most pairs don't give a key of the table. A bit filter over the upper bits of the keys excludes them.
    bits = max(6, (_FILTER_BITS_PER_KEY * len(keys)).bit_length())
    maybe, top = np.zeros(1 << (bits - 6), dtype=np.uint64), keys >> np.uint64(64 - bits)
    np.bitwise_or.at(maybe, (top >> np.uint64(6)).astype(np.int64), np.uint64(1) << (top & np.uint64(63)))
    first_words = below.words[:, 0].astype(np.int64)
    arguments = (begins, ends, before, after, below.keys, first_words, maybe, 64 - bits, keys, len(keys), prefixes, suffixes)
    return _in_threads(_try_pairs, arguments, len(after), 1 + pairs // max(1, len(after)))


def _in_threads(function: Callable[..., int], given: tuple[object, ...], size: int, work: int) -> int:
    return sum(in_threads(lambda first, last: function(first, last, *given), size, work))


def _too_large(work: str, most: int) -> str:
    return (
        f"the n-grams of this probing model can't be listed: finding them out from their hashes would take {work}, more than "
        f"the {most:.0e} that are tried. Read the ARPA file that it was built from, or a trie (build_binary trie)"
    )
