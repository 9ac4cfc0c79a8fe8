"""Unpack KenLM's tries.

The trie stores n-grams from the last word to the first word. So the children of the node for `b c` are the n-grams `a b c`,
sorted by `a`. The nodes of an order are records of a fixed number of bits, without padding between the records. A record holds
the word, then the weights. Below the highest order, it also holds a pointer: the index of its first child in the next order. A
node's children end where the next node's children begin; an extra record gives the end of the last node's children. Unigrams
have 16 bytes each, and are sorted by word id.

The weights are two floats: the log-probability without its sign bit, then the backoff. In quantised models the weights are two
indices into tables of values: first the backoff's index, then the log-probability's. Each order has a table for each kind of
weight (Federico and Bertoldi 2006). The upper bits of pointers seldom change, so pointers may be stored without these bits. An
array then holds the first record for each value of the upper bits (Raj and Whittaker 2003). The layout follows KenLM's
`lm/trie.cc`, `lm/quantize.cc` and `lm/bhiksha.cc`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...errors import NGramFormatError
from .header import Header

_QUANTISATION_VERSION = 2
_ARRAY_VERSION = 0
_MOST_QUANTISED_BITS = 25
_UNIGRAM = np.dtype([("log_prob", "<f4"), ("backoff", "<f4"), ("next", "<u8")])
_SLACK = 8  # bytes after each packed order, so that 64 bits can be read from the start of any field


class _PackedOrder(NamedTuple):
    """Hold the positions of one order's n-grams: the number of n-grams (`size`), offsets from the start of the file, and widths
    of fields in bits.
    """

    size: int
    begin: int
    end: int
    word_bits: int
    weight_bits: int
    pointer_bits: int
    values: int  # offset of the tables of quantised log-probabilities and backoffs
    array: int  # offset of the array of the pointers' upper bits; 0 without an array
    entries: int  # number of entries of the array of upper bits; 0 without an array


class TrieLayout(NamedTuple):
    """Hold the positions of a trie's parts, as offsets from the start of the file."""

    num_words: int
    quantised_bits: tuple[int, int] | None  # of a log-probability and of a backoff; None if they are floats
    unigrams: int
    orders: tuple[_PackedOrder, ...]  # orders 2 and up
    end: int


