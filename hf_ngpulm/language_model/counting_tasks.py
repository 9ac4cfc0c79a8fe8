"""Divide a text into parts, and let the tasks of a cluster count the n-grams of the parts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from ..common.cluster import Cluster
from ..ngrams.counting import NGramCounter, memory_left
from ..ngrams.on_cluster import CountedPart, counted_part, seen_earlier
from ..ngrams.steps import Packing
from ..text import TextFiles, normaliser, total_bytes
from ..text.adaptation import Adapter
from ..text.sources import FilePart
from .sentences import STYLE_SAMPLE, Sentences, numbered, rows_of, words_of
from .training_options import TrainingOptions

# Bytes of text per task, unless this would make more than MANY_PARTS tasks.
BYTES_PER_TASK, MOST_BYTES_PER_TASK, MANY_PARTS = 64 << 20, 512 << 20, 1024
SAMPLED_PARTS = 100  # the first parts, whose texts are in the sample
ROWS_PER_TASK = 1 << 17
BATCHES_PER_TASK = 16  # of texts that are encoded already


@dataclass(frozen=True)
class TextFacts:
    """Hold the sizes of a text whose n-grams were counted, the unknown parts of the text, and a sample."""

    num_sentences: int
    num_tokens: int
    num_unknown: int
    unknown: Counter[str] | None  # see `Training.unknown`
    sample: list[str]  # the first texts, as they were encoded

    def with_more(self, facts: TextFacts) -> TextFacts:
        """Return the `TextFacts` of a longer text: this text, followed by the text of the argument."""
        unknown = self.unknown
        if facts.unknown is not None:
            unknown = facts.unknown if unknown is None else unknown + facts.unknown
        numbers = (getattr(self, name) + getattr(facts, name) for name in ("num_sentences", "num_tokens", "num_unknown"))
        sentences, tokens, unknowns = numbers
        return TextFacts(sentences, tokens, unknowns, unknown, [*self.sample, *facts.sample][:STYLE_SAMPLE])


def count_on(
    cluster: Cluster,
    texts: Iterable[Any],
    tokenizer: Any,
    vocab_size: int,
    order: int,
    options: TrainingOptions,
    adapter: Adapter | None,
    done: Callable[[int], Any],
) -> tuple[list[CountedPart], np.ndarray, Packing, TextFacts, list[str] | None]:
    """Count the n-grams of a text in parts. The tasks read `TextFiles` themselves; other texts are sent to the tasks.

    `adapter`: rewrites texts and counts the changes. `done`: called after each part, with the number of counted parts.

    Returns:
        The counted parts in order, `first_seen` of the whole text (see `NGramCounts`), the packing of the n-grams, the text's
        `TextFacts`, and the words of word-level n-grams (None for tokens).
    """
    told = dataclasses.replace(options, valid=None, outputs=None, limit_vocabulary=None, cluster=None, workers=1, style_of=None)
    parts, numbers = _parts(texts), None
    if options.unit == "word":
        parts, numbers = _numbers_of_words(cluster, parts, (tokenizer, told, adapter))
        vocab_size = len(numbers)
    settings = cluster.shared((tokenizer, vocab_size, order, told, adapter, numbers))
    tasks: list[list[Any]] = []
    counted: list[CountedPart] = []
    first_seen: np.ndarray | None = None
    whole = TextFacts(0, 0, 0, None, [])

    def wait(running: int) -> None:
        nonlocal first_seen, whole
        while len(counted) < len(tasks) - running:
            size, of_words, seen, facts, changed = cluster.get(tasks[len(counted)][1])
            first_seen = seen_earlier(first_seen, seen, whole.num_sentences)
            whole = whole.with_more(facts)
            if adapter is not None:
                adapter.add(changed)
            counted.append(CountedPart(tasks[len(counted)][0], size, of_words))
            done(len(counted))

    for number, part in enumerate(parts):
        wait(2 * cluster.cpus)
        tasks.append(cluster.submit(count_part, part, settings, number < SAMPLED_PARTS, returns=2))
    wait(0)
    if first_seen is None or not whole.num_sentences:
        raise ValueError("there is no text to count n-grams in: no sentence was given")
    words = None if numbers is None else list(numbers)
    return counted, first_seen, Packing(vocab_size, order, from_last=True), whole, words


def _numbers_of_words(
    cluster: Cluster, parts: Iterator[Any], settings: tuple[Any, ...]
) -> tuple[Iterator[Any], dict[str, int]]:
    """Put the parts of a text on the cluster, and number the words of the text in the order of their first occurrences. Return
    the parts, and the words' numbers. `settings`: see `distinct_words`.
    """
    handles = [cluster.shared(part) for part in parts]
    told = cluster.shared(settings)
    found = [cluster.submit(distinct_words, part, told) for part in handles]
    numbers: dict[str, int] = {}
    for one in found:
        for word in cluster.get(one):
            numbers.setdefault(word, len(numbers))
    if not numbers:
        raise ValueError("training needs at least one word, the texts have none")
    return iter(handles), numbers


def distinct_words(part: list[Any], settings: tuple[Any, ...]) -> list[str]:
    """Return the distinct words in a part of a text, in the order of their first occurrences. `settings`: tokenizer, options
    and adapter.
    """
    tokenizer, options, adapter = settings
    rows, clean, _ = _read(part, tokenizer, options, adapter)
    return list(dict.fromkeys(word for row in rows for word in words_of(row, clean)))


def _read(
    part: list[Any], tokenizer: Any, options: TrainingOptions, adapter: Adapter | None
) -> tuple[Iterator[Any], Callable[[str], str], Adapter | None]:
    """Return the rows of a part, a function that cleans a text, and a new adapter. The new adapter counts only changes of this
    part.
    """
    rows: Iterable[Any] = part
    if part and isinstance(part[0], FilePart):
        rows = chain.from_iterable(each.texts() for each in part)
    plain = normaliser(options.normalise, tokenizer)
    if adapter is None:
        return rows_of(rows, options.field), plain, None
    own = adapter.anew()
    return rows_of(rows, options.field), lambda text: own(plain(text)), own


def _parts(texts: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield lists of `FilePart`s, or of texts."""
    if isinstance(texts, TextFiles):
        size = (total_bytes(texts.inputs) or 0) // MANY_PARTS
        yield from texts.parts(min(max(BYTES_PER_TASK, size), MOST_BYTES_PER_TASK))
        return
    rows = iter(texts)
    first = list(islice(rows, 1))
    size = BATCHES_PER_TASK if first and isinstance(first[0], tuple) else ROWS_PER_TASK
    rows = chain(first, rows)
    while part := list(islice(rows, size)):
        yield part


