"""The files of a word-level language model as pyctcdecode has them: KenLM's, a list of words, and four numbers."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..automaton.convert import MISSING_LOG_PROB
from ..errors import NGramFormatError
from ..kenlm import KenLMFile, is_kenlm_binary, read_binary
from ..ngrams.arpa import ArpaFile
from ..ngrams.table import NGramTable
from .constants import (
    DEFAULT_ALPHA,
    DEFAULT_BETA,
    DEFAULT_SCORE_LM_BOUNDARY,
    DEFAULT_UNK_LOGP_OFFSET,
    LOG_BASE_CHANGE_FACTOR,
)

if TYPE_CHECKING:
    from ..language_model import NGramLM

logger = logging.getLogger(__name__)

ATTRS_FILE, UNIGRAMS_FILE = "attrs.json", "unigrams.txt"
BINARY_ENDINGS = (".bin", ".binary")
ARPA_ENDINGS = (".arpa", ".arpa.gz", ".arpa.bz2", ".arpa.xz")
# Characters of unknown words: up to the first they are charged the same, and from the second on again.
AVERAGE_WORD, LONGEST_WORD = 6, 30
# What lists of words have out of language models, and that are none.
SPECIAL = frozenset({"", "<s>", "</s>", "<unk>", "<UNK>"})


@dataclass(frozen=True)
class Attrs:
    """What pyctcdecode weighs a language model with.

    Args:
        alpha: weight of its log-probabilities.
        beta: natural log, added for each word.
        unk_score_offset: log10 (as the model's own log-probabilities), added to those of unknown words.
        score_boundary: whether `<s>` and `</s>` count.
    """

    alpha: float = DEFAULT_ALPHA
    beta: float = DEFAULT_BETA
    unk_score_offset: float = DEFAULT_UNK_LOGP_OFFSET
    score_boundary: bool = DEFAULT_SCORE_LM_BOUNDARY

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Attrs:
        """Of `attrs.json`; what it lacks is pyctcdecode's default, with a warning.

        Raises:
            NGramFormatError: it isn't JSON, or an entry isn't what it should be.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise NGramFormatError(f"{path}: isn't JSON: {error}") from None
        if not isinstance(values, dict):
            raise NGramFormatError(f"{path}: should be an object, is {str(values)[:80]!r}")
        found: dict[str, Any] = {}
        for entry in fields(cls):
            if entry.name not in values:
                logger.warning("%s has no %s; pyctcdecode's default is taken, %s", path, entry.name, entry.default)
                continue
            value = values[entry.name]
            is_switch = isinstance(value, bool)
            if entry.name == "score_boundary":
                if not is_switch:
                    raise NGramFormatError(f"{path}: score_boundary should be true or false, is {str(value)[:80]!r}")
            elif is_switch or not isinstance(value, int | float) or not abs(value) <= 1e6:
                raise NGramFormatError(f"{path}: {entry.name} should be a number, is {str(value)[:80]!r}")
            found[entry.name] = value if is_switch else float(value)
        return cls(**found)


def read_unigrams(path: str | os.PathLike[str]) -> list[str] | None:
    """The words of `unigrams.txt`, one a line; None of an empty file, which says nothing of words.

    Raises:
        NGramFormatError: it isn't UTF-8 text.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise NGramFormatError(f"{path}: not UTF-8 text: {error}") from None
    return words_of(lines)


def words_of(unigrams: Iterable[str] | None) -> list[str] | None:
    """Words without what is none, each once; None if nothing is left."""
    if isinstance(unigrams, str):
        raise TypeError(f"unigrams should be a list of words, got the text {unigrams[:60]!r}")
    found = [*dict.fromkeys(word.strip() for word in unigrams or () if word.strip() not in SPECIAL)]
    return found or None


def kenlm_file_in(folder: Path) -> Path:
    """The KenLM file of a folder; a binary before an ARPA file, which takes longer to read.

    Raises:
        NGramFormatError: there is none, or several of a kind.
    """
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    for endings in (BINARY_ENDINGS, ARPA_ENDINGS):
        found = [name for name in names if name.endswith(endings)]
        if len(found) > 1:
            raise NGramFormatError(f"{folder} holds several language models, {', '.join(found)}; leave the one that is meant")
        if found:
            return folder / found[0]
    raise NGramFormatError(
        f"{folder} holds no KenLM file (*.bin, *.binary, *.arpa, *.arpa.gz); there is {', '.join(names) or 'nothing'}"
    )


def read_words(path: str | os.PathLike[str], unigrams: Collection[str] | None) -> tuple[NGramTable, list[str]]:
    """N-grams of words, and the words that their ids stand for.

    Args:
        path: an ARPA file (also compressed) or a binary of KenLM.
        unigrams: its words, for a binary that holds only their hashes.

    Raises:
        NGramFormatError: a damaged file, or a binary without words and no unigrams.
        FileNotFoundError: there is no such file.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{os.fspath(path)}: no such file; name an ARPA file or a KenLM binary")
    if not is_kenlm_binary(path):
        arpa = ArpaFile(path)
        return arpa.word_table(), arpa.words
    file: KenLMFile = read_binary(path)
    if not file.has_words:
        if unigrams is None:
            raise NGramFormatError(
                f"{path}: the file holds no word strings, only their hashes, and no list of its words was given: pass "
                "unigrams=[...] (unigrams.txt), or build it anew without build_binary's -v"
            )
        file.name_words(unigrams)
    return file.word_table(), file.words


def unknown_log_prob(table: NGramTable) -> float:
    """Natural log-probability of `<unk>`, also of a model without it."""
    row = table.row_of_unigram(table.unk)
    return MISSING_LOG_PROB if row is None else float(table.orders[0].log_probs[row])


def charged_to_unknown_words(attrs: Attrs, unknown: float) -> list[float]:
    """What an unknown word of 0, 1, ... characters scores until it ends.

    pyctcdecode's search charges it its offset (a natural log here, and unweighted), and known words nothing before they end.
    Here known words pay for what the language model thinks of them letter by letter. So unknown ones have to pay for that,
    too, by the time that they are as long as the average word: without it they push known words out of the beam, and cost
    more than these when it is too late.
    """
    offset, share = min(attrs.unk_score_offset, 0.0), attrs.alpha * unknown
    return [offset * max(1.0, n / AVERAGE_WORD) + share * min(1.0, n / AVERAGE_WORD) for n in range(LONGEST_WORD + 1)]


def whole_unknown_word(attrs: Attrs, unknown: float) -> float:
    """What it scores when it has ended, `unknown` being the natural log-probability of `<unk>`."""
    return attrs.alpha * (unknown + LOG_BASE_CHANGE_FACTOR * attrs.unk_score_offset)


def piece_lengths(lm: NGramLM) -> list[int]:
    """Characters of each token of a language model, without the mark of words' beginnings."""
    return [len((piece or "").lstrip("▁Ġ")) for piece in lm.pieces or ()]


def finite(name: str, value: Any) -> float:
    """A number that weights may be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} should be a finite number, got {value!r}")
    return float(value)
