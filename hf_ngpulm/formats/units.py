"""Map the words in files of n-grams to token ids.

There are four notations of a token ("units"): the tokenizer's pieces (`▁the`), decimal ids (`17`), NeMo's encoding (one
character per token, code point = id + 100), and single characters. (Characters are for character vocabularies. The file and the
tokenizer may use different cases and word delimiters.)
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import Tensor

from ..common.files import naming
from ..errors import NGramFormatError
from ..ngrams.table import NGramTable
from ..text.vocabulary import Vocabulary
from ..text.words import WORD_MARKS

LN10 = math.log(10.0)
LOG10_ZERO = -99.0  # log 0 in files of SRILM and KenLM
SPECIAL_WORDS = {"<s>": 0, "<S>": 0, "</s>": 1, "</S>": 1, "<unk>": 2, "<UNK>": 2}  # offsets of their ids after the vocabulary
UNITS = ("piece", "id", "nemo", "char")
NEMO_OFFSET = 100  # NeMo's DEFAULT_TOKEN_OFFSET, which avoids control characters and blanks
WORD_DELIMITERS = ("|", "▁", " ", "_", "<space>")


class NGramFile(ABC):
    """Read a file of n-grams. The words can be mapped to token ids, or stay words.

    Attributes:
        path: the file.
    """

    path: str | os.PathLike[str]

    @property
    @abstractmethod
    def vocabulary(self) -> list[str]:
        """The words in the order of the file, including `<s>`, `</s>` and `<unk>`."""

    @abstractmethod
    def rows(self, ids: np.ndarray) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Return the n-grams of each order as arguments of `NGramTable.from_rows`.

        Ids replace the words. `ids`: the id of each word of `vocabulary`, int32.
        """

    @property
    def words(self) -> list[str]:
        """The words without `<s>`, `</s>` and `<unk>`; `words[i]` has the id `i` in `word_table()`."""
        return [word for word in self.vocabulary if word not in SPECIAL_WORDS]

    def word_table(self) -> NGramTable:
        """Return the table of n-grams over words. The id `i` is `words[i]`."""
        return self.table()

    def table(self, vocabulary: Vocabulary | None = None, units: str = "auto") -> NGramTable:
        """Return the table of n-grams, over tokens or words.

        Args:
            vocabulary: the ASR model's vocabulary, if the file's words are tokens. If None, the ids are indices of `words`.
            units: notation of the tokens, see `hf_ngpulm.formats.units`; ignored without a vocabulary.

        Raises:
            NGramFormatError: the words aren't units of the vocabulary, or the file is damaged.
        """
        words = self.words
        with naming(self.path):
            if vocabulary is not None:
                ids, size = iter(units_to_ids(words, units, vocabulary)[1]), vocabulary.size
            elif not words:
                raise NGramFormatError("the file has no words among its 1-grams")
            elif len(set(words)) < len(words):
                raise NGramFormatError(f"{Counter(words).most_common(1)[0][0]!r} occurs more than once among the 1-grams")
            else:
                ids, size = iter(range(len(words))), len(words)
            id_of = [size + SPECIAL_WORDS[word] if word in SPECIAL_WORDS else next(ids) for word in self.vocabulary]
            rows = list(self.rows(np.array(id_of, dtype=np.int32)))
            # An empty highest order may be dropped only if backing off from it costs nothing.
            while len(rows) > 1 and len(rows[-1][0]) == 0 and not rows[-2][2].any():
                rows.pop()
            return NGramTable.from_rows(size, rows)


def units_to_ids(words: Sequence[str], units: str, vocabulary: Vocabulary) -> tuple[str, list[int]]:
    """Translate the unigrams of a file (without `<s>`, `</s>`, `<unk>`) to token ids.

    Returns:
        The units (detected if `units="auto"`), and the token id of each word.

    Raises:
        NGramFormatError: the words aren't units of this vocabulary. The message shows some words and the expected units.
    """
    if units not in ("auto", *UNITS):
        raise ValueError(f"units should be one of {('auto', *UNITS)}, got {units!r}")
    candidates = UNITS if units == "auto" else (units,)
    misses: dict[str, list[str]] = {}
    for candidate in candidates:
        read = _reader(candidate, vocabulary)
        if read is None:
            continue
        ids = [read(word) for word in words]
        misses[candidate] = [word for word, token_id in zip(words, ids, strict=True) if token_id < 0]
        if not misses[candidate]:
            doubled = _first_double(ids)
            if doubled is not None:
                first, second = (words[i] for i in doubled)
                if first == second:
                    raise NGramFormatError(f"{first!r} occurs more than once among the 1-grams")
                if units == "auto" and candidate == "char":
                    continue
                raise NGramFormatError(
                    f"{first!r} and {second!r} are both token id {ids[doubled[0]]} when read as {candidate} units"
                )
            return candidate, ids
    raise NGramFormatError(_complaint(words, units, vocabulary, misses))


