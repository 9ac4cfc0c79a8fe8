"""Count the n-grams of a text by the tasks of a cluster."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ..common.cluster import Cluster
from ..ngrams.counting import NGramCounter, parse_bytes
from ..ngrams.on_cluster import CountedPart, counted_part
from ..ngrams.steps import Packing
from ..text import TextFiles, normaliser
from .sentences import STYLE_SAMPLE, Sentences, rows_of

if TYPE_CHECKING:
    from .training import TrainingOptions

BYTES_PER_TASK = 64 << 20
ROWS_PER_TASK = 1 << 17
BATCHES_PER_TASK = 16  # of texts that are encoded already


@dataclass(frozen=True)
class TextFacts:
    """Facts about a text that was counted."""

    num_sentences: int
    num_tokens: int
    num_unknown: int
    unknown: Counter[str] | None  # see `Training.unknown`
    sample: list[str]  # the first texts, as they were encoded


def count_on(
    cluster: Cluster,
    texts: Iterable[Any],
    tokenizer: Any,
    vocab_size: int,
    order: int,
    options: TrainingOptions,
    done: Callable[[int], Any],
) -> tuple[list[CountedPart], Packing, TextFacts]:
    """Count the n-grams of a text in parts. `TextFiles` are read by the tasks; other texts are sent to them.

    `done` is called with the number of parts that are counted, again and again.
    """
    told = dataclasses.replace(options, valid=None, outputs=None, limit_vocabulary=None, cluster=None, workers=1)
    settings = cluster.shared((tokenizer, vocab_size, order, told))
    tasks: list[list[Any]] = []
    found: list[tuple[Any, TextFacts]] = []

    def wait(running: int) -> None:
        while len(found) < len(tasks) - running:
            found.append(cluster.get(tasks[len(found)][1]))
            done(len(found))

    for part in _parts(texts, cluster.cpus):
        wait(2 * cluster.cpus)
        tasks.append(cluster.submit(count_part, part, settings, returns=2))
    wait(0)
    facts = [fact for _, fact in found]
    sentences, tokens, unknowns = (
        sum(getattr(fact, name) for fact in facts) for name in ("num_sentences", "num_tokens", "num_unknown")
    )
    counters = [fact.unknown for fact in facts if fact.unknown is not None]
    unknown = sum(counters, Counter()) if counters else None
    if not sentences:
        raise ValueError("there is no text to count n-grams in: no sentence was given")
    sample = list(islice(chain.from_iterable(fact.sample for fact in facts), STYLE_SAMPLE))
    counted = [
        CountedPart(task[0], size, of_words, first_seen, fact.num_sentences)
        for task, ((size, of_words, first_seen), fact) in zip(tasks, found)
    ]
    return counted, Packing(vocab_size, order, from_last=True), TextFacts(sentences, tokens, unknowns, unknown, sample)


def _parts(texts: Iterable[Any], cpus: int) -> Iterator[Any]:
    if isinstance(texts, TextFiles):
        yield from texts.parts(BYTES_PER_TASK)
        return
    rows = iter(texts)
    first = list(islice(rows, 1))
    size = BATCHES_PER_TASK if first and isinstance(first[0], tuple) else ROWS_PER_TASK
    rows = chain(first, rows)
    while part := list(islice(rows, size)):
        yield part


def count_part(part: Iterable[Any], settings: tuple[Any, ...]) -> list[Any]:
    """Count the n-grams of a part of a text. Return the sorted run (words `[W, R]` and counts `[R]`), and facts about the part:
    R, a sample and `first_seen`, as `CountedPart` has them, and `TextFacts`."""
    tokenizer, vocab_size, order, options = settings
    clean = normaliser(options.normalise, tokenizer)
    sentences = Sentences(rows_of(part, options.field), tokenizer, vocab_size, clean, options)
    memory = parse_bytes(options.memory)
    with NGramCounter(vocab_size, order, memory=memory, folder=options.folder, from_last=True) as counter:
        for token_ids, lengths, first in sentences:
            counter.add(token_ids, lengths, first)
        run, size, sample = counted_part(counter.run())
        numbers = counter.num_sentences, counter.num_tokens, counter.num_unknown
        return [run, ((size, sample, counter.first_seen), TextFacts(*numbers, sentences.unknown, sentences.sample))]
