"""From text to a language model: what `NGramLM.train` does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..automaton import LMParts
from ..common.arguments import whole
from ..common.progress import Bars
from ..config.training_summary import TrainingSummary
from ..lexicon import compose
from ..lexicon.texts import WordTexts
from ..lexicon.words import refuse_options
from ..ngrams.counting import DEFAULT_MEMORY, MAX_ORDER, NGramCounter, parse_bytes
from ..ngrams.gathering import gather_counts
from ..ngrams.kneser_ney import DISCOUNT_FALLBACK, estimate, thresholds_of
from ..ngrams.table import NGramTable
from ..text import TextReport, encode_texts, mismatches, normaliser
from ..text.vocabulary import Vocabulary, tokenizer_of
from .perplexity import Perplexity, perplexity_of, scored_texts, without_word_bonus
from .pruning import prune_table

logger = logging.getLogger(__name__)

SENTENCES_PER_BATCH = 4096
STYLE_SAMPLE = 10_000  # sentences whose style is compared with the recogniser's
SHOWN = 12  # unknown characters that a warning names
_COLUMNS = ("prefixes", "tokens", "log_probs", "backoffs")
DEFAULT_ORDERS = {"token": 6, "word": 3}


@dataclass(frozen=True)
class Counting:
    """How n-grams are counted. Arguments as for `NGramLM.train`."""

    memory: int | str = DEFAULT_MEMORY
    folder: str | Path | None = None
    workers: int | None = None
    accelerator: Any = None


@dataclass(frozen=True)
class Training:
    """A trained model, and what there is to tell of its making.

    Args:
        parts: the model, see `hf_ngpulm.NGramLM`; on the CPU.
        report: what the tokenizer made of the texts; None for texts given as token ids.
        perplexity: of the validation texts, None if there were none.
        warnings: what looks wrong with the text, and the remedy.
        of_words: the n-grams of words that the model was composed of, and the words; None for a model of tokens.
    """

    parts: LMParts
    report: TextReport | None
    perplexity: Perplexity | None
    warnings: tuple[str, ...]
    of_words: tuple[NGramTable, list[str]] | None = None


def train(
    texts: Iterable[Any],
    tokenizer: Any = None,
    vocab_size: int | None = None,
    order: int | None = None,
    prune: Sequence[int] = (),
    max_ngrams: int | None = None,
    normalise: Any = None,
    field: str = "text",
    limit_vocabulary: Iterable[int] | None = None,
    discount_fallback: Sequence[float] | None = DISCOUNT_FALLBACK,
    missing_unigrams: str | float = "share",
    valid: Iterable[Any] | None = None,
    outputs: Iterable[str] | None = None,
    device: str | torch.device | None = None,
    engine: str = "auto",
    bars: Bars | None = None,
    unit: str = "token",
    **more: Any,
) -> Training:
    """Train a language model. Arguments as for `NGramLM.train`; `bars` show the progress.

    `texts` may also be pairs of arrays, as `read_ids` gives them: token ids `[L]` and lengths `[S]` of many sentences.
    """
    counting = Counting(**{field.name: more.pop(field.name) for field in fields(Counting) if field.name in more})
    of_words = more
    if unit not in DEFAULT_ORDERS:
        raise ValueError(f"unit must be 'token' or 'word', got {unit!r}")
    order = whole("order", DEFAULT_ORDERS[unit] if order is None else order, MAX_ORDER)
    tokenizer = tokenizer_of(tokenizer)  # read once, if it was named
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    thresholds = thresholds_of(prune, order)
    bars = bars or Bars()
    words: list[str] | None = None
    with ExitStack() as files:
        if unit == "word":
            given = {"limit_vocabulary": limit_vocabulary, "outputs": outputs}
            _refuse_for_words(tokenizer, missing_unigrams, [name for name, value in given.items() if value is not None])
            clean = normaliser(normalise, tokenizer_of(tokenizer))
            of_texts = files.enter_context(
                _word_texts(bars.over(texts, "reading", _size(texts), lambda _: 1), field, clean, counting.folder)
            )
            texts, words = of_texts.blocks(), of_texts.words
        elif of_words:
            refuse_options(of_words, "unit is 'token'; pass unit='word' too")
        counted_size = vocabulary.size if words is None else len(words)
        allowed = None if limit_vocabulary is None else _allowed(limit_vocabulary, vocabulary.size)
        sentences = _Sentences(texts, tokenizer, counted_size, normalise, field, counting.workers, counting.accelerator)
        room = parse_bytes(counting.memory)
        counter = files.enter_context(NGramCounter(counted_size, order, device or "cpu", room, counting.folder))
        for token_ids, lengths, first in bars.over(sentences, "counting", _size(texts), lambda batch: len(batch[1])):
            counter.add(token_ids, lengths, first)
        with bars.stage("merging"):
            counts = counter.finish() if counting.accelerator is None else gather_counts(counter, counting.accelerator)
        if sentences.report is not None and not counts.num_tokens:
            raise ValueError("there is no text to count n-grams in: no sentence was given that has a token")
        num_unknown = counter.num_unknown
    warnings = sentences.warnings(outputs)
    with bars.stage("estimating", order) as bar:
        estimated = estimate(counts, prune, discount_fallback, allowed, done=bar.update)
    table, num_sentences, num_tokens = estimated.table, counts.num_sentences, counts.num_tokens
    del counts
    if max_ngrams is not None:
        with bars.stage("pruning"):
            table = prune_table(table, max_ngrams)
    with bars.stage("building"):
        if words is None:
            parts = LMParts.of_table(table, vocabulary, missing_unigrams, engine)
        else:
            parts = _composed(table, words, tokenizer, vocab_size, engine, of_words)
    perplexity = None
    if valid is not None:
        with bars.stage("validating"):
            valid_texts = list(_rows(valid, field))
            if tokenizer is not None and not _are_ids(valid_texts):
                valid_texts = [normaliser(normalise, tokenizer)(text) for text in valid_texts]
            scored = scored_texts(without_word_bonus(parts), valid_texts, None if _are_ids(valid_texts) else tokenizer)
            perplexity = perplexity_of(scored, vocabulary.size, set(parts.unk_tokens.tolist()))
    summary = TrainingSummary(
        num_sentences=num_sentences,
        num_tokens=num_tokens,
        num_unknown=num_unknown,
        prune=thresholds,
        num_counted=estimated.num_counted,
        discounts=tuple((d.one, d.two, d.three) for d in estimated.discounts),
        fallback_orders=estimated.fallback_orders,
        max_ngrams=max_ngrams,
        perplexity_per_token=None if perplexity is None else perplexity.per_token,
        perplexity_per_word=None if perplexity is None else perplexity.per_word,
    )
    parts = parts.with_config(training=summary)
    for warning in warnings:
        logger.warning("%s", warning)
    return Training(parts, sentences.report, perplexity, tuple(warnings), None if words is None else (table, words))


def _refuse_for_words(tokenizer: Any, missing_unigrams: str | float, given: Sequence[str]) -> None:
    if tokenizer is None:
        raise ValueError("a model of words needs the ASR model's tokenizer to spell them: pass tokenizer=...")
    if missing_unigrams != "share":
        given = [*given, "missing_unigrams"]
    if given:
        raise ValueError(f"{', '.join(given)} have a meaning for models of tokens only, not with unit='word'")


def _word_texts(texts: Iterable[Any], field: str, clean: Any, folder: str | Path | None) -> Any:
    if isinstance(texts, str | bytes):
        raise ValueError(f"texts should be a list of sentences, got the single text {texts[:40]!r}; put it into a list")
    return WordTexts(_rows(texts, field), clean, folder)


def _composed(
    table: NGramTable,
    words: list[str],
    tokenizer: Any,
    vocab_size: int | None,
    engine: str,
    of_words: dict[str, Any],
) -> LMParts:
    on_cpu = NGramTable(
        table.vocab_size, tuple(type(order)(*(getattr(order, name).cpu() for name in _COLUMNS)) for order in table.orders)
    )
    return compose(on_cpu, words, tokenizer, vocab_size=vocab_size, engine=engine, **of_words)


class _Sentences:
    """The text as batches of token ids `[L]` (-1: unknown), lengths `[S]` and the number of their first sentence.

    Where several processes share the text, each takes every n-th batch.
    """

    def __init__(
        self,
        texts: Iterable[Any],
        tokenizer: Any,
        vocab_size: int,
        normalise: Any,
        field: str,
        workers: int | None,
        accelerator: Any,
    ) -> None:
        if isinstance(texts, str | bytes):
            raise ValueError(f"texts should be a list of sentences, got the single text {texts[:40]!r}; put it into a list")
        self.rows = _rows(texts, field)
        self.tokenizer, self.vocab_size, self.normalise, self.workers = tokenizer, vocab_size, normalise, workers
        self.rank = 0 if accelerator is None else accelerator.process_index
        self.world_size = 1 if accelerator is None else accelerator.num_processes
        self.report: TextReport | None = None
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        first = next(self.rows, None)
        if first is None:
            return
        rows = chain([first], self.rows)
        if isinstance(first, tuple):
            yield from self._blocks(rows)
            return
        batches = self._encoded(rows) if isinstance(first, str) else self._of_ids(rows)
        for number, (token_ids, lengths) in enumerate(batches):
            yield token_ids, lengths, (number * self.world_size + self.rank) * SENTENCES_PER_BATCH

    def _blocks(self, blocks: Iterator[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Yield sentences that are encoded already."""
        first = 0
        for number, (token_ids, lengths) in enumerate(blocks):
            if number % self.world_size == self.rank:
                yield token_ids, lengths, first
            first += len(lengths)

    def _own_batches(self, rows: Iterator[Any]) -> Iterator[list[Any]]:
        number = 0
        while batch := list(islice(rows, SENTENCES_PER_BATCH)):
            if number % self.world_size == self.rank:
                yield batch
            number += 1

    def _of_ids(self, rows: Iterator[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in self._own_batches(rows):
            sentences = [_as_ids(row) for row in batch]
            yield np.concatenate(sentences), np.array([len(sentence) for sentence in sentences])

    def _encoded(self, rows: Iterator[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if self.tokenizer is None:
            raise ValueError("texts need the ASR model's tokenizer (tokenizer=...); without one, pass lists of token ids")
        tokenizer = tokenizer_of(self.tokenizer)
        clean = normaliser(self.normalise, tokenizer)
        self.report = TextReport()
        texts = (self._text(clean(_as_text(row))) for row in chain.from_iterable(self._own_batches(rows)))
        return encode_texts(
            texts, tokenizer, self.vocab_size, batch_size=SENTENCES_PER_BATCH, workers=self.workers, report=self.report
        )

    def _text(self, text: str) -> str:
        if len(self.sample) < STYLE_SAMPLE and text:
            self.sample.append(text)
        return text

    def warnings(self, outputs: Iterable[str] | None) -> list[str]:
        """Return what looks wrong with the text."""
        if self.report is None:
            return []
        found = mismatches(self.sample, outputs if outputs is not None else tokenizer_of(self.tokenizer))
        if self.report.unknown:
            most = self.report.unknown.most_common(SHOWN)
            more = f" and {len(self.report.unknown) - SHOWN} more" if len(self.report.unknown) > SHOWN else ""
            found.append(
                f"the tokenizer can't write {self.report.num_unknown:,} places of the text: "
                + ", ".join(f"{piece!r} ({count:,} times)" for piece, count in most)
                + more
                + "; n-grams with these are left out"
            )
        return found


def _rows(texts: Iterable[Any], field: str) -> Iterator[Any]:
    """Yield texts or lists of ids, also out of rows with fields as `datasets` has them."""
    for row in texts:
        if isinstance(row, Mapping):
            if field not in row:
                raise ValueError(f"the rows have no field {field!r}, but {', '.join(map(repr, row))}; name one with field=...")
            row = row[field]
        yield row


def _as_text(row: Any) -> str:
    if not isinstance(row, str):
        raise ValueError(f"texts should all be strings, or all lists of token ids, got {str(row)[:60]!r} among strings")
    return row


def _as_ids(row: Any) -> np.ndarray:
    ids = np.asarray(row if not isinstance(row, torch.Tensor) else row.cpu())
    if ids.size == 0:
        ids = ids.astype(np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"texts should be strings, or lists of token ids (whole numbers), got {str(row)[:60]!r}")
    return ids


def _are_ids(rows: Sequence[Any]) -> bool:
    return bool(rows) and not isinstance(rows[0], str)


def _allowed(token_ids: Iterable[int], vocab_size: int) -> torch.Tensor:
    allowed = torch.zeros(vocab_size, dtype=torch.bool)
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"limit_vocabulary names the token id {token_id}, outside the vocabulary 0..{vocab_size - 1}")
        allowed[token_id] = True
    return allowed


def _size(texts: Iterable[Any]) -> int | None:
    return len(texts) if isinstance(texts, Sized) else None
