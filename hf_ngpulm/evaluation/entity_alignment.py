"""The alignment by which errors are told apart into those on entities and others (`csrc/alignment.cpp`).

`entity_errors` says which alignment is meant. Each step of an alignment adds to six counts (edits, errors on entities, entities
not recognised as a whole; substitutions, those in entities, insertions in entities), and the alignment with the lowest counts,
compared from the first to the last, is found by dynamic programming over both texts. The counts are packed into two integers,
so that adding and comparing these does it for all of them; nothing has to be traced back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..engines.native import Function
from .counts import ErrorCounts

BITS = 21  # of each count
MASK = (1 << BITS) - 1

_lowest_counts = Function("ngpulm_lowest_counts")


class Occurrence(NamedTuple):
    """Words `start` to `end` (exclusive) of a text are the entity of this number."""

    start: int
    end: int
    entity: int


def aligned_counts(
    reference: Sequence[str],
    hypothesis: Sequence[str],
    reference_occurrences: Sequence[Occurrence],
    hypothesis_occurrences: Sequence[Occurrence],
) -> tuple[ErrorCounts, ErrorCounts, int]:
    """Return errors on words of entities and on others, and the number of entities recognised as a whole.

    Args:
        reference, hypothesis: words of one utterance.
        reference_occurrences, hypothesis_occurrences: of entities in these, none overlapping.
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
        inside[start + 1 : end] = True  # places between words: number i is in front of word i
    ends = _ends(reference_occurrences, words_said), _ends(hypothesis_occurrences, words_heard)
    longest = max((end - start for start, end, _ in reference_occurrences), default=1)
    found = np.zeros(2, dtype=np.int64)
    arguments = (said, heard, covered, inside, *ends, len(reference_occurrences), longest, found)
    place = _lowest_counts(words_said, words_heard, *arguments)
    if place >= 0:
        raise ValueError(f"the entity that ends at word {place} of {words_said} isn't as long in what was recognised")
    first, second = found.tolist()
    edits, entity_errors, missed = first >> 2 * BITS, first >> BITS & MASK, first & MASK
    substitutions, entity_substitutions, entity_insertions = second >> 2 * BITS, second >> BITS & MASK, second & MASK
    # Deletions and insertions are what other edits there are, and differ by as much as the texts do in length.
    deletions = (edits - substitutions + words_said - words_heard) // 2
    insertions = edits - substitutions - deletions
    entity_deletions = entity_errors - entity_substitutions - entity_insertions
    entity_words = int(covered.sum())
    of_entities = ErrorCounts(
        entity_substitutions,
        entity_deletions,
        entity_insertions,
        entity_words - entity_substitutions - entity_deletions,
    )
    of_others = ErrorCounts(
        substitutions - entity_substitutions,
        deletions - entity_deletions,
        insertions - entity_insertions,
        words_said - substitutions - deletions - of_entities.hits,
    )
    return of_entities, of_others, len(reference_occurrences) - missed


def _ends(occurrences: Sequence[Occurrence], words: int) -> np.ndarray:
    """Return int64 `[words + 1, 2]`: number and length of the entity that ends in front of each word; -1 and 0 for none."""
    ends = np.full((words + 1, 2), (-1, 0), dtype=np.int64)
    for start, end, entity in occurrences:
        ends[end] = entity, end - start
    return ends