def are_word_level(words: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Return whether the unigrams of a file are whole words, not tokens of the vocabulary in one of the notations."""
    if vocabulary.pieces is None:
        return False
    for candidate in UNITS:
        read = _reader(candidate, vocabulary)
        strange = [word for word in words if read is not None and read(word) < 0]
        if not strange or not _are_whole_words(words, strange):
            return False
    return True


def _reader(units: str, vocabulary: Vocabulary) -> Callable[[str], int] | None:
    """Return a function that maps a word to its token id, or to -1 if the word isn't a token. If the units need the tokenizer's
    pieces, but the vocabulary has no pieces, return None.
    """
    if units == "id":
        return lambda word: _in_range(int(word), vocabulary.size) if re.fullmatch("[0-9]{1,18}", word) else -1
    if units == "nemo":
        return lambda word: _in_range(ord(word) - NEMO_OFFSET, vocabulary.size) if len(word) == 1 else -1
    if vocabulary.pieces is None:
        return None
    by_piece = {piece: token_id for token_id, piece in enumerate(vocabulary.pieces) if piece is not None}
    if units == "piece":
        return lambda word: by_piece.get(word, -1)
    delimiter = next((by_piece[mark] for mark in WORD_DELIMITERS if mark in by_piece), -1)

    def read_char(word: str) -> int:
        if word in WORD_DELIMITERS:
            return by_piece.get(word, delimiter)
        if len(word) != 1:
            return -1
        return next((by_piece[form] for form in (word, word.lower(), word.upper()) if form in by_piece), -1)

    return read_char


def _in_range(token_id: int, size: int) -> int:
    return token_id if 0 <= token_id < size else -1


def _first_double(ids: list[int]) -> tuple[int, int] | None:
    seen: dict[int, int] = {}
    for row, token_id in enumerate(ids):
        if token_id in seen:
            return seen[token_id], row
        seen[token_id] = row
    return None


def _complaint(words: Sequence[str], units: str, vocabulary: Vocabulary, misses: dict[str, list[str]]) -> str:
    total = len(words)
    if not misses:
        return f"{units} units need the ASR model's tokenizer to be read: pass tokenizer=..."
    best = min(misses, key=lambda candidate: len(misses[candidate]))
    strange = misses[best]
    name = vocabulary.tokenizer_id or f"a vocabulary of {vocabulary.size} ids"
    expected = f"units of {name}"
    if vocabulary.pieces is not None:
        examples = [piece for piece in vocabulary.pieces if piece][-3:]
        expected += f" (pieces such as {', '.join(map(repr, examples))}; decimal ids; NeMo's characters; single characters)"
    else:
        expected += " (decimal ids, or NeMo's one character per token; pieces need tokenizer=...)"
    shown = ", ".join(repr(word) for word in strange[:3])
    if vocabulary.pieces is not None and _are_whole_words(words, strange):
        return (
            f"this is a word-level language model (units such as {shown}), but token-level units were expected: "
            f'{expected}. The ways out: units="word" (--unit word) spells its words in tokens; or train one of the text it was '
            "made of, with the ASR model's tokenizer: `hf-ngpulm train TEXT --tokenizer ASR_MODEL --output my-lm`, or "
            "NGramLM.from_texts(texts, tokenizer=...)"
        )
    if len(strange) <= total // 2:
        return (
            f"{len(strange)} of {total} unigrams, such as {shown}, are outside the vocabulary when read as {best} "
            f"units; expected {expected}. Is this the tokenizer that the language model was made with?"
        )
    return (
        f"found units such as {shown} ({len(strange)} of {total} unigrams can't be read as {best} units); expected {expected}"
    )


def _are_whole_words(words: Sequence[str], strange: list[str]) -> bool:
    """Return whether a file's unigrams are whole words. `strange`: the words that aren't tokens. Most of these words must
    consist of letters, and no word of the file may contain a tokenizer's mark of a word boundary.
    """
    if any(mark in word for word in words for mark in WORD_MARKS):
        return False
    return sum(len(word) > 1 and word.isalpha() for word in strange) > len(strange) // 2
