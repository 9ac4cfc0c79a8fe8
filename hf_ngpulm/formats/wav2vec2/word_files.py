"""Read pyctcdecode's files of a word-level language model: KenLM's file, a list of words, and four settings."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...automaton import LMParts
from ...automaton.convert import MISSING_LOG_PROB
from ...common.checks import SWITCH, WEIGHT, Kind, an_object, check, check_entries
from ...errors import NGramFormatError
from ...lexicon.composition import FORBIDDEN
from ...lexicon.spellings import SHOWN
from ...ngrams.table import NGramTable
from ..files import ARPA, KENLM, format_of
from ..kenlm import KenLMFile
from ..units import NGramFile
from .constants import (
    AVG_TOKEN_LEN,
    DEFAULT_ALPHA,
    DEFAULT_BETA,
    DEFAULT_SCORE_LM_BOUNDARY,
    DEFAULT_UNK_LOGP_OFFSET,
    LOG_BASE_CHANGE_FACTOR,
)

logger = logging.getLogger(__name__)

# Number of segmentations of a word (those with the fewest pieces), as no tokenizer tells which one the recogniser learned.
CUTTINGS = 16
ATTRS_FILE, UNIGRAMS_FILE = "attrs.json", "unigrams.txt"
LONGEST_WORD = 30  # characters; a longer unfinished unknown word is charged the same
# Entries in a list of words that aren't words.
SPECIAL = frozenset({"", "<s>", "</s>", "<unk>", "<UNK>"})


_OFFSET = Kind(f"{WEIGHT.right}, or minus infinity", lambda value: WEIGHT.is_right(value) or value == -math.inf, float)
_ALPHA = Kind("0, or at least 1e-6 in size", lambda value: not 0 < abs(value) < 1e-6)  # other weights are divided by it
ATTRS = {"alpha": WEIGHT, "beta": WEIGHT, "unk_score_offset": _OFFSET, "score_boundary": SWITCH}


@dataclass(frozen=True)
class Attrs:
    """Hold the settings in `attrs.json`: pyctcdecode's weights of a language model."""

    alpha: float = DEFAULT_ALPHA  # weight of the model's log-probabilities
    beta: float = DEFAULT_BETA  # natural log, added for each word
    # log10, added to the log10 probability of unknown words; minus infinity forbids them.
    unk_score_offset: float = DEFAULT_UNK_LOGP_OFFSET
    score_boundary: bool = DEFAULT_SCORE_LM_BOUNDARY  # whether `<s>` and `</s>` are scored

    @property
    def offset(self) -> float:
        """`unk_score_offset` as a natural log; minus infinity becomes `FORBIDDEN`."""
        return FORBIDDEN if self.unk_score_offset == -math.inf else LOG_BASE_CHANGE_FACTOR * self.unk_score_offset

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Attrs:
        """Read `attrs.json`. If an entry is missing, log a warning and use pyctcdecode's default. Raises NGramFormatError if
        the file isn't JSON, or an entry has a wrong type or value.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise NGramFormatError(f"{path}: isn't JSON: {error}") from None
        values = {name: value for name, value in an_object(values, str(path), "it").items() if name in ATTRS}
        for kinds in (ATTRS, {"alpha": _ALPHA}):
            check_entries(values, {name: kind for name, kind in kinds.items() if name in values}, str(path))
        for name in (name for name in ATTRS if name not in values):
            logger.warning("%s has no %s; pyctcdecode's default is taken, %s", path, name, getattr(cls, name))
        return cls(**{name: ATTRS[name].convert(value) for name, value in values.items()})


def read_unigrams(path: str | os.PathLike[str]) -> list[str] | None:
    """Return the words of `unigrams.txt`. Each line has a word. For a file without words return None, because the file
    doesn't restrict the vocabulary. Raises NGramFormatError if the file isn't UTF-8 text.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise NGramFormatError(f"{path}: not UTF-8 text: {error}") from None
    return words_of(lines)


def words_of(unigrams: Iterable[str] | None) -> list[str] | None:
    """Return the words without special entries and duplicates; None if there are no other words."""
    if isinstance(unigrams, str):
        raise TypeError(f"unigrams should be a list of words, got the text {unigrams[:60]!r}")
    words = [*dict.fromkeys(word.strip() for word in unigrams or () if word.strip() not in SPECIAL)]
    return words or None


def kenlm_file_in(folder: Path) -> Path:
    """Return the KenLM file of a folder. A binary is preferred to an ARPA file, because it is read faster. Raises
    NGramFormatError if the folder has no such file, or several such files of the same kind.
    """
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    for kind in (KENLM, ARPA):
        files = [name for name in names if name.endswith(kind.suffixes)]
        if len(files) > 1:
            raise NGramFormatError(f"{folder} holds several language models, {', '.join(files)}; remove all but one")
        if files:
            return folder / files[0]
    raise NGramFormatError(
        f"{folder} holds no KenLM file (*.bin, *.binary, *.arpa, *.arpa.gz); there is {', '.join(names) or 'nothing'}"
    )


