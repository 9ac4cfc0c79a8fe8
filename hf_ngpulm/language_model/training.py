"""Train a language model from texts, for `NGramLM.from_texts`."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..automaton import LMParts
from ..common.checks import check, refuse_idle, whole
from ..common.cluster import cluster_of
from ..common.progress import Bars
from ..config.training_summary import TrainingSummary
from ..engines.choice import is_native
from ..lexicon import compose
from ..ngrams import on_cluster
from ..ngrams.counting import MAX_ORDER, NGramCounter, memory_left
from ..ngrams.kneser_ney import estimate, thresholds_of
from ..ngrams.room import Room
from ..ngrams.table import NGramTable
from ..text import TextFiles, normaliser
from ..text.adaptation import Adapter, habits_of
from ..text.unwritable import refuse_unwritable
from ..text.vocabulary import Vocabulary, tokenizer_of
from .counting_tasks import TextFacts, count_on
from .perplexity import Perplexity, perplexity_of, scored_texts, without_word_bonus
from .pruning import prune_table
from .sentences import STYLE_SAMPLE, Batches, Sentences, as_text, doubts, numbered, rows_of, words_of
from .training_options import DEFAULT_ORDERS, TrainingOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """Hold a trained model and a report on the training."""

    parts: LMParts  # the model, see `hf_ngpulm.NGramLM`; on the CPU
    unknown: Counter[str] | None  # counts of the parts of text that the tokenizer can't write; None if the texts are token ids
    perplexity: Perplexity | None  # perplexity of the validation texts; None if there are no such texts
    warnings: tuple[str, ...]  # problems of the text, each with the remedy
    adapted: tuple[str, ...] = ()  # one line for each kind of change that adapted the texts to the recogniser's style
    # the table over words and the words themselves; None for a model of tokens
    of_words: tuple[NGramTable, list[str]] | None = None


def train(
    texts: Iterable[Any], tokenizer: Any = None, vocab_size: int | None = None, bars: Bars | None = None, **options: Any
) -> Training:
    """Train a language model. For the arguments see `NGramLM.from_texts`; `bars` show the progress.

    `texts` may also be blocks from `read_ids`. A block has token ids `[L]` and lengths `[S]` of many sentences.
    """
    how = TrainingOptions.of(options)
    order = check("order", DEFAULT_ORDERS[how.unit] if how.order is None else how.order, whole(1, MAX_ORDER))
    tokenizer, bars = tokenizer_of(tokenizer), bars or Bars()  # a name is loaded only once
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    thresholds = thresholds_of(how.prune, order)
    allowed = None if how.limit_vocabulary is None else _allowed(how.limit_vocabulary, vocabulary.size)
    if isinstance(texts, str | bytes):
        raise ValueError(f"texts should be a list of sentences, got the single text {texts[:40]!r}; put it into a list")
    rows, size = rows_of(texts, how.field), len(texts) if isinstance(texts, Sized) else None
    clean: Callable[[str], str] = normaliser(how.normalise, tokenizer)
    adapter: Adapter | None = None
    if how.style_of is not None:
        how = dataclasses.replace(how, outputs=None if how.outputs is None else list(how.outputs))  # it is read twice
        rows, adapter = _adapter(rows, clean, how)
        clean = _one_after_the_other(clean, adapter)
    words: list[str] | None = None
    cluster = None if how.cluster is None else cluster_of(how.cluster)
    if how.unit == "word":
        _check_for_words(tokenizer, how)
    with ExitStack() as files:
        if how.unit == "word" and cluster is None:
            read = (words_of(row, clean) for row in bars.over(rows, "reading", size, lambda _: 1))
            words, rows = files.enter_context(_numbered(read, how.folder))
        sentences = Sentences(rows, tokenizer, vocabulary.size if words is None else len(words), clean, how)
        memory = memory_left(how.memory)
        if cluster is not None:
            with bars.stage(told := f"counting on {cluster.cpus} CPUs") as bar:
                counted, first_seen, packing, facts, words = count_on(
                    cluster, texts if isinstance(texts, TextFiles) else rows, tokenizer, vocabulary.size, order, how, adapter,
                    done=lambda done: bar.set_description(f"{told}: {done} parts"),
                )  # fmt: skip
        else:
            counter = files.enter_context(
                NGramCounter(sentences.vocab_size, order, how.device or "cpu", memory, how.folder, resume=how.resume)
            )
            sentences.skipped = counter.num_sentences
            for token_ids, lengths, first in bars.over(sentences, "counting", size, lambda batch: len(batch[1])):
                counter.add(token_ids, lengths, first)
            with bars.stage("merging"):
                counts = counter.finish(how.accelerator)
            of_text = counts.num_sentences, counts.num_tokens, counter.num_unknown, sentences.unknown, sentences.sample
            facts = TextFacts(*of_text)
    warnings: list[str] = []
    if facts.unknown is not None:
        if not how.allow_unknown:
            known = facts.num_tokens, facts.num_unknown, facts.unknown, facts.sample
            refuse_unwritable(*known, tokenizer, vocabulary.size, how.normalise)
        if not facts.num_tokens:
            raise ValueError("there is no text to count n-grams in: no sentence was given that has a token")
        warnings += doubts(facts.unknown, facts.sample, tokenizer if how.outputs is None else how.outputs)
    adapted: list[str] = []
    if adapter is not None:
        warnings += adapter.notices()
        adapted += adapter.told()
    wanted = how.prune, how.discount_fallback, allowed
    if cluster is not None:
        room = Room(memory if is_native("auto", torch.device("cpu")) else None, how.folder)
        with bars.stage("estimating", on_cluster.NUM_STEPS) as bar:
            estimated = on_cluster.estimate(
                cluster, counted, first_seen, packing, *wanted, memory=memory, room=room, done=bar.update
            )
    else:
        room = counts.room
        with bars.stage("estimating", order) as bar:
            estimated = estimate(counts, *wanted, done=bar.update)
        del counts
    table = estimated.table
    if how.max_ngrams is not None:
        if room.is_on_disk:
            raise ValueError(
                f"max_ngrams={how.max_ngrams} prunes in memory, and the n-grams are on disk. Allow more memory (with resume "
                "what is counted stays), drop rare n-grams by prune=(0, 0, 1), or leave max_ngrams out and prune the saved "
                "model on a larger machine"
            )
        with bars.stage("pruning"):
            table = prune_table(table, how.max_ngrams)
    with bars.stage("building"):
        if words is None:
            parts = LMParts.of_table(table, vocabulary, how.missing_unigrams, how.engine, room)
        else:
            parts = compose(table.to("cpu"), words, tokenizer, vocab_size=vocab_size, engine=how.engine, **how.of_words)
    perplexity = None
    if how.valid is not None:
        with bars.stage("validating"):
            perplexity = _validated(parts, vocabulary, tokenizer, clean, how, sentences.leading_blank)
    summary = TrainingSummary(
        num_sentences=facts.num_sentences,
        num_tokens=facts.num_tokens,
        num_unknown=facts.num_unknown,
        prune=thresholds,
        num_counted=estimated.num_counted,
        discounts=tuple((found.one, found.two, found.three) for found in estimated.discounts),
        fallback_orders=estimated.fallback_orders,
        max_ngrams=how.max_ngrams,
        perplexity_per_token=None if perplexity is None else perplexity.per_token,
        perplexity_per_word=None if perplexity is None else perplexity.per_word,
        leading_blank=sentences.leading_blank,
    )
    for warning in warnings:
        logger.warning("%s", warning)
    for line in adapted:
        logger.info("%s", line)
    of_words = None if words is None else (table, words)
    parts = parts.with_config(training=summary)
    if cluster is None:
        counter.forget()
    return Training(parts, facts.unknown, perplexity, tuple(warnings), tuple(adapted), of_words)


def _adapter(rows: Iterator[Any], clean: Callable[[str], str], options: TrainingOptions) -> tuple[Iterator[Any], Adapter]:
    """Return the rows of text, and an adapter that rewrites texts in the recogniser's style. `clean`: normalises texts."""
    sample = list(islice(rows, STYLE_SAMPLE))
    if sample and not isinstance(sample[0], str):
        raise ValueError("style_of is for texts; token ids were given, which have no style any more")
    habits = habits_of(options.style_of, options.outputs, options.language)
    return chain(sample, rows), Adapter(habits, (clean(as_text(text)) for text in sample))


