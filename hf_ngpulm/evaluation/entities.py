"""Error rates inside and outside of entities, and how many entities were recognised as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..text.normalisation import Normaliser, normaliser
from .counts import ErrorCounts, Normalisation, pairs
from .entity_alignment import Occurrence, aligned_counts


@dataclass(frozen=True)
class EntityMatches:
    """How many occurrences of entities were recognised as a whole.

    Args:
        true_positives: occurrences in the reference that the hypothesis has, word by word, in their place.
        false_positives: occurrences in the hypothesis that aren't among these.
        false_negatives: occurrences in the reference that aren't.
        utterances: those of each utterance; empty in those themselves.
    """

    true_positives: int
    false_positives: int
    false_negatives: int
    utterances: tuple[EntityMatches, ...] = field(default=(), repr=False)

    @classmethod
    def together(cls, utterances: Iterable[EntityMatches]) -> EntityMatches:
        """Return the sums over utterances."""
        each = tuple(utterances)
        return cls(
            true_positives=sum(matches.true_positives for matches in each),
            false_positives=sum(matches.false_positives for matches in each),
            false_negatives=sum(matches.false_negatives for matches in each),
            utterances=each,
        )

    @property
    def precision(self) -> float:
        """Share of the occurrences in hypotheses that are right; NaN if there are none."""
        return _share(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Share of the occurrences in references that were recognised; NaN if there are none."""
        return _share(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN); NaN if no entity occurs anywhere."""
        return _share(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)


@dataclass(frozen=True)
class EntityErrors:
    """Result of `entity_errors`.

    Args:
        entities: errors on words of entities.
        others: errors on all other words.
        matches: entities that were recognised as a whole.
    """

    entities: ErrorCounts
    others: ErrorCounts
    matches: EntityMatches

    @property
    def entity_wer(self) -> float:
        """Errors per word of an entity; NaN if no reference has any (`entities.rate` is 0 then)."""
        return _share(self.entities.errors, self.entities.length)

    @property
    def other_wer(self) -> float:
        """Errors per other word; NaN if no reference has any."""
        return _share(self.others.errors, self.others.length)

    @property
    def wer(self) -> float:
        """Errors per word: the rate of `word_errors`."""
        return (self.entities.errors + self.others.errors) / max(self.entities.length + self.others.length, 1)


def entity_errors(
    references: Iterable[str],
    hypotheses: Iterable[str],
    entities: Iterable[str] | Iterable[Iterable[str]],
    normalise: Normalisation = None,
) -> EntityErrors:
    """Return count errors on entities (names, terms: the phrases that were boosted) and on the other words apart.

    *Occurrences.* In a text they are found from left to right: where several entities begin at a word, the longest one
    counts, and the search goes on after it, so that occurrences never overlap. An entity that is listed twice counts once.

    *Alignment.* Words of reference and hypothesis are aligned with the fewest edits, so that all errors together are as many
    as those of `word_errors`. Where several alignments have as few, the first of these that differs decides: fewest errors on
    entities, most entities recognised as a whole, fewest substitutions, fewest substitutions in entities, fewest insertions
    in them. That leaves no count open, and gives an entity the benefit of the doubt. (jiwer decides otherwise, so that
    `word_errors` may call two errors substitutions that are a deletion and an insertion here.)

    *Error rates.* An error on an entity is a word of one of its occurrences in the reference that is substituted or deleted,
    or a word inserted between two words of an occurrence. Their number per word of such occurrences is the entity WER
    (Nigmatulina et al., "Implementing contextual biasing in GPU decoder for online ASR", Interspeech 2023); all else makes
    the WER of the other words. B-WER and U-WER of Le et al. ("Contextualized streaming end-to-end speech recognition with
    trie-based deep biasing and shallow fusion", Interspeech 2021) part words alike if all entities have one word, but count
    an inserted word to the entities wherever it stands if it is listed; here that lowers the precision.

    *Precision, recall, F1.* A true positive is an occurrence in the reference all of whose words are recognised with nothing
    between them, and that is an occurrence of the same entity in the hypothesis ("new york" isn't one within "new york
    city", if that is listed too). Other occurrences in the hypothesis are false positives: an entity that wasn't said, a
    distractor, one too often or elsewhere. Other occurrences in the reference are false negatives.

    Args:
        references, hypotheses: what was said and what was recognised, one text per utterance.
        entities: a list of phrases for each utterance (empty where there are none), or one list for all. Phrases that the
            reference lacks matter for false positives only.
        normalise: what is done to references, hypotheses and entities alike, see `word_errors`. Entities are found in the
            normalised texts as whole words.

    Raises:
        ValueError: lists of different length; something in them that isn't text; an entity without words.
    """
    texts = pairs(references, hypotheses, normalise)
    clean = normaliser(normalise)
    known: dict[tuple[str, ...], _Phrases] = {}
    inside, outside, matches = [], [], []
    for (reference, hypothesis), phrases in zip(texts, per_utterance(entities, len(texts))):
        if phrases not in known:
            known[phrases] = _Phrases.of(phrases, clean)
        said, heard = reference.split(), hypothesis.split()
        entities_said, entities_heard = known[phrases].occurrences(said), known[phrases].occurrences(heard)
        of_entities, of_others, matched = aligned_counts(said, heard, entities_said, entities_heard)
        inside.append(of_entities)
        outside.append(of_others)
        matches.append(EntityMatches(matched, len(entities_heard) - matched, len(entities_said) - matched))
    return EntityErrors(ErrorCounts.together(inside), ErrorCounts.together(outside), EntityMatches.together(matches))


def per_utterance(entities: Iterable[str] | Iterable[Iterable[str]], count: int) -> list[tuple[str, ...]]:
    """Return the phrases of each of `count` utterances, checked."""
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
    """A number for the words of each entity, and the lengths that there are, longest first."""

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
        """Return where they are in a text."""
        found: list[Occurrence] = []
        start = 0
        while start < len(words):
            ends = (start + length for length in self.lengths if start + length <= len(words))
            end = next((end for end in ends if tuple(words[start:end]) in self.numbers), None)
            if end is not None:
                found.append(Occurrence(start, end, self.numbers[tuple(words[start:end])]))
            start = end or start + 1
        return found


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
