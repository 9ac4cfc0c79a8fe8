"""Convert the text for training to batches of token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from ..common.checks import refuse_idle
from ..text import begins_with_blank, encode_texts, mismatches, with_blank
from ..text.unwritable import told
from .training_options import TrainingOptions

SENTENCES_PER_BATCH = 4096
STYLE_SAMPLE = 10_000  # sentences in the sample whose style is checked
Batches = Iterator[tuple[np.ndarray, np.ndarray]]


class Sentences:
    """Yield the text in batches. A batch has the token ids `[L]` (-1 for unknown tokens), the sentences' lengths `[S]`, and the
    index of the batch's first sentence in the text.

    If several processes share the text, each of the n processes yields every n-th batch.
    """

    def __init__(
        self, rows: Iterator[Any], tokenizer: Any, vocab_size: int, clean: Callable[[str], str], options: TrainingOptions
    ) -> None:
        self.rows, self.tokenizer, self.vocab_size, self.clean, self.options = rows, tokenizer, vocab_size, clean, options
        self.leading_blank = _leading_blank(tokenizer, options)
        self.skipped = 0  # sentences counted by an earlier training; the first batch comes all the same
        self.unknown: Counter[str] | None = None
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        accelerator, first = self.options.accelerator, next(self.rows, None)
        rank, processes = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
        if first is None:
            return
        rows = chain([first], self.rows)
        if isinstance(first, tuple):  # already encoded
            place = 0
            for number, (token_ids, lengths) in enumerate(rows):
                if number % processes == rank and (number == 0 or place >= self.skipped):
                    yield token_ids, lengths, place
                place += len(lengths)
            return
        if self.skipped:
            rows = chain(islice(rows, SENTENCES_PER_BATCH), islice(rows, max(0, self.skipped - SENTENCES_PER_BATCH), None))
        batches = islice(iter(lambda: list(islice(rows, SENTENCES_PER_BATCH)), []), rank, None, processes)
        encoded = self._encoded(chain.from_iterable(batches)) if isinstance(first, str) else map(_as_ids, batches)
        before = max(0, self.skipped - SENTENCES_PER_BATCH)  # sentences between the first batch and the next
        for number, (token_ids, lengths) in enumerate(encoded):
            yield token_ids, lengths, (number * processes + rank) * SENTENCES_PER_BATCH + (before if number else 0)

    def _encoded(self, rows: Iterator[Any]) -> Batches:
        if self.tokenizer is None:
            raise ValueError("texts need the ASR model's tokenizer (tokenizer=...); without one, pass lists of token ids")
        self.unknown = Counter()
        texts: Iterator[str] = (self._noted(self.clean(as_text(row))) for row in rows)
        if self.leading_blank:
            texts = map(with_blank, texts)
        return encode_texts(texts, self.tokenizer, self.vocab_size, SENTENCES_PER_BATCH, self.options.workers, self.unknown)

    def _noted(self, text: str) -> str:
        if len(self.sample) < STYLE_SAMPLE and text:
            self.sample.append(text)
        return text


def doubts(unknown: Counter[str], sample: list[str], writer: Any) -> list[str]:
    """Return warnings about a training text. `unknown`: counts of the pieces of text that the tokenizer can't write. `sample`:
    some of the sentences. `writer`: transcripts or the tokenizer of the recogniser, see `mismatches`.
    """
    found = mismatches(sample, writer)
    if unknown:
        found.append(
            f"the tokenizer can't write {unknown.total():,} places of the text: {told(unknown)}; n-grams with "
            "these are left out"
        )
    return found


def rows_of(texts: Iterable[Any], field: str) -> Iterator[Any]:
    """Yield texts or lists of token ids. If a row has fields, yield the content of the field named `field`."""
    for row in texts:
        if isinstance(row, Mapping):
            if field not in row:
                raise ValueError(f"the rows have no field {field!r}, but {', '.join(map(repr, row))}; name one with field=...")
            row = row[field]
        yield row


def _leading_blank(tokenizer: Any, options: TrainingOptions) -> bool:
    if tokenizer is None or options.unit == "word":
        refuse_idle({"leading_blank": options.leading_blank}, "is for texts and models of tokens")
        return False
    return begins_with_blank(tokenizer) if options.leading_blank is None else options.leading_blank


def as_text(row: Any) -> str:
    if not isinstance(row, str):
        raise ValueError(f"texts should all be strings, or all lists of token ids, got {str(row)[:60]!r} among strings")
    return row


def _as_ids(rows: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated token ids of all rows, and the length of each row."""
    arrays = [np.asarray(row.cpu() if isinstance(row, torch.Tensor) else row) for row in rows]
    for row, ids in zip(rows, arrays):
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(f"texts should be strings, or lists of token ids (whole numbers), got {str(row)[:60]!r}")
    return np.concatenate([ids.astype(np.int64) for ids in arrays]), np.array([ids.size for ids in arrays])


def words_of(row: Any, clean: Callable[[str], str]) -> list[str]:
    """Return the words of a text after `clean` has normalised it. Raises ValueError if the row isn't a text, or a word is
    reserved.
    """
    if not isinstance(row, str):
        raise ValueError(f"a model of words is trained on strings, got {str(row)[:60]!r}")
    words = clean(row).split()
    for word in words:
        if word.lower() in ("<s>", "</s>", "<unk>"):
            raise ValueError(f"the text {row[:60]!r} has {word!r} as a word, which is reserved in language models")
    return words


def numbered(sentences: Iterator[list[str]], number_of: Callable[[str], int]) -> Batches:
    """Yield blocks of sentences. A block has the numbers of the sentences' words, and the sentences' lengths."""
    while batch := list(islice(sentences, SENTENCES_PER_BATCH)):
        ids = np.array([number_of(word) for sentence in batch for word in sentence], dtype=np.int32)
        yield ids, np.array([len(sentence) for sentence in batch], dtype=np.int64)