def count_part(part: list[Any], settings: tuple[Any, ...], is_sampled: bool) -> list[Any]:
    """Count the n-grams of a part of a text.

    Args:
        settings: the tokenizer, the number of token ids, the order, the options, the adapter, and a dictionary with the number
            of each word (None for n-grams of tokens).
        is_sampled: whether the returned `TextFacts` contain a sample of the texts.

    Returns:
        Two results. The first has the part's R n-grams in sorted order, int64 `[W, R]` (W packed integers per n-gram), and the
            n-grams' counts `[R]`. The second has R, a sample of the n-grams' first integers, `first_seen` (see `NGramCounts`),
            `TextFacts`, and the adapter.
    """
    tokenizer, vocab_size, order, options, adapter, numbers = settings
    rows, clean, changed = _read(part, tokenizer, options, adapter)
    if numbers is not None:
        rows = numbered((words_of(row, clean) for row in rows), numbers.__getitem__)
    sentences = Sentences(rows, tokenizer, vocab_size, clean, options)
    memory = memory_left(options.memory)
    with NGramCounter(vocab_size, order, memory=memory, folder=options.folder, from_last=True) as counter:
        for token_ids, lengths, first in sentences:
            counter.add(token_ids, lengths, first)
        run, size, of_words = counted_part(counter.run())
        numbers = counter.num_sentences, counter.num_tokens, counter.num_unknown
        facts = TextFacts(*numbers, sentences.unknown, sentences.sample if is_sampled else [])
        return [run, (size, of_words, counter.first_seen, facts, changed)]