def _one_after_the_other(first: Callable[[str], str], second: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: second(first(text))


def _check_for_words(tokenizer: Any, options: TrainingOptions) -> None:
    if tokenizer is None:
        raise ValueError("a model of words needs the ASR model's tokenizer to spell them: pass tokenizer=...")
    given: dict[str, Any] = {"limit_vocabulary": options.limit_vocabulary, "outputs": None}
    if options.style_of is None:
        given["outputs"] = options.outputs
    given["missing_unigrams"] = None if options.missing_unigrams == "share" else options.missing_unigrams
    refuse_idle(given, "have a meaning for models of tokens only, not with unit='word'")


@contextmanager
def _numbered(sentences: Iterator[list[str]], folder: str | Path | None) -> Iterator[tuple[list[str], Batches]]:
    """Yield a pair: the distinct words of the sentences, and blocks of sentences as word ids.

    The sentences are stored in a temporary file, because counting begins when the number of words is known. `folder`: folder
    for this file; None for the system's folder.
    """
    numbers: dict[str, int] = {}
    blocks = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for ids, lengths in numbered(sentences, lambda word: numbers.setdefault(word, len(numbers))):
            ids.tofile(file)
            blocks.append(lengths)
        if not numbers:
            raise ValueError("training needs at least one word, the texts have none")
        file.seek(0)
        yield list(numbers), ((np.fromfile(file, np.int32, int(lengths.sum())), lengths) for lengths in blocks)


def _allowed(token_ids: Iterable[int], vocab_size: int) -> torch.Tensor:
    allowed = torch.zeros(vocab_size, dtype=torch.bool)
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"limit_vocabulary names the token id {token_id}, outside the vocabulary 0..{vocab_size - 1}")
        allowed[token_id] = True
    return allowed


def _validated(
    parts: LMParts,
    vocabulary: Vocabulary,
    tokenizer: Any,
    clean: Callable[[str], str],
    options: TrainingOptions,
    leading_blank: bool,
) -> Perplexity:
    texts = list(rows_of(options.valid or (), options.field))
    if texts and not isinstance(texts[0], str):
        tokenizer = None
    elif tokenizer is not None:
        texts = list(map(clean, texts))
    scored = scored_texts(without_word_bonus(parts), texts, tokenizer, leading_blank)
    return perplexity_of(scored, vocabulary.size, set(parts.unk_tokens.tolist()))
