"""KenLM's tries, unpacked.

The trie holds n-grams by their last word first: the children of the node of `b c` are the n-grams `a b c`, sorted by `a`. An
order's nodes are records of a fixed number of bits, one after the other without padding: the word, then the weights, then
(below the highest order) where the children begin in the next order; they end where those of the following node begin,
and one record more says where the last node's do. Unigrams are 16 bytes each, ordered by word id.

Weights are two floats (the log-probability without its sign bit) or indices into tables of quantised values, a table per
order and kind (Federico and Bertoldi 2006). Pointers may be stored without their upper bits, which change seldom: an array
then says at which record each of their values begins (Raj and Whittaker 2003). After KenLM's `lm/trie.cc`, `lm/quantize.cc`
and `lm/bhiksha.cc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...errors import NGramFormatError
from .header import Header

_QUANTISATION_VERSION = 2
_ARRAY_VERSION = 0
_MOST_QUANTISED_BITS = 25
_UNIGRAM = np.dtype([("log_prob", "<f4"), ("backoff", "<f4"), ("next", "<u8")])
_SLACK = 8  # bytes after each packed order, so that 64 bits can be read wherever a field begins


class TrieLevel(NamedTuple):
    """The nodes of one order, `N` n-grams sorted by their last word, then the word before it, and so on."""

    words: np.ndarray  # int32 [N], first word of each n-gram
    log_probs: np.ndarray  # float32 [N], log10
    backoffs: np.ndarray  # float32 [N], log10; empty in the highest order
    children: np.ndarray  # int64 [N + 1]: those of node i are children[i] .. children[i + 1] - 1; empty in the highest order


class _Block(NamedTuple):
    """Where the records of one order lie: offset of their bytes, and bits of their fields."""

    begin: int
    word_bits: int
    weight_bits: int
    pointer_bits: int


@dataclass(frozen=True)
class TrieLayout:
    """Where everything lies in the search structure of a trie, as offsets from the start of the file."""

    counts: tuple[int, ...]
    log_prob_bits: int  # of quantised values; 0 where there are none
    backoff_bits: int
    quantisation: int
    unigrams: int
    arrays: tuple[tuple[int, int], ...]  # of each middle order: offset and number of entries, (0, 0) without compression
    blocks: tuple[_Block, ...]  # of the orders from 2 on
    end: int

    @property
    def quantised(self) -> bool:
        return self.log_prob_bits > 0


def trie_layout(header: Header, data: np.ndarray, begin: int) -> TrieLayout:
    """Find the parts of a trie whose search structure begins at an offset.

    Raises:
        NGramFormatError: parts of unknown versions, or a file that is too short for them.
    """
    counts, order, at = header.counts, header.order, begin
    log_prob_bits = backoff_bits = 0
    if "quant" in header.model_type:
        version, log_prob_bits, backoff_bits = _bytes_at(data, at, 3)
        if version != _QUANTISATION_VERSION:
            raise NGramFormatError(f"quantisation of version {version}, this reader knows version {_QUANTISATION_VERSION}")
        if not (1 <= log_prob_bits <= _MOST_QUANTISED_BITS and 1 <= backoff_bits <= _MOST_QUANTISED_BITS):
            raise NGramFormatError(
                f"values quantised to {log_prob_bits} and {backoff_bits} bits, both should be from 1 to {_MOST_QUANTISED_BITS}"
            )
        if backoff_bits == 1 and order > 2:
            # The two zeros take both codes. What build_binary writes for other backoffs spills into the field beside.
            raise NGramFormatError(
                "backoffs quantised to 1 bit, in which KenLM can't store any but 0, and damages the log-probabilities. "
                "Build the binary anew with 2 bits or more (build_binary -b)"
            )
        at += 8 + 4 * ((order - 1) << log_prob_bits) + 4 * ((order - 2) << backoff_bits)
    unigrams = at
    at += _UNIGRAM.itemsize * (counts[0] + 2)
    array_bits = 0
    if "array" in header.model_type and order > 2:
        version, array_bits = _bytes_at(data, at, 2)
        if version != _ARRAY_VERSION:
            raise NGramFormatError(f"pointers compressed by version {version}, this reader knows version {_ARRAY_VERSION}")
    word_bits = counts[0].bit_length()
    arrays, blocks = [], []
    for n in range(2, order + 1):
        array, pointer_bits = (0, 0), 0
        if n < order:
            pointer_bits = counts[n].bit_length()
            if "array" in header.model_type:
                cut = _cut_bits(counts[n - 1] + 1, counts[n], array_bits)
                pointer_bits -= cut
                entries = (counts[n] >> pointer_bits) + 1
                array = (-(-at // 8) * 8 + 8, entries)
                at += 8 * (1 + entries) + 7
        weight_bits = log_prob_bits + (backoff_bits if n < order else 0) or (63 if n < order else 31)
        blocks.append(_Block(at, word_bits, weight_bits, pointer_bits))
        arrays.append(array)
        at += -(-(word_bits + weight_bits + pointer_bits) * (counts[n - 1] + 1) // 8) + _SLACK
    return TrieLayout(counts, log_prob_bits, backoff_bits, begin, unigrams, tuple(arrays[:-1]), tuple(blocks), at)


def _bytes_at(data: np.ndarray, at: int, size: int) -> list[int]:
    if at + size > data.size:
        raise NGramFormatError(f"the file is cut short: by its header it should have more than {at} bytes, it has {data.size}")
    return data[at : at + size].tolist()


def _cut_bits(num_records: int, largest: int, most: int) -> int:
    """Return how many upper bits of the pointers are stored in the array: where it saves most, and the fewest of those."""
    bits = largest.bit_length()
    costs = [64 * (largest >> (bits - cut)) - num_records * cut for cut in range(min(bits, most) + 1)]
    return costs.index(min(costs))


def read_levels(layout: TrieLayout, data: np.ndarray) -> list[TrieLevel]:
    """Unpack a trie that lies within the file.

    Raises:
        NGramFormatError: nodes out of order, words out of range, or pointers that don't divide the next order among them.
    """
    counts, order = layout.counts, len(layout.counts)
    stored = data[layout.unigrams : layout.blocks[0].begin][: _UNIGRAM.itemsize * (counts[0] + 1)].view(_UNIGRAM)
    children = _check_pointers(stored["next"], 1, counts[1])
    unigrams = stored[:-1]
    words = np.arange(counts[0], dtype=np.int32)
    levels = [TrieLevel(words, unigrams["log_prob"].copy(), unigrams["backoff"].copy(), children)]
    for n in range(2, order + 1):
        block, count = layout.blocks[n - 2], counts[n - 1]
        size = block.word_bits + block.weight_bits + block.pointer_bits
        end = layout.end if n == order else layout.blocks[n - 1].begin
        packed = _Packed(data[block.begin : end], size)
        words = packed.field(0, block.word_bits, count)
        _check_words(words, levels[-1].children, n, counts[0])
        log_probs, backoffs = _weights(layout, data, packed, n)
        children = np.zeros(0, dtype=np.int64)
        if n < order:
            pointers = packed.field(block.word_bits + block.weight_bits, block.pointer_bits, count + 1)
            array, entries = layout.arrays[n - 2]
            if entries:
                upper = data[array : array + 8 * entries].view("<u8")
                pointers |= (np.searchsorted(upper, np.arange(count + 1, dtype=np.uint64), "right") - 1) << block.pointer_bits
            children = _check_pointers(pointers, n, counts[n])
        levels.append(TrieLevel(words.astype(np.int32), log_probs, backoffs, children))
    return levels


class _Packed:
    """Records of a fixed number of bits, one after the other, the lowest bits first."""

    def __init__(self, data: np.ndarray, record_bits: int) -> None:
        self.data, self.record_bits = data, record_bits

    def field(self, offset: int, bits: int, count: int) -> np.ndarray:
        """Return one field (of up to 57 bits) of the first records, int64 `[count]`.

        Every eighth record begins at the same bit of its byte, so eight strided copies with a shift each read them all.
        """
        out = np.empty(count, dtype=np.uint64)
        for first in range(min(8, count)):
            bit = first * self.record_bits + offset
            rows = out[first::8]
            words = np.ndarray(rows.shape, "<u8", self.data.data, bit >> 3, (self.record_bits,))
            np.right_shift(words, np.uint64(bit & 7), out=rows)
        out &= np.uint64((1 << bits) - 1)
        return out.view(np.int64)


def _weights(layout: TrieLayout, data: np.ndarray, packed: _Packed, n: int) -> tuple[np.ndarray, np.ndarray]:
    block, count, highest = layout.blocks[n - 2], layout.counts[n - 1], n == len(layout.counts)
    backoffs = np.zeros(0, dtype=np.float32)
    if not layout.quantised:
        log_probs = (packed.field(block.word_bits, 31, count) | 0x80000000).astype(np.uint32).view(np.float32)
        if not highest:
            backoffs = packed.field(block.word_bits + 31, 32, count).astype(np.uint32).view(np.float32)
        return log_probs, backoffs
    # A middle order has a table of log-probabilities and one of backoffs, in this order; its records hold the backoff first.
    log_prob_values, backoff_values = 1 << layout.log_prob_bits, 1 << layout.backoff_bits
    table = layout.quantisation + 8 + 4 * (n - 2) * (log_prob_values + backoff_values)
    values = data[table : table + 4 * (log_prob_values + (0 if highest else backoff_values))].view("<f4")
    skipped = 0
    if not highest:
        skipped = layout.backoff_bits
        backoffs = values[log_prob_values:][packed.field(block.word_bits, layout.backoff_bits, count)]
    log_probs = values[:log_prob_values][packed.field(block.word_bits + skipped, layout.log_prob_bits, count)]
    return log_probs, backoffs


def _check_pointers(pointers: np.ndarray, n: int, num_children: int) -> np.ndarray:
    pointers = pointers.astype(np.int64)
    if pointers[0] != 0 or pointers[-1] != num_children or (pointers[1:] < pointers[:-1]).any():
        raise NGramFormatError(
            f"the pointers of the {n}-grams don't ascend from 0 to {num_children}, the number of {n + 1}-grams: a damaged file"
        )
    return pointers


def _check_words(words: np.ndarray, parents: np.ndarray, n: int, num_words: int) -> None:
    if words.size == 0:
        return
    if int(words.max()) >= num_words:
        at = int(words.argmax())
        raise NGramFormatError(
            f"word {words[at]} in {n}-gram {at} is outside the vocabulary of {num_words} words: a damaged file"
        )
    descends = words[1:] <= words[:-1]
    begins = parents[1:-1]
    descends[begins[(begins > 0) & (begins < words.size)] - 1] = False
    if descends.any():
        at = int(descends.argmax()) + 1
        raise NGramFormatError(f"{n}-gram {at} of the trie isn't in its order: a damaged file")
