"""KenLM's binary files, opened."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from ...errors import NGramFormatError
from ...ngrams.table import NGramTable
from ...text.vocabulary import Vocabulary
from ..units import units_to_ids
from .header import Header, read_header
from .to_table import Ngrams, ngrams_of_levels, table_from_ngrams
from .trie import TrieLayout, read_levels, trie_layout
from .vocabulary import read_probing, read_sorted

_BOS, _EOS = "<s>", "</s>"


def read_binary(path: str | os.PathLike[str]) -> KenLMFile:
    """Open a binary file that KenLM's `build_binary` made.

    Every size in the file is held to the file's own size before anything is read by it, and the vocabulary is checked; n-grams
    are read by `KenLMFile.table`.

    Raises:
        NGramFormatError: not such a file, a damaged one, or one of a version or type that isn't supported.
        OSError: the file can't be opened.
    """
    if os.path.isdir(path):
        raise NGramFormatError(f"{os.fspath(path)}: a folder, not a KenLM binary file")
    if os.path.getsize(path) == 0:
        raise NGramFormatError(f"{os.fspath(path)}: the file is empty")
    # Copied on writing: nobody writes, but torch takes no tensors that can't be written to.
    data = np.memmap(path, dtype=np.uint8, mode="c").view(np.ndarray)
    try:
        return KenLMFile(path, data)
    except NGramFormatError as error:
        raise NGramFormatError(f"{os.fspath(path)}: {error}") from None


class KenLMFile:
    """A KenLM binary file: see `read_binary`.

    Word ids are KenLM's: 0 is `<unk>`, the others are in the order of the file.
    """

    def __init__(self, path: str | os.PathLike[str], data: np.ndarray) -> None:
        self.path = os.fspath(path)
        self._data = data
        self._header = header = read_header(data)
        self._layout: TrieLayout | None = None
        if header.model_type == "probing":
            # Imported here: tries need none of it.
            from .probing.tables import probing_layout, vocabulary_size

            words_end = header.size + vocabulary_size(header)
            self._probing_layout = probing_layout(header, words_end)
            self._search_end = self._probing_layout.end
        else:
            words_end = header.size + 8 * (
                1 + header.counts[0]
            )  # their number, and a hash for each (<unk>'s place stays empty)
            self._layout = trie_layout(header, data, words_end)
            self._search_end = self._layout.end
        self._check_size()
        read = read_probing if header.model_type == "probing" else read_sorted
        self._vocabulary = read(data[header.size : words_end], header.counts[0])

    def _check_size(self) -> None:
        size, end = self._data.size, self._search_end
        if size < end:
            raise NGramFormatError(f"the file is cut short: by its header it should have {end} bytes, it has {size}")
        if not self._header.has_words and size > end:
            raise NGramFormatError(f"by its header the file should have {end} bytes and no word strings, it has {size} bytes")

    @property
    def header(self) -> Header:
        return self._header

    @property
    def model_type(self) -> str:
        """KenLM's name: probing, trie, quant_trie, array_trie or quant_array_trie."""
        return self._header.model_type

    @property
    def order(self) -> int:
        return self._header.order

    @property
    def counts(self) -> tuple[int, ...]:
        """N-grams of each order, as the header gives them."""
        return self._header.counts

    @property
    def num_words(self) -> int:
        """Words of the vocabulary, `<s>`, `</s>` and `<unk>` included."""
        return len(self._vocabulary)

    @property
    def has_words(self) -> bool:
        """Return whether the file holds the words themselves, and not their hashes alone."""
        return self._header.has_words

    @property
    def quantised_bits(self) -> tuple[int, int] | None:
        """Bits of a log-probability and of a backoff, None where they are whole floats."""
        if self._layout is None or not self._layout.quantised:
            return None
        return self._layout.log_prob_bits, self._layout.backoff_bits

    @cached_property
    def vocabulary(self) -> list[str]:
        """The words by their ids, `<s>`, `</s>` and `<unk>` included."""
        if not self._header.has_words:
            raise NGramFormatError(
                f"{self.path}: the file holds no word strings, only their hashes; build it anew without build_binary's -v, or "
                "tell the words (unigrams=, where there is such an argument)"
            )
        try:
            return self._vocabulary.read_strings(self._data[self._search_end :])
        except NGramFormatError as error:
            raise NGramFormatError(f"{self.path}: {error}") from None

    def name_words(self, words: Iterable[str]) -> None:
        """Give a file without word strings those of some words, which their hashes tell; the others keep names without letters.

        Raises:
            NGramFormatError: none of the words is the model's.
        """
        named = [*dict.fromkeys(words)]
        ids = self._vocabulary.ids([_BOS, _EOS, *named]).tolist()
        if not any(ids[2:]):
            shown = ", ".join(map(repr, named[:5]))
            raise NGramFormatError(f"{self.path}: none of the {len(named)} words given, such as {shown}, is the model's")
        by_id = {token: word for token, word in zip(ids, [_BOS, _EOS, *named]) if token}
        self.__dict__["vocabulary"] = ["<unk>", *(by_id.get(token, f"<{token}>") for token in range(1, self.num_words))]

    @property
    def words(self) -> list[str]:
        """The words without `<s>`, `</s>` and `<unk>`: what the token ids 0, 1, ... of `table()` stand for."""
        return [word for word in self.vocabulary[1:] if word not in (_BOS, _EOS)]

    def word_ids(self, words: list[str]) -> np.ndarray:
        """Return ids of words, int64 `[N]`; 0, that of `<unk>`, for those that the model doesn't know."""
        return self._vocabulary.ids(words)

    def table(self, vocabulary: Vocabulary | None = None, units: str = "auto") -> NGramTable:
        """Return the n-grams of the model: those of a trie, or of a probing model of moderate size, found out from their
        hashes.

        Args:
            vocabulary: the ids that the model's words stand for, if they are the tokens of an ASR model; without it the token
                ids are the places of the words in `words`.
            units: with a vocabulary, how the words write its tokens, see `hf_ngpulm.formats.units`.

        Raises:
            NGramFormatError: a file without word strings, words that aren't units of the vocabulary, a probing model that is
                too large (see `probing.listing`), or a damaged file.
        """
        words = self.words
        try:
            ids = range(len(words)) if vocabulary is None else units_to_ids(words, units, vocabulary)[1]
            vocab_size = len(words) if vocabulary is None else vocabulary.size
            specials = {_BOS: vocab_size, _EOS: vocab_size + 1}
            ordinary = iter(ids)
            token_ids = [vocab_size + 2]
            token_ids += [specials[word] if word in specials else next(ordinary) for word in self.vocabulary[1:]]
            return table_from_ngrams(self._ngrams(), np.array(token_ids, dtype=np.int64), vocab_size)
        except NGramFormatError as error:
            raise NGramFormatError(f"{self.path}: {error}") from None

    def word_table(self) -> NGramTable:
        """Return the n-grams, of words: id `i` is `words[i]`."""
        return self.table()

    def _ngrams(self) -> list[Ngrams]:
        if self._layout is not None:
            return ngrams_of_levels(read_levels(self._layout, self._data))
        from .probing.listing import list_ngrams
        from .probing.tables import read_tables

        return list_ngrams(read_tables(self._probing_layout, self._data, self.num_words), self.num_words)
