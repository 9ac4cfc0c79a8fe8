"""Texts -> numbered words, for counting n-grams of words."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

SENTENCES_PER_BLOCK = 1 << 14


class WordTexts:
    """Sentences as the numbers of their words, on disk: words can't be counted before it is known how many there are.

    Use it as a context manager, so that the file is gone when it ends, however it ends.

    Args:
        texts: sentences, whose words are cut at blanks.
        clean: what is done to each first.
        folder: where the file goes; the system's folder for temporary files by default.

    Raises:
        ValueError: something else than text is among them, or there is no word.
    """

    def __init__(self, texts: Iterable[Any], clean: Callable[[str], str], folder: str | Path | None = None) -> None:
        numbers: dict[str, int] = {}
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed on leaving
        self._lengths: list[np.ndarray] = []
        try:
            rest = iter(texts)
            while batch := list(islice(rest, SENTENCES_PER_BLOCK)):
                sentences = [_words(row, clean) for row in batch]
                ids = [numbers.setdefault(word, len(numbers)) for sentence in sentences for word in sentence]
                np.array(ids, dtype=np.int32).tofile(self._file)
                self._lengths.append(np.array([len(sentence) for sentence in sentences], dtype=np.int64))
            if not numbers:
                raise ValueError("training needs at least one word, the texts have none")
        except BaseException:
            self._file.close()
            raise
        self.words = list(numbers)

    def __enter__(self) -> WordTexts:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of words `[L]` and lengths `[S]` of some sentences after others."""
        self._file.seek(0)
        for lengths in self._lengths:
            yield np.fromfile(self._file, dtype=np.int32, count=int(lengths.sum())), lengths


def _words(row: Any, clean: Callable[[str], str]) -> list[str]:
    if not isinstance(row, str):
        raise ValueError(f"a model of words is trained on strings, got {str(row)[:60]!r}")
    words = clean(row).split()
    for word in words:
        if word.lower() in ("<s>", "</s>", "<unk>"):
            raise ValueError(f"the text {row[:60]!r} has {word!r} as a word, which language models keep for themselves")
    return words