def trie_layout(header: Header, data: np.ndarray, at: int) -> TrieLayout:
    """Return the positions of a trie's parts. `at`: offset at which the search structure begins. Raises NGramFormatError if a
    part has an unknown version, or the file is too short.
    """
    counts, highest = header.counts, len(header.counts)
    quantised_bits, values = None, at + 8
    if "quant" in header.model_type:
        quantised_bits = log_prob_bits, backoff_bits = _quantised_bits(data, at, highest)
        at += 8 + 4 * ((highest - 1) << log_prob_bits) + 4 * ((highest - 2) << backoff_bits)
    unigrams = at
    at += _UNIGRAM.itemsize * (counts[0] + 2)
    has_arrays, array_bits = "array" in header.model_type, 0
    if has_arrays and highest > 2:
        version, array_bits = _bytes_at(data, at, 2)
        if version != _ARRAY_VERSION:
            raise NGramFormatError(f"pointers compressed by version {version}, this reader knows version {_ARRAY_VERSION}")
    orders = []
    for n, count in enumerate(counts[1:], start=2):
        word_bits, weight_bits, pointer_bits, array, entries = counts[0].bit_length(), 31, 0, 0, 0
        if quantised_bits is not None:
            weight_bits = quantised_bits[0]
        if n < highest:
            weight_bits += 32 if quantised_bits is None else quantised_bits[1]
            pointer_bits = counts[n].bit_length()
            if has_arrays:
                pointer_bits -= _cut_bits(count + 1, counts[n], array_bits)
                array, entries = -(-at // 8) * 8 + 8, (counts[n] >> pointer_bits) + 1
                at += 8 * (1 + entries) + 7
        end = at + -(-(word_bits + weight_bits + pointer_bits) * (count + 1) // 8) + _SLACK
        orders.append(_PackedOrder(count, at, end, word_bits, weight_bits, pointer_bits, values, array, entries))
        at = end
        values += 4 * sum(1 << bits for bits in quantised_bits or ())
    return TrieLayout(counts[0], quantised_bits, unigrams, tuple(orders), at)


def _quantised_bits(data: np.ndarray, at: int, order: int) -> tuple[int, int]:
    version, log_prob_bits, backoff_bits = _bytes_at(data, at, 3)
    if version != _QUANTISATION_VERSION:
        raise NGramFormatError(f"quantisation of version {version}, this reader knows version {_QUANTISATION_VERSION}")
    if not (1 <= log_prob_bits <= _MOST_QUANTISED_BITS and 1 <= backoff_bits <= _MOST_QUANTISED_BITS):
        raise NGramFormatError(
            f"values quantised to {log_prob_bits} and {backoff_bits} bits, both should be from 1 to {_MOST_QUANTISED_BITS}"
        )
    if backoff_bits == 1 and order > 2:
        # The codes of the two zeros use up 1 bit. For other backoffs build_binary writes codes that overflow into the next
        # field.
        raise NGramFormatError(
            "backoffs quantised to 1 bit, in which KenLM can't store any but 0, and damages the log-probabilities. "
            "Build the binary anew with 2 bits or more (build_binary -b)"
        )
    return log_prob_bits, backoff_bits


def _bytes_at(data: np.ndarray, at: int, size: int) -> list[int]:
    if at + size > data.size:
        raise NGramFormatError(f"the file is cut short: it has {data.size} bytes, but its header implies more than {at}")
    return data[at : at + size].tolist()


def _cut_bits(num_records: int, largest: int, most: int) -> int:
    """Return how many upper bits KenLM cuts from the pointers: the smallest number that saves the most memory.

    An array of offsets replaces the cut bits. `largest`: the largest pointer. `most`: maximum number of bits to cut.
    """
    bits = largest.bit_length()
    costs = [64 * (largest >> (bits - cut)) - num_records * cut for cut in range(min(bits, most) + 1)]
    return costs.index(min(costs))


def read_trie(layout: TrieLayout, data: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the n-grams of each order: word ids int32 `[N, n]`, log-probabilities and backoffs (log10). Raises NGramFormatError
    if nodes are out of order, a word is out of range, or the pointers don't partition the next order.
    """
    unigrams = data[layout.unigrams :][: _UNIGRAM.itemsize * (layout.num_words + 1)].view(_UNIGRAM)
    words, pointers = np.arange(layout.num_words, dtype=np.int32)[:, None], unigrams["next"]
    yield words, unigrams["log_prob"][:-1], unigrams["backoff"][:-1]
    for n, order in enumerate(layout.orders, start=2):
        children = _checked_pointers(pointers, n, order.size)
        packed = _Packed(data[order.begin : order.end], order.word_bits + order.weight_bits + order.pointer_bits)
        firsts = packed.field(0, order.word_bits, order.size)
        _check_words(firsts, children, n, layout.num_words)
        parents = np.repeat(words, np.diff(children), axis=0)
        words = np.concatenate([firsts.astype(np.int32)[:, None], parents], 1)
        yield words, *_weights(layout, order, data, packed)
        if n <= len(layout.orders):
            pointers = packed.field(order.word_bits + order.weight_bits, order.pointer_bits, order.size + 1)
            if order.entries:
                upper = data[order.array : order.array + 8 * order.entries].view("<u8")
                values = np.searchsorted(upper, np.arange(order.size + 1, dtype=np.uint64), "right") - 1
                pointers |= values << order.pointer_bits


class _Packed:
    """Read records of a fixed number of bits, without padding between the records. Numbers begin with their lowest bits."""

    def __init__(self, data: np.ndarray, record_bits: int) -> None:
        self.data, self.record_bits = data, record_bits

    def field(self, offset: int, bits: int, count: int) -> np.ndarray:
        """Return a field of the first `count` records, int64 `[count]`. The field begins at the record's bit `offset`, and has
        `bits` bits (up to 57).

        Every eighth record begins at the same bit of a byte. So eight strided copies, each with one shift, read all records.
        """
        out = np.empty(count, dtype=np.uint64)
        for first in range(min(8, count)):
            bit = first * self.record_bits + offset
            rows = out[first::8]
            words = np.ndarray(rows.shape, "<u8", self.data.data, bit >> 3, (self.record_bits,))
            np.right_shift(words, np.uint64(bit & 7), out=rows)
        out &= np.uint64((1 << bits) - 1)
        return out.view(np.int64)


def _weights(layout: TrieLayout, order: _PackedOrder, data: np.ndarray, packed: _Packed) -> tuple[np.ndarray, np.ndarray]:
    at, count, has_backoffs = order.word_bits, order.size, order.end < layout.end
    backoffs = np.zeros(count, dtype=np.float32)
    if layout.quantised_bits is None:
        log_probs = (packed.field(at, 31, count) | 0x80000000).astype(np.uint32).view(np.float32)
        if has_backoffs:
            backoffs = packed.field(at + 31, 32, count).astype(np.uint32).view(np.float32)
        return log_probs, backoffs
    log_prob_bits, backoff_bits = layout.quantised_bits
    values = data[order.values :][: 4 * ((1 << log_prob_bits) + (has_backoffs << backoff_bits))].view("<f4")
    if has_backoffs:
        backoffs = values[1 << log_prob_bits :][packed.field(at, backoff_bits, count)]
        at += backoff_bits
    return values[packed.field(at, log_prob_bits, count)], backoffs


def _checked_pointers(pointers: np.ndarray, n: int, count: int) -> np.ndarray:
    """Check the pointers of the (n-1)-grams, and return the pointers as int64. A pointer is the index of the first child among
    the `count` n-grams of order n. The last pointer is `count`.
    """
    pointers = pointers.astype(np.int64)
    if pointers[0] != 0 or pointers[-1] != count or (pointers[1:] < pointers[:-1]).any():
        raise NGramFormatError(
            f"the pointers of the {n - 1}-grams don't ascend from 0 to {count}, the number of {n}-grams: a damaged file"
        )
    return pointers


def _check_words(words: np.ndarray, children: np.ndarray, n: int, num_words: int) -> None:
    if words.size and int(words.max()) >= num_words:
        at = int(words.argmax())
        raise NGramFormatError(
            f"word {words[at]} in {n}-gram {at} is outside the vocabulary of {num_words} words: a damaged file"
        )
    descends = np.append(words[1:] <= words[:-1], False)
    descends[children[children > 0] - 1] = False  # here the children of another node begin
    if descends.any():
        raise NGramFormatError(f"{n}-gram {int(descends.argmax()) + 1} of the trie isn't in its order: a damaged file")