def read_words(path: str | os.PathLike[str], unigrams: Collection[str] | None) -> tuple[NGramTable, list[str]]:
    """Return the table of n-grams over words, and the word of each id.

    Args:
        path: an ARPA file (also compressed) or a binary of KenLM.
        unigrams: the words, if the file is a binary with only hashes of words.

    Raises:
        NGramFormatError: the file is damaged, or it is a binary without words although `unigrams` is None.
        FileNotFoundError: there is no such file.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{os.fspath(path)}: no such file; name an ARPA file or a KenLM binary")
    file = format_of(path).open(path)
    if not isinstance(file, NGramFile):
        raise NGramFormatError(f"{path}: holds token ids, not words; name an ARPA file or a KenLM binary")
    if isinstance(file, KenLMFile) and not file.has_words:
        if unigrams is None:
            raise NGramFormatError(
                f"{path}: the file holds no word strings, only their hashes, and no list of its words was given: pass "
                "unigrams=[...] (unigrams.txt), or build it anew without build_binary's -v"
            )
        file.name_words(unigrams)
    return file.word_table(), file.words


def unknown_log_prob(table: NGramTable) -> float:
    """Return the natural log-probability of `<unk>`; `MISSING_LOG_PROB` for a model without `<unk>`."""
    row = table.row_of_unigram(table.unk)
    return MISSING_LOG_PROB if row is None else float(table.orders[0].log_probs[row])


def charged_to_unknown_words(attrs: Attrs, unknown: float) -> list[float]:
    """Return the scores of an unfinished unknown word of 0, 1, ... characters. `unknown`: the natural log-probability of
    `<unk>`.

    pyctcdecode's search charges an unfinished unknown word the offset (here a natural log, without a weight), and an unfinished
    known word nothing. Here the search charges a known word its language model cost letter by letter. So at the length of the
    average word, an unknown word must also have been charged its whole language model cost. Otherwise unknown words push known
    words out of the beam, although complete unknown words cost more.
    """
    offset, share = max(min(attrs.unk_score_offset, 0.0), FORBIDDEN), attrs.alpha * unknown
    return [offset * max(1.0, n / AVG_TOKEN_LEN) + share * min(1.0, n / AVG_TOKEN_LEN) for n in range(LONGEST_WORD + 1)]


def whole_unknown_word(attrs: Attrs, unknown: float) -> float:
    """Return the score of a finished unknown word. `unknown`: the natural log-probability of `<unk>`."""
    return attrs.alpha * (unknown + attrs.offset)


def piece_lengths(parts: LMParts) -> list[int]:
    """Return the number of characters of each token, without the mark of a word's beginning."""
    return [len((piece or "").lstrip("▁Ġ")) for piece in parts.pieces or ()]


def checked_attrs(values: dict[str, Any]) -> Attrs:
    """Check the weights of a language model, and return the weights. Raises ValueError if a weight isn't a finite number or is
    too large. (`unk_score_offset` may be minus infinity.)
    """
    weights = {name: check(name, value, ATTRS[name]) for name, value in values.items() if name != "score_boundary"}
    return Attrs(**weights, score_boundary=values["score_boundary"])


def with_unlisted(
    table: NGramTable, words: Sequence[str], unigrams: Collection[str] | None, case: str, offset: float
) -> NGramTable:
    """Return a table in which the offset is added to each n-gram that ends with an unlisted word.

    pyctcdecode adds the offset to an unlisted word's own log-probability, and the language model continues after the word.

    Args:
        table: the n-grams of the language model.
        words: the word of each id.
        unigrams: the listed words. If None, or if the language model has no listed word, all words count as listed.
        case: see `hf_ngpulm.lexicon.compose`.
        offset: a natural log, added to log p of an unlisted word.
    """
    if unigrams is None:
        return table
    change = {"lower": str.lower, "upper": str.upper}.get(case, str)
    listed, known = set(unigrams), {written for word in words for written in (word, change(word))}
    missing = [word for word in unigrams if word not in known]
    is_unlisted = torch.tensor([word not in listed and change(word) not in listed for word in words])
    if missing:
        _tell(missing, "of the unigrams aren't in the language model", "they stay unknown")
    if bool(is_unlisted.all()):
        return table
    if bool(is_unlisted.any()):
        unlisted = [word for word, left_out in zip(words, is_unlisted.tolist(), strict=True) if left_out]
        _tell(unlisted, "of the language model aren't among the unigrams", "each costs unk_score_offset")
    penalty = torch.zeros(table.num_ids)
    penalty[: len(words)] = offset * is_unlisted
    orders = [replace(order, log_probs=order.log_probs + penalty[order.tokens.to(torch.int64)]) for order in table.orders]
    return NGramTable(table.vocab_size, tuple(orders))


def _tell(words: Sequence[str], what: str, then: str) -> None:
    logger.warning("%s words %s, such as %s; %s", f"{len(words):,}", what, ", ".join(map(repr, words[:SHOWN])), then)
