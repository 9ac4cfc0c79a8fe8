"""Define pyctcdecode's word-level language models and hotwords."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import NGramFormatError
from ..formats.arpa import ArpaFile
from ..formats.wav2vec2.constants import (
    AVG_TOKEN_LEN,
    DEFAULT_ALPHA,
    DEFAULT_BETA,
    DEFAULT_HOTWORD_WEIGHT,
    DEFAULT_SCORE_LM_BOUNDARY,
    DEFAULT_UNK_LOGP_OFFSET,
)
from ..formats.wav2vec2.word_files import (
    ATTRS_FILE,
    UNIGRAMS_FILE,
    Attrs,
    checked_attrs,
    kenlm_file_in,
    read_unigrams,
    read_words,
    words_of,
)

logger = logging.getLogger(__name__)

__all__ = ["HotwordScorer", "LanguageModel", "MultiLanguageModel", "load_unigram_set_from_arpa"]


def load_unigram_set_from_arpa(arpa_path: str | os.PathLike[str]) -> set[str]:
    """Return the words of an ARPA file (also .gz, .bz2, .xz).

    Raises:
        NGramFormatError: the file is damaged, or has no words.
    """
    words = set(ArpaFile(arpa_path).words)
    if not words:
        raise NGramFormatError(f"{os.fspath(arpa_path)}: the file has no words among its 1-grams")
    return words


class LanguageModel:
    """Hold a KenLM file, its words, and the weights for decoding.

    Args:
        kenlm_model: an ARPA file (also .gz, .bz2, .xz), a binary of KenLM, or a `kenlm.Model` (only its path is used).
        unigrams: the known words; by default all words of the file.
        alpha: weight of the model's log-probabilities.
        beta: score added for each word, natural log.
        unk_score_offset: log10, added to the log-probability of unknown words; minus infinity forbids them.
        score_boundary: whether `<s>` and `</s>` are scored.

    Attributes:
        alpha, beta, unk_score_offset, score_boundary: may be set at any time; a decoder checks them when it decodes.

    Raises:
        NGramFormatError: the file is damaged, or a binary has no words and `unigrams` is None.
    """

    JSON_ATTRS = ("alpha", "beta", "unk_score_offset", "score_boundary")

    def __init__(
        self,
        kenlm_model: Any,
        unigrams: Collection[str] | None = None,
        alpha: float = DEFAULT_ALPHA,
        beta: float = DEFAULT_BETA,
        unk_score_offset: float = DEFAULT_UNK_LOGP_OFFSET,
        score_boundary: bool = DEFAULT_SCORE_LM_BOUNDARY,
    ) -> None:
        path = getattr(kenlm_model, "path", kenlm_model)
        self.path = os.fsdecode(path)
        self.unigrams = words_of(unigrams)
        self.table, self.words = read_words(self.path, self.unigrams)
        self.alpha = self.beta = self.unk_score_offset = 0.0
        self.score_boundary = True
        self.reset_params(alpha=alpha, beta=beta, unk_score_offset=unk_score_offset, score_boundary=score_boundary)

    @property
    def order(self) -> int:
        """Return the number of words in the longest n-grams."""
        return self.table.order

    @property
    def attrs(self) -> Attrs:
        """Return the current weights, after checking them.

        Raises:
            ValueError: a weight isn't a finite number, or is too large.
        """
        return checked_attrs({name: getattr(self, name) for name in self.JSON_ATTRS})

    def reset_params(self, **params: Any) -> None:
        """Set some of `alpha`, `beta`, `unk_score_offset` and `score_boundary`; None keeps the present value.

        Raises:
            TypeError: a parameter has another name.
            ValueError: a value has the wrong type.
        """
        for name, value in params.items():
            if name not in self.JSON_ATTRS:
                raise TypeError(f"there is no parameter {name!r}, but {', '.join(self.JSON_ATTRS)}")
            if value is None:
                continue
            is_switch = isinstance(value, bool)
            if is_switch != (name == "score_boundary") or not isinstance(value, int | float):
                should_be = "True or False" if name == "score_boundary" else "a number"
                raise ValueError(f"{name} should be {should_be}, got {value!r}")
            setattr(self, name, value if is_switch else float(value))

    @cached_property
    def _unigram_set(self) -> frozenset[str]:
        """Return the words that are both in `unigrams` and in the KenLM file."""
        return frozenset(self.unigrams or ()) & frozenset(self.words)

    @cached_property
    def _prefixes(self) -> WordPrefixes:
        return WordPrefixes(self._unigram_set)

    def score_partial_token(self, partial_token: str) -> float:
        """Return pyctcdecode's charge for an unfinished word.

        The charge is 0 if a unigram begins with these characters. Otherwise the charge is `unk_score_offset`; above
        `AVG_TOKEN_LEN` characters the charge grows in proportion to the number of characters. This package's search charges
        differently, see `hf_ngpulm.formats.wav2vec2.word_files.charged_to_unknown_words`.
        """
        if self._prefixes.has_node(partial_token):
            return 0.0
        return self.unk_score_offset * max(1.0, len(partial_token) / AVG_TOKEN_LEN)

    def save_to_dir(self, filepath: str | os.PathLike[str]) -> None:
        """Write `attrs.json`, `unigrams.txt` and a copy of KenLM's file to a folder."""
        folder = Path(filepath)
        (folder / ATTRS_FILE).write_text(json.dumps(asdict(self.attrs)), encoding="utf-8")
        words = "".join(f"{word}\n" for word in sorted(self.unigrams or ()))
        (folder / UNIGRAMS_FILE).write_text(words, encoding="utf-8")
        shutil.copy2(self.path, folder / Path(self.path).name)

    @staticmethod
    def parse_directory_contents(filepath: str | os.PathLike[str]) -> dict[str, str]:
        """Return the paths of the three files of a folder: "json_attrs", "unigrams" and "kenlm".

        Raises:
            NGramFormatError: one of the files is missing, or the folder has other files. Hidden files are ignored.
        """
        folder = Path(filepath)
        names = {path.name for path in folder.iterdir() if not path.name.startswith((".", "__"))}
        missing = sorted({ATTRS_FILE, UNIGRAMS_FILE} - names)
        if missing or len(names) != 3:
            raise NGramFormatError(
                f"{folder} should hold {ATTRS_FILE}, {UNIGRAMS_FILE} and a KenLM file, and holds {', '.join(sorted(names))}"
            )
        paths = {"json_attrs": folder / ATTRS_FILE, "unigrams": folder / UNIGRAMS_FILE, "kenlm": kenlm_file_in(folder)}
        return {name: str(path) for name, path in paths.items()}

    @classmethod
    def load_from_dir(cls, filepath: str | os.PathLike[str]) -> LanguageModel:
        """Read a folder written by `save_to_dir`, here or in pyctcdecode.

        Raises:
            NGramFormatError: a file is missing or damaged.
        """
        folder = Path(filepath)
        for name in (ATTRS_FILE, UNIGRAMS_FILE):
            if not (folder / name).is_file():
                raise NGramFormatError(f"{folder} has no {name}; NGramLM.from_wav2vec2_with_lm does without it")
        attrs = Attrs.read(folder / ATTRS_FILE)
        return cls(kenlm_file_in(folder), read_unigrams(folder / UNIGRAMS_FILE), **asdict(attrs))


