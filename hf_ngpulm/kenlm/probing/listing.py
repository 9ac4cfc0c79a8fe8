"""The n-grams of a probing model, found out from their hashes.

A hash table holds no words, only a 64-bit key per n-gram, made from its last word to its first: see `tables`. But what makes a
key of another can be undone: its factor is odd, so it has an inverse modulo 2 ** 64. Of a bigram, every word is tried as the
first one; undone, the key has to be the id of a word, and chance lets hardly any other number be that small. A longer n-gram
consists of one that is a word shorter and of the next, which overlap in all but a word each; those are known by then, so
only pairs of them are tried. KenLM's marks of n-grams that no longer one ends in or begins with leave out many.

The result is certain: every key has to be made in exactly one way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...automaton.cpu import compiled
from ...automaton.threads import in_threads
from ...errors import NGramFormatError
from ..to_table import Ngrams
from .cpu import _find
from .tables import KEY_FACTOR, LONGEST_WORDS, MIDDLE_WORDS, WORD_FACTOR, ProbingTables

# Both of these take a core some minutes: words that may be tried as the first of bigrams, times bigrams (2 to 5 billion a
# second); and pairs of overlapping n-grams of one order (about 60 million a second).
MOST_BIGRAM_TRIALS = 10**12
MOST_PAIRS = 10**10
_KEY_FACTOR, _WORD_FACTOR = np.uint64(KEY_FACTOR), np.uint64(WORD_FACTOR + 2**64)
_INVERSE = np.uint64(pow(KEY_FACTOR, -1, 2**64))
_KEYS_PER_BLOCK = 1024
_FILTER_BITS_PER_KEY = 16


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
    """All n-grams of a model.

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
            _join(orders[-1], keys, entries, (begin, buckets, probes, size), n, *found)
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
    """The first and the last word of each bigram."""
    first_words = np.flatnonzero(_begins_longer(unigrams))
    trials = len(first_words) * len(keys)
    if trials > MOST_BIGRAM_TRIALS:
        raise NGramFormatError(_too_large(f"{len(first_words):,} words times {len(keys):,} bigrams", MOST_BIGRAM_TRIALS))
    found, last_words = np.full(len(keys), -1), np.full(len(keys), -1)
    ends_longer, try_words = _ends_longer(unigrams), _as_any(_try_words)

    def run(first: int, last: int) -> int:
        return try_words(first, last, keys, first_words, ends_longer, found, last_words)

    hits = sum(in_threads(run, len(keys), 1 + len(first_words) // 8))
    _check_found(hits, found, 2)
    return found, last_words


def _join(
    below: _Order,
    keys: np.ndarray,
    entries: np.ndarray,
    table: tuple[int, ...],
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
    arrays = (begins, ends, before, behind, below.keys, below.first_words, maybe, np.uint64(64 - bits), entries, *table)
    try_pairs = _as_any(_try_pairs)

    def run(first: int, last: int) -> int:
        return try_pairs(first, last, *arrays, prefixes, suffixes)

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
        f"the {most:.0e} that are tried. Query it (KenLMFile.model), or read the ARPA file that it was built from, or a trie "
        "(build_binary trie)"
    )


def _as_any(function: Any) -> Any:
    return function


@compiled
def _try_words(first, last, keys, first_words, ends_longer, found, last_words):
    """Try words as the first of bigrams; how many fit."""
    hits = 0
    num_words = np.uint64(len(ends_longer))
    for begin in range(first, last, _KEYS_PER_BLOCK):
        block = keys[begin : min(begin + _KEYS_PER_BLOCK, last)]
        for word in first_words:
            change = np.uint64(word + 1) * _WORD_FACTOR
            fitting = 0
            for key in block:  # nothing but this count, so that the compiler can do several at once
                fitting += ((key ^ change) * _INVERSE) < num_words
            if fitting:
                for i in range(len(block)):
                    last_word = (block[i] ^ change) * _INVERSE
                    if last_word < num_words and ends_longer[last_word]:
                        hits += 1
                        found[begin + i] = word
                        last_words[begin + i] = last_word
    return hits


@compiled
def _try_pairs(
    first, last, begins, ends, before, behind, keys, first_words, maybe, shift, entries, begin, buckets, probes, size,
    prefixes, suffixes,
):  # fmt: skip
    """Try pairs of overlapping n-grams; how many fit."""
    hits = 0
    for row in range(first, last):
        key = keys[behind[row]] * _KEY_FACTOR
        for at in range(begins[row], ends[row]):
            joined = key ^ (np.uint64(first_words[before[at]] + 1) * _WORD_FACTOR)
            top = joined >> shift
            if (maybe[top >> np.uint64(6)] >> (top & np.uint64(63))) & np.uint64(1):
                entry = _find(entries, begin, buckets, probes, size, joined)
                if entry >= 0:
                    hits += 1
                    prefixes[(entry - begin) // size] = before[at]
                    suffixes[(entry - begin) // size] = behind[row]
    return hits
