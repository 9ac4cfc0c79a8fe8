"""A word-level language model as pyctcdecode's decoder holds one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import NGramFormatError
from .constants import DEFAULT_ALPHA, DEFAULT_BETA, DEFAULT_SCORE_LM_BOUNDARY, DEFAULT_UNK_LOGP_OFFSET
from .word_files import ATTRS_FILE, UNIGRAMS_FILE, Attrs, finite, kenlm_file_in, read_unigrams, read_words, words_of


class LanguageModel:
    """KenLM's file, its words, and what it is weighed with.

    Args:
        kenlm_model: an ARPA file (also .gz, .bz2, .xz) or a binary of KenLM; of a `kenlm.Model` only the path is used.
        unigrams: the words that are known; all of the file's if left out.
        alpha: weight of its log-probabilities.
        beta: natural log, added for each word.
        unk_score_offset: log10, added to the log-probability of unknown words.
        score_boundary: whether `<s>` and `</s>` count.

    Attributes:
        alpha, beta, unk_score_offset, score_boundary: may be set at any time.

    Raises:
        NGramFormatError: a damaged file, or a binary without words and no unigrams.
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
        """Words of the longest n-grams."""
        return self.table.order

    @property
    def attrs(self) -> Attrs:
        """What it is weighed with at the moment, checked.

        Raises:
            ValueError: a number that isn't finite.
        """
        numbers = {name: finite(name, getattr(self, name)) for name in self.JSON_ATTRS[:3]}
        return Attrs(**numbers, score_boundary=bool(self.score_boundary))

    def reset_params(self, **params: Any) -> None:
        """Set some of `alpha`, `beta`, `unk_score_offset` and `score_boundary`; None leaves what there is.

        Raises:
            TypeError: another name.
            ValueError: a value of another type.
        """
        for name, value in params.items():
            if name not in self.JSON_ATTRS:
                raise TypeError(f"there is no parameter {name!r}, but {', '.join(self.JSON_ATTRS)}")
            if value is None:
                continue
            if name != "score_boundary":
                value = finite(name, value)
            elif not isinstance(value, bool):
                raise ValueError(f"score_boundary should be True or False, got {value!r}")
            setattr(self, name, value)

    def save_to_dir(self, filepath: str | os.PathLike[str]) -> None:
        """Write `attrs.json` and `unigrams.txt`, and copy KenLM's file, to a folder."""
        folder = Path(filepath)
        (folder / ATTRS_FILE).write_text(json.dumps(asdict(self.attrs)), encoding="utf-8")
        words = "".join(f"{word}\n" for word in sorted(self.unigrams or ()))
        (folder / UNIGRAMS_FILE).write_text(words, encoding="utf-8")
        shutil.copy2(self.path, folder / Path(self.path).name)

    @classmethod
    def load_from_dir(cls, filepath: str | os.PathLike[str]) -> LanguageModel:
        """Read what `save_to_dir`, here or of pyctcdecode, has written.

        Raises:
            NGramFormatError: a file is missing or damaged.
        """
        folder = Path(filepath)
        for name in (ATTRS_FILE, UNIGRAMS_FILE):
            if not (folder / name).is_file():
                raise NGramFormatError(f"{folder} has no {name}; NGramLM.from_wav2vec2_with_lm does without it")
        attrs = Attrs.read(folder / ATTRS_FILE)
        return cls(kenlm_file_in(folder), read_unigrams(folder / UNIGRAMS_FILE), **asdict(attrs))