class MultiLanguageModel:
    """Combine several language models. A decoder uses the mean of the models' scores.

    Args:
        language_models: at least two models, each with its own weights.

    Raises:
        ValueError: there are fewer than two models.
        TypeError: a model isn't a `LanguageModel`.
    """

    def __init__(self, language_models: Sequence[LanguageModel]) -> None:
        for lm in language_models:
            if not isinstance(lm, LanguageModel):
                raise TypeError(f"MultiLanguageModel takes LanguageModels, got {type(lm).__name__}")
        if len(language_models) < 2:
            raise ValueError(f"MultiLanguageModel takes two language models at least, got {len(language_models)}")
        self.language_models = list(language_models)

    @property
    def order(self) -> int:
        """Return the number of words in the longest n-grams of all models."""
        return max(lm.order for lm in self.language_models)

    def score_partial_token(self, partial_token: str) -> float:
        """Return the mean of the models' charges for an unfinished word."""
        return sum(lm.score_partial_token(partial_token) for lm in self.language_models) / len(self.language_models)

    def reset_params(self, **params: Any) -> None:
        """Set parameters of all models, see `LanguageModel.reset_params`."""
        for lm in self.language_models:
            lm.reset_params(**params)

    def save_to_dir(self, filepath: str | os.PathLike[str]) -> None:
        """Refuse to save several models, because a folder of pyctcdecode holds one language model.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"a folder holds one language model, these are {len(self.language_models)}: save each of them by itself"
        )


class WordPrefixes:
    """Look up words by prefix. Scoring may use pygtrie's `CharTrie` instead; this class has the same methods."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(set(words))

    def has_node(self, prefix: str) -> bool:
        """Return whether a word has this prefix."""
        return next(self.iterkeys(prefix), None) is not None

    def iterkeys(self, prefix: str = "") -> Iterator[str]:
        """Yield the words with this prefix."""
        for place in range(bisect_left(self._words, prefix), len(self._words)):
            if not self._words[place].startswith(prefix):
                return
            yield self._words[place]


class HotwordScorer:
    """Score the hotwords in a text.

    Args:
        match_ptn: a regular expression for complete hotwords.
        char_trie: the prefixes of all hotwords: `WordPrefixes`, or pygtrie's `CharTrie`.
        weight: bonus of each hotword, natural log.
    """

    def __init__(self, match_ptn: re.Pattern[str], char_trie: Any, weight: float = DEFAULT_HOTWORD_WEIGHT) -> None:
        self._match_ptn = match_ptn
        self._char_trie = char_trie
        self.weight = weight

    @classmethod
    def build_scorer(cls, hotwords: Iterable[str] | None = None, weight: float = DEFAULT_HOTWORD_WEIGHT) -> HotwordScorer:
        """Make a scorer from texts; each word of a text is a hotword.

        A single string is split into words, with a warning. (pyctcdecode would take the letters of the string.)
        """
        if isinstance(hotwords, str):
            logger.warning("hotwords should be a list; of the text %r its words are taken: pass [%r]", hotwords, hotwords)
            hotwords = [hotwords]
        words = list(dict.fromkeys(word for text in hotwords or () for word in text.split()))
        longest_first = sorted(words, key=len, reverse=True)
        pattern = "|".join(rf"(?<!\S){re.escape(word)}(?!\S)" for word in longest_first)
        return cls(re.compile(pattern or r"(?!)"), WordPrefixes(words), weight)

    def __contains__(self, item: str) -> bool:
        """Return whether a hotword has this prefix."""
        return bool(self._char_trie.has_node(item))

    def score(self, text: str) -> float:
        """Return the bonus of the hotwords in a text, natural log."""
        return self.weight * len(self._match_ptn.findall(text))

    def score_partial_token(self, token: str) -> float:
        """Return the bonus of an unfinished word. The bonus is the weight times the word's length, divided by the length of the
        shortest hotword that begins with the word.
        """
        if token not in self:
            return 0.0
        return self.weight * len(token) / max(1, min(map(len, self._char_trie.iterkeys(token))))

    @property
    def words(self) -> tuple[str, ...]:
        """Return all hotwords."""
        return tuple(self._char_trie.iterkeys())
