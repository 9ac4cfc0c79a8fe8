"""Open KenLM's binary files.

A file consists of a header, the vocabulary, the search structure, and the word strings. Files of `build_binary -v` have no word
strings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ...common.files import naming
from ...errors import NGramFormatError
from ..units import LN10, LOG10_ZERO, NGramFile
from .header import read_header
from .probing import ProbingLayout, probing_layout, read_probing
from .trie import TrieLayout, read_trie, trie_layout
from .vocabulary import hashes_of_probing, hashes_of_trie, read_strings, vocabulary_size, word_ids

_BOS, _EOS = "<s>", "</s>"


class KenLMFile(NGramFile):
    """Read a binary file that KenLM's `build_binary` made.

    The constructor checks the vocabulary, and compares each size in the file with the file's size. `table` reads the n-grams.

    Words have the same ids as in KenLM: `<unk>` has 0, and the other words are numbered in the order of the file.

    Attributes:
        model_type: KenLM's name of the data structure: probing, trie, quant_trie, array_trie or quant_array_trie.
        counts: number of n-grams of each order, according to the header.
        has_words: whether the file has word strings; otherwise it has only hashes of words.

    Raises:
        NGramFormatError: the file isn't a KenLM binary, is damaged, or has a version or type that isn't supported.
        OSError: the file can't be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with naming(path):
            if os.path.isdir(path):
                raise NGramFormatError("a folder, not a KenLM binary file")
            if os.path.getsize(path) == 0:
                raise NGramFormatError("the file is empty")
            # Copy on write, because torch requires writable memory; nothing is written.
            self._data = data = np.memmap(path, dtype=np.uint8, mode="c").view(np.ndarray)
            header = read_header(data)
            self.model_type, self.counts, self.has_words = header.model_type, header.counts, header.has_words
            self._layout: ProbingLayout | TrieLayout
            if self.model_type == "probing":
                words_end = header.size + vocabulary_size(header)
                self._layout = probing_layout(header, words_end)
            else:
                # The vocabulary is the number of words and one hash per word (the place of <unk> stays empty).
                words_end = header.size + 8 * (1 + self.counts[0])
                self._layout = trie_layout(header, data, words_end)
            if data.size < self._layout.end:
                raise NGramFormatError(
                    f"the file is cut short: it has {data.size} bytes, but its header implies {self._layout.end}"
                )
            if not self.has_words and data.size > self._layout.end:
                raise NGramFormatError(
                    f"the file has {data.size} bytes, but its header implies {self._layout.end} and no word strings"
                )
            hashes_of = hashes_of_probing if self.model_type == "probing" else hashes_of_trie
            self._hashes = hashes_of(data[header.size : words_end], self.counts[0])  # of all words except <unk>

    @property
    def order(self) -> int:
        return len(self.counts)

    @property
    def num_words(self) -> int:
        """Number of words in the vocabulary, including `<s>`, `</s>` and `<unk>`."""
        return 1 + len(self._hashes)

    @property
    def quantised_bits(self) -> tuple[int, int] | None:
        """Number of bits of a quantised log-probability and of a quantised backoff; None if the file stores floats."""
        return self._layout.quantised_bits if isinstance(self._layout, TrieLayout) else None

    @cached_property
    def vocabulary(self) -> list[str]:
        """The words in the order of their ids, including `<s>`, `</s>` and `<unk>`."""
        with naming(self.path):
            if not self.has_words:
                raise NGramFormatError(
                    "the file holds no word strings, only their hashes; build it anew without build_binary's -v, or tell the "
                    "words (unigrams=, where there is such an argument)"
                )
            return read_strings(self._hashes, self._data[self._layout.end :])

    def name_words(self, words: Iterable[str]) -> None:
        """Set the words of a file that contains only hashes of words. Words that aren't in the list get placeholder names.

        Raises:
            NGramFormatError: the model contains no word of the list.
        """
        named = [*dict.fromkeys(words)]
        ids = self.word_ids([_BOS, _EOS, *named]).tolist()
        if not any(ids[2:]):
            shown = ", ".join(map(repr, named[:5]))
            raise NGramFormatError(f"{self.path}: none of the {len(named)} words given, such as {shown}, is the model's")
        by_id = {token: word for token, word in zip(ids, [_BOS, _EOS, *named]) if token}
        self.__dict__["vocabulary"] = ["<unk>", *(by_id.get(token, f"<{token}>") for token in range(1, self.num_words))]

    def word_ids(self, words: list[str]) -> np.ndarray:
        """Return the ids of words, int64 `[N]`; a word that isn't in the model gets 0, the id of `<unk>`."""
        return word_ids(self._hashes, words)

    def rows(self, ids: np.ndarray) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the n-grams of each order as ids, with the natural logs of the n-grams' probabilities and backoffs.

        `ids` has the token id of each word of `vocabulary`. The n-grams include the pruned suffixes that KenLM inserts.

        Raises:
            NGramFormatError: the file is damaged, or is a probing model with too many n-grams to recover.
        """
        if isinstance(self._layout, TrieLayout):
            orders = read_trie(self._layout, self._data)
        else:
            orders = read_probing(self._layout, self._data, self.num_words)
        for words, log_probs, backoffs in orders:
            # Minus infinity is log 0. Minus zero, KenLM's mark of an n-gram that no longer n-gram begins with, becomes zero.
            log_probs = np.where(np.isneginf(log_probs), np.float32(LOG10_ZERO), log_probs)
            yield torch.from_numpy(ids[words]), _natural(log_probs), _natural(backoffs + np.float32(0))


def _natural(values: np.ndarray) -> Tensor:
    """Convert log10 values to natural logs."""
    return (torch.from_numpy(values).double() * LN10).float()
