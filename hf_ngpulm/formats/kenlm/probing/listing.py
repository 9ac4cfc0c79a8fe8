"""The n-grams of a probing model, found out from their hashes.

A hash table holds no words, only a 64-bit key per n-gram, made from its last word to its first: see `tables`. But what makes a
key of another can be undone: its factor is odd, so it has an inverse modulo 2 ** 64. Of a bigram, every word is tried as the
first one; undone, the key has to be the id of a word, and chance lets hardly any other number be that small. A longer n-gram
consists of one that is a word shorter and of the next, which overlap in all but a word each; those are known by then, so
only pairs of them are tried. KenLM's marks of n-grams that no longer one ends in or begins with leave out many.

The result is certain: every key has to be made in exactly one way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....engines.native import Function, Struct
from ....engines.threads import in_threads
from ....errors import NGramFormatError
from ..to_table import Ngrams
from .tables import LONGEST_WORDS, MIDDLE_WORDS, ProbingTables

# Both of these take a core some minutes: words that may be tried as the first of bigrams, times bigrams (2 to 5 billion a
# second); and pairs of overlapping n-grams of one order (about 60 million a second).
MOST_BIGRAM_TRIALS = 10**12
MOST_PAIRS = 10**10
_FILTER_BITS_PER_KEY = 16


class HashTable(Struct):
    """A hash table with linear probing, `stride` int32s to a bucket."""


_try_words = Function("ngpulm_try_words")
_try_pairs = Function("ngpulm_try_pairs")


class _Order(NamedTuple):
    """The n-grams of one order, in the order of their buckets, and of unigrams by word id."""

    keys: np.ndarray  # uint64 [N]
    first_words: np.ndarray  # int64 [N]
    last_words: np.ndarray  # int64 [N]
    prefixes: np.ndarray  # int64 [N], index of the n-gram without its last word in the order below
    suffixes: np.ndarray  # int64 [N], and without its first word
    log_probs: np.ndarray  # float32 [N], log10, with KenLM's mark as its sign
    backoffs: np.ndarray  # float32 [N], log10, with KenLM's mark; empty in the highest order


def list_ngrams(tables: ProbingTables, num_words: int) -> list[Ngrams]:
    """Return all n-grams of a model.

    Raises:
        NGramFormatError: a damaged file, or a model that is too large for this (see `MOST_BIGRAM_TRIALS`, `MOST_PAIRS`).
    """
    entries = tables.entries.numpy()
    unigrams = entries[: 2 * num_words].view(np.float32).reshape(-1, 2)
    words = np.arange(num_words, dtype=np.int64)
    orders = [_Order(words.astype(np.uint64), words, words, 0 * words, 0 * words, unigrams[:, 0], unigrams[:, 1])]
    num_orders = tables.buckets.numel() + 1
    for n in range(2, num_orders + 1):
        size = MIDDLE_WORDS if n < num_orders else LONGEST_WORDS
        begin, buckets, probes = (int(tensor[n - 2]) for tensor in (tables.begins, tables.buckets, tables.probes))
        table = entries[begin : begin + buckets * size].reshape(buckets, size)
        all_keys = np.ascontiguousarray(table[:, :2]).view(np.uint64)[:, 0]
        used = np.flatnonzero(all_keys)
        keys, weights = all_keys[used], table[used, 2:].view(np.float32)
        if n == 2:
            prefixes, suffixes = _bigrams(keys, orders[0])
        else:
            found = (np.full(buckets, -1), np.full(buckets, -1))
            _join(orders[-1], keys, HashTable(buckets=table, num_buckets=buckets, probes=probes, stride=size), n, *found)
            prefixes, suffixes = (each[used] for each in found)
        below = orders[-1]
        first_words, last_words = below.first_words[prefixes], below.last_words[suffixes]
        backoffs = weights[:, 1] if n < num_orders else np.zeros(0, dtype=np.float32)
        orders.append(_Order(keys, first_words, last_words, prefixes, suffixes, weights[:, 0], backoffs))
    return [Ngrams(order.prefixes, order.last_words, -np.abs(order.log_probs), order.backoffs) for order in orders]


def _begins_longer(order: _Order) -> np.ndarray:
    return ~((order.backoffs == 0) & np.signbit(order.backoffs))


def _ends_longer(order: _Order) -> np.ndarray:
    return ~np.signbit(order.log_probs)


def _bigrams(keys: np.ndarray, unigrams: _Order) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last word of each bigram."""
    first_words = np.flatnonzero(_begins_longer(unigrams))
    trials = len(first_words) * len(keys)
    if trials > MOST_BIGRAM_TRIALS:
        raise NGramFormatError(_too_large(f"{len(first_words):,} words times {len(keys):,} bigrams", MOST_BIGRAM_TRIALS))
    found, last_words = np.full(len(keys), -1), np.full(len(keys), -1)
    ends_longer = _ends_longer(unigrams)

    def run(first: int, last: int) -> int:
        return _try_words(first, last, keys, first_words, len(first_words), ends_longer, len(ends_longer), found, last_words)

    hits = sum(in_threads(run, len(keys), 1 + len(first_words) // 8))
    _check_found(hits, found, 2)
    return found, last_words


def _join(
    below: _Order,
    keys: np.ndarray,
    table: HashTable,
    n: int,
    prefixes: np.ndarray,
    suffixes: np.ndarray,
) -> None:
    """Find the prefix and the suffix of each n-gram, by bucket."""
    before, behind = np.flatnonzero(_begins_longer(below)), np.flatnonzero(_ends_longer(below))
    before = before[np.argsort(below.suffixes[before], kind="stable")]
    overlaps = below.suffixes[before]
    begins = np.searchsorted(overlaps, below.prefixes[behind])
    ends = np.searchsorted(overlaps, below.prefixes[behind], "right")
    pairs = int((ends - begins).sum())
    if pairs > MOST_PAIRS:
        raise NGramFormatError(_too_large(f"{pairs:,} pairs of overlapping {n - 1}-grams", MOST_PAIRS))
    bits = max(6, (_FILTER_BITS_PER_KEY * len(keys)).bit_length())
    maybe = np.zeros(1 << (bits - 6), dtype=np.uint64)
    top = keys >> np.uint64(64 - bits)
    np.bitwise_or.at(maybe, (top >> np.uint64(6)).astype(np.int64), np.uint64(1) << (top & np.uint64(63)))
    arguments = (begins, ends, before, behind, below.keys, below.first_words, maybe, 64 - bits, table, prefixes, suffixes)

    def run(first: int, last: int) -> int:
        return _try_pairs(first, last, *arguments)

    hits = sum(in_threads(run, len(behind), 1 + pairs // max(1, len(behind))))
    if hits != len(keys) or int((prefixes >= 0).sum()) != hits:
        _check_found(hits, np.full(len(keys), -1), n)


def _check_found(hits: int, found: np.ndarray, n: int) -> None:
    if hits != len(found) or (found < 0).any():
        raise NGramFormatError(
            f"{len(found)} {n}-grams in the hash table, of which {hits} are made of its words: a damaged file"
        )


def _too_large(work: str, most: int) -> str:
    return (
        f"the n-grams of this probing model can't be listed: finding them out from their hashes would take {work}, more than "
        f"the {most:.0e} that are tried. Read the ARPA file that it was built from, or a trie (build_binary trie)"
    )
