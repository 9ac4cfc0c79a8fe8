"""Count errors inside and outside of entities, and completely recognised entities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..engines.native import Function
from ..text.normalisation import Normaliser, normaliser
from .counts import ErrorCounts, Normalisation, Summed, pairs, share

BITS = 21  # bits of each count; the native core packs three counts into an integer
MASK = (1 << BITS) - 1

_lowest_counts = Function("ngpulm_lowest_counts")


@dataclass(frozen=True)
class EntityMatches(Summed):
    """Count entities that were recognised completely, recognised wrongly, or missed.

    Args:
        true_positives: number of entities' occurrences in the reference that the hypothesis also has at the aligned place.
        false_positives: number of all other occurrences in the hypothesis.
        false_negatives: number of all other occurrences in the reference.
        utterances: the counts of each utterance; empty for a single utterance.
    """

    true_positives: int
    false_positives: int
    false_negatives: int
    utterances: tuple[EntityMatches, ...] = field(default=(), repr=False)

    @property
    def precision(self) -> float:
        """Return the share of correct occurrences in hypotheses; NaN if hypotheses have no occurrences."""
        return share(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Return the share of recognised occurrences in references; NaN if references have no occurrences."""
        return share(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN); NaN if no entity occurs anywhere."""
        return share(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)


@dataclass(frozen=True)
class EntityErrors:
    """Hold the result of `entity_errors`.

    Args:
        entities: errors on words of entities.
        others: errors on all other words.
        matches: counts of completely recognised entities.
    """

    entities: ErrorCounts
    others: ErrorCounts
    matches: EntityMatches

    @property
    def entity_wer(self) -> float:
        """Return the errors per word of entities. If no reference has an entity, return NaN (but `entities.rate` is 0)."""
        return share(self.entities.errors, self.entities.length)

    @property
    def other_wer(self) -> float:
        """Return the errors per word outside of entities; NaN if no reference has a word outside of entities."""
        return share(self.others.errors, self.others.length)

    @property
    def wer(self) -> float:
        """Return the errors per word, equal to the rate of `word_errors`."""
        return (self.entities.errors + self.others.errors) / max(self.entities.length + self.others.length, 1)


def entity_errors(
    references: Iterable[str],
    hypotheses: Iterable[str],
    entities: Iterable[str] | Iterable[Iterable[str]],
    normalise: Normalisation = None,
) -> EntityErrors:
    """Return errors on entities (names and terms, such as boosted phrases), and errors on all other words.

    *Occurrences* are searched from left to right. If several entities begin at the same word, the longest entity counts. The
    search continues after this entity, so occurrences never overlap. Duplicate entities are ignored.

    *Alignment.* Reference and hypothesis are aligned with the fewest edits, so the total number of errors is the same as in
    `word_errors`. If several alignments have the fewest edits, these rules choose in this order: fewest errors on entities,
    most entities recognised as a whole, fewest substitutions, fewest substitutions in entities, fewest insertions in entities.
    So every count is unique, and alignments with fewer errors on entities are preferred. (jiwer has other rules, so two
    substitutions in `word_errors` may be a deletion and an insertion here.)

    *Error rates.* An error on an entity is a substituted or deleted word of an occurrence in the reference, or a word that is
    inserted between two words of an occurrence. The entity WER is the number of these errors per word of occurrences
    (Nigmatulina et al., "Implementing contextual biasing in GPU decoder for online ASR", Interspeech 2023). All other errors
    are in the WER of other words. If all entities have one word, B-WER and U-WER of Le et al. ("Contextualized streaming
    end-to-end speech recognition with trie-based deep biasing and shallow fusion", Interspeech 2021) agree with these rates,
    except for insertions of a listed word. B-WER counts such insertions as errors on entities. Here such insertions lower the
    precision.

    *Precision, recall, F1.* An occurrence in the reference is a true positive if all its words are recognised without inserted
    words between them, and the hypothesis has an occurrence of the same entity there. (If "new york city" is also listed, "new
    york" has no occurrence inside "new york city".) Other occurrences in the hypothesis, for example of distractors, are false
    positives. Other occurrences in the reference are false negatives.

    Args:
        references, hypotheses: the transcripts and the recognised texts, one text per utterance.
        entities: a list of phrases for each utterance (may be empty), or one list for all utterances. If the reference lacks a
            phrase, the phrase can only cause false positives.
        normalise: normalisation of references, hypotheses and entities, see `word_errors`. Entities are searched in the
            normalised texts, as whole words.

    Raises:
        ValueError: the lists differ in length, an item isn't text, or an entity has no words.
    """
    texts = pairs(references, hypotheses, normalise)
    clean = normaliser(normalise)
    compiled: dict[tuple[str, ...], _Phrases] = {}
    inside, outside, matches = [], [], []
    for (reference, hypothesis), phrases in zip(texts, per_utterance(entities, len(texts))):
        if phrases not in compiled:
            compiled[phrases] = _Phrases.of(phrases, clean)
        said, heard = reference.split(), hypothesis.split()
        entities_said, entities_heard = compiled[phrases].occurrences(said), compiled[phrases].occurrences(heard)
        of_entities, of_others, matched = aligned_counts(said, heard, entities_said, entities_heard)
        inside.append(of_entities)
        outside.append(of_others)
        matches.append(EntityMatches(matched, len(entities_heard) - matched, len(entities_said) - matched))
    return EntityErrors(ErrorCounts.together(inside), ErrorCounts.together(outside), EntityMatches.together(matches))


def per_utterance(entities: Iterable[str] | Iterable[Iterable[str]], count: int) -> list[tuple[str, ...]]:
    """Check entities, and return the phrases of each utterance. `count`: number of utterances. Raises ValueError if `entities`
    is neither a list of texts nor a list of lists of texts, or the number of lists isn't `count`.
    """
    remedy = "give a list of phrases for each utterance, or one for all"
    if isinstance(entities, str):
        raise ValueError(f"entities should be a list, got the text {entities!r}; {remedy}")
    listed: list[Any] = list(entities)
    if all(isinstance(phrase, str) for phrase in listed):
        return [tuple(listed)] * count
    for i, phrases in enumerate(listed):
        if isinstance(phrases, str) or not isinstance(phrases, Iterable):
            raise ValueError(f"entities should be lists of phrases, got {phrases!r} at {i}; {remedy}")
    if len(listed) != count:
        raise ValueError(f"one list of entities per reference is needed, got {count} references and {len(listed)} lists")
    lists = [tuple(phrases) for phrases in listed]
    for i, phrases in enumerate(lists):
        for phrase in phrases:
            if not isinstance(phrase, str):
                raise ValueError(f"an entity should be a text, got {phrase!r} in list {i}")
    return lists


class _Phrases(NamedTuple):
    """Find entities in texts. `numbers`: the index of each entity, by the entity's words. `lengths`: the different
    lengths of entities in words, longest first.
    """

    numbers: dict[tuple[str, ...], int]
    lengths: list[int]

    @classmethod
    def of(cls, texts: Iterable[str], clean: Normaliser) -> _Phrases:
        numbers: dict[tuple[str, ...], int] = {}
        for text in texts:
            words = tuple(clean(text).split())
            if not words:
                raise ValueError(f"an entity should have words, but nothing is left of {text!r}; take it off the list")
            numbers.setdefault(words, len(numbers))
        return cls(numbers, sorted({len(words) for words in numbers}, reverse=True))

    def occurrences(self, words: Sequence[str]) -> list[Occurrence]:
        """Return the occurrences of entities in a text."""
        occurrences: list[Occurrence] = []
        start = 0
        while start < len(words):
            ends = (start + length for length in self.lengths if start + length <= len(words))
            end = next((end for end in ends if tuple(words[start:end]) in self.numbers), None)
            if end is not None:
                occurrences.append(Occurrence(start, end, self.numbers[tuple(words[start:end])]))
            start = end or start + 1
        return occurrences


class Occurrence(NamedTuple):
    """Locate an entity in a text, from word `start` to word `end`, exclusive. `entity`: the entity's index."""

    start: int
    end: int
    entity: int


def aligned_counts(
    reference: Sequence[str],
    hypothesis: Sequence[str],
    reference_occurrences: Sequence[Occurrence],
    hypothesis_occurrences: Sequence[Occurrence],
) -> tuple[ErrorCounts, ErrorCounts, int]:
    """Return errors on words of entities, errors on other words, and the number of completely recognised entities.

    `entity_errors` defines the alignment. An alignment has six counts: edits, errors on entities, entities that aren't
    recognised completely, substitutions, substitutions in entities, and insertions in entities. Dynamic programming over both
    texts (`csrc/alignment.cpp`) finds the lowest counts, compared in this order. Each of two integers stores three counts, so
    one addition or comparison handles three counts. No traceback of an alignment is needed.

    Args:
        reference, hypothesis: words of one utterance.
        reference_occurrences, hypothesis_occurrences: occurrences of entities in both texts. Occurrences don't overlap.
    """
    words_said, words_heard = len(reference), len(hypothesis)
    if words_said + words_heard > MASK:
        raise ValueError(f"texts of {words_said} and {words_heard} words are too long to be aligned; cut them into utterances")
    numbers: dict[str, int] = {}
    said, heard = (
        np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)
        for words in (reference, hypothesis)
    )
    covered, inside = np.zeros(words_said + 1, dtype=np.bool_), np.zeros(words_said + 1, dtype=np.bool_)
    for start, end, _ in reference_occurrences:
        covered[start:end] = True  # words
        inside[start + 1 : end] = True  # gaps between words: gap i is in front of word i
    ends = _ends(reference_occurrences, words_said), _ends(hypothesis_occurrences, words_heard)
    longest = max((end - start for start, end, _ in reference_occurrences), default=1)
    packed = np.zeros(2, dtype=np.int64)
    arguments = (said, heard, covered, inside, *ends, len(reference_occurrences), longest, packed)
    place = _lowest_counts(words_said, words_heard, *arguments)
    if place >= 0:
        raise ValueError(f"the entity that ends at word {place} of {words_said} isn't as long in what was recognised")
    first, second = packed.tolist()
    edits, errors_in_entities, missed = first >> 2 * BITS, first >> BITS & MASK, first & MASK
    substitutions, entity_substitutions, entity_insertions = second >> 2 * BITS, second >> BITS & MASK, second & MASK
    # The other edits are deletions and insertions. Their difference equals the difference of the texts' lengths.
    deletions = (edits - substitutions + words_said - words_heard) // 2
    insertions = edits - substitutions - deletions
    entity_deletions = errors_in_entities - entity_substitutions - entity_insertions
    entity_words = int(covered.sum())
    entity_hits = entity_words - entity_substitutions - entity_deletions
    of_entities = ErrorCounts(entity_substitutions, entity_deletions, entity_insertions, entity_hits)
    of_others = ErrorCounts(
        substitutions - entity_substitutions,
        deletions - entity_deletions,
        insertions - entity_insertions,
        words_said - substitutions - deletions - of_entities.hits,
    )
    return of_entities, of_others, len(reference_occurrences) - missed


def _ends(occurrences: Sequence[Occurrence], words: int) -> np.ndarray:
    """Return an array, int64 `[words + 1, 2]`. Row i has the index and the length of the entity that ends directly before word
    i. The last row belongs to the end of the text. A row without an entity has -1 and 0. `words`: number of words in the text.
    """
    ends = np.full((words + 1, 2), (-1, 0), dtype=np.int64)
    for start, end, entity in occurrences:
        ends[end] = entity, end - start
    return ends
