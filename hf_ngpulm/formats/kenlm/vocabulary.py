"""Read KenLM's vocabularies: 64-bit hashes of words, and the word strings at the end of the file.

Word id 0 is `<unk>`. No vocabulary has a hash of `<unk>`. The vocabulary of a trie lists the hashes of the words 1, 2, ... in
ascending order. The vocabulary of a probing model is a hash table with linear probing, from hashes to ids. The layout follows
KenLM's `lm/vocab.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import NGramFormatError
from .header import Header

UNKNOWN = "<unk>"
_BUCKET = np.dtype([("hash", "<u8"), ("id", "<u4")])
_MULTIPLIER = np.uint64(0xC6A4A7935BD1E995)
_SHIFT = np.uint64(47)


def hash_words(words: Sequence[bytes]) -> np.ndarray:
    """Return the MurmurHash64A (Appleby) of each word with seed 0, uint64 `[N]`. Words of equal length are hashed together."""
    lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    ends = np.cumsum(lengths)
    return _hash_spans(np.frombuffer(b"".join(words), dtype=np.uint8), ends - lengths, lengths)


def _hash_spans(text: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    hashes = np.empty(len(starts), dtype=np.uint64)
    by_length = np.argsort(lengths, kind="stable")
    groups = np.flatnonzero(np.diff(lengths[by_length], prepend=-1))
    for first, last in zip(groups, [*groups[1:], len(by_length)]):
        rows = by_length[first:last]
        length = int(lengths[rows[0]])
        padded = np.zeros((len(rows), -(-length // 8) * 8), dtype=np.uint8)
        padded[:, :length] = text[starts[rows, None] + np.arange(length)]
        blocks = padded.view("<u8")
        h = np.full(len(rows), length, dtype=np.uint64) * _MULTIPLIER
        for i in range(length // 8):
            k = blocks[:, i] * _MULTIPLIER
            k ^= k >> _SHIFT
            h = (h ^ (k * _MULTIPLIER)) * _MULTIPLIER
        if length % 8:
            h = (h ^ blocks[:, -1]) * _MULTIPLIER
        h ^= h >> _SHIFT
        h *= _MULTIPLIER
        hashes[rows] = h ^ (h >> _SHIFT)
    return hashes


def word_ids(hashes: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Return the ids of words, int64 `[N]`. `hashes`: uint64 `[W - 1]`. A word without a hash in `hashes` gets 0 (`<unk>`)."""
    wanted = hash_words([word.encode() for word in words])
    if len(hashes) == 0:
        return np.zeros(len(wanted), dtype=np.int64)
    by_hash = np.argsort(hashes)
    at = np.minimum(np.searchsorted(hashes, wanted, sorter=by_hash), len(hashes) - 1)
    return np.where(hashes[by_hash[at]] == wanted, by_hash[at] + 1, 0)


def read_strings(hashes: np.ndarray, data: np.ndarray) -> list[str]:
    """Read the strings of all words from the end of a file (uint8), and compare them with the hashes of the words."""
    text = data.tobytes()
    ends = np.flatnonzero(data == 0)
    if len(ends) != len(hashes) + 1 or text[-1:] != b"\0":
        raise NGramFormatError(f"{len(ends)} word strings at the end of the file, for a vocabulary of {len(hashes) + 1} words")
    starts = np.append(0, ends[:-1] + 1)
    if text[: ends[0]] != UNKNOWN.encode():
        raise NGramFormatError(f"the word strings should begin with {UNKNOWN}, they begin with {text[: ends[0]][:40]!r}")
    wrong = np.flatnonzero(_hash_spans(data, starts[1:], (ends - starts)[1:]) != hashes)
    if wrong.size:
        word = text[starts[wrong[0] + 1] : ends[wrong[0] + 1]][:40]
        raise NGramFormatError(f"the string {word!r} of word {wrong[0] + 1} doesn't have the word's hash: a damaged file")
    try:
        return text.decode().split("\0")[:-1]
    except UnicodeDecodeError as error:
        at = int(np.searchsorted(ends, error.start))
        word = text[starts[at] : ends[at]][:40]
        raise NGramFormatError(
            f"word {at}, {word!r}, isn't UTF-8 text. Convert the ARPA file to UTF-8, and build it anew"
        ) from None


def hashes_of_trie(data: np.ndarray, num_words: int) -> np.ndarray:
    """Return the hashes in a trie's vocabulary.

    `data` has a 64-bit count, then the hashes of all words except `<unk>`, in ascending order.
    """
    stored = int(data[:8].view("<u8")[0])
    if stored != num_words - 1:
        raise NGramFormatError(f"the vocabulary holds {stored} words besides {UNKNOWN}, but the header implies {num_words - 1}")
    hashes = data[8 : 8 * num_words].view("<u8")
    descents = np.flatnonzero(hashes[1:] <= hashes[:-1])
    if descents.size:
        raise NGramFormatError(f"the hashes of the words {descents[0] + 1} and {descents[0] + 2} aren't in ascending order")
    return hashes.astype(np.uint64)


def hashes_of_probing(data: np.ndarray, num_unigrams: int) -> np.ndarray:
    """Return the hashes in a probing model's vocabulary, in the order of their ids.

    `data` has the version and the number of words (32 bits each), then buckets. A bucket has a hash and an id.
    """
    version, num_words = data[:8].view("<u4").tolist()
    if version != 0:
        raise NGramFormatError(f"the vocabulary has version {version}, this reader knows version 0")
    # The header counts one word fewer if the ARPA file had no <unk>.
    if not num_unigrams <= num_words <= num_unigrams + 1:
        raise NGramFormatError(f"the vocabulary holds {num_words} words, but the header implies {num_unigrams}")
    buckets = data[8:].view(_BUCKET)
    used = buckets[buckets["hash"] != 0]
    by_id = used[np.argsort(used["id"])]
    if len(np.unique(by_id["hash"])) < len(used):
        raise NGramFormatError("two words of the vocabulary have the same hash: a damaged file")
    if not np.array_equal(by_id["id"], np.arange(1, num_words)):
        raise NGramFormatError(f"the ids of the vocabulary's {len(used)} entries aren't 1 to {num_words - 1}, each once")
    return by_id["hash"].astype(np.uint64)


def num_buckets(entries: int, multiplier: float) -> int:
    """Return the number of buckets of a hash table. As in KenLM, it is computed in single precision."""
    return max(entries + 1, int(np.float32(multiplier) * np.float32(entries)))


def vocabulary_size(header: Header) -> int:
    """Return the size of a probing model's vocabulary in bytes."""
    return 8 + _BUCKET.itemsize * num_buckets(header.counts[0], header.probing_multiplier)
