"""The alignment by which errors are told apart into those on entities and others, as compiled loops.

`entity_errors` says which alignment is meant. Each step of an alignment adds to six counts (edits, errors on entities, entities
not recognised as a whole; substitutions, those in entities, insertions in entities), and the alignment with the lowest counts,
compared from the first to the last, is found by dynamic programming over both texts. The counts are packed into two integers,
so that adding and comparing these does it for all of them; nothing has to be traced back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..automaton.compiled import compiled
from .counts import ErrorCounts

BITS = 21  # of each count
MASK = (1 << BITS) - 1
FIRST, SECOND = 1 << 2 * BITS, 1 << BITS  # what adds one to the first and second count of an integer; 1 does to the third
HIGHEST = (1 << 63) - 1


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
    """Errors on words of entities and on others, and the number of entities recognised as a whole.

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
    first, second = _lowest_counts(said, heard, covered, inside, *ends, len(reference_occurrences), longest)

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
    """int64 `[words + 1, 2]`: number and length of the entity that ends in front of each word; -1 and 0 for none."""
    ends = np.full((words + 1, 2), (-1, 0), dtype=np.int64)
    for start, end, entity in occurrences:
        ends[end] = entity, end - start
    return ends


@compiled
def _lowest_counts(said, heard, covered, inside, said_ends, heard_ends, occurrences, longest):
    rows = longest + 1  # of the table that have to be kept
    firsts = np.empty((rows, len(heard) + 1), dtype=np.int64)
    seconds = np.empty((rows, len(heard) + 1), dtype=np.int64)
    for i in range(len(said) + 1):
        row, above = i % rows, (i - 1) % rows
        for j in range(len(heard) + 1):
            first, second = HIGHEST, HIGHEST
            if i == 0 and j == 0:
                first, second = occurrences, 0
            if j > 0:  # insertion
                a, b = firsts[row, j - 1] + FIRST, seconds[row, j - 1]
                if inside[i]:
                    a, b = a + SECOND, b + 1
                if a < first or (a == first and b < second):
                    first, second = a, b
            if i > 0:  # deletion
                a, b = firsts[above, j] + FIRST, seconds[above, j]
                if covered[i - 1]:
                    a += SECOND
                if a < first or (a == first and b < second):
                    first, second = a, b
            if i > 0 and j > 0:
                a, b = firsts[above, j - 1], seconds[above, j - 1]
                if said[i - 1] != heard[j - 1]:  # substitution
                    a, b = a + FIRST, b + FIRST
                    if covered[i - 1]:
                        a, b = a + SECOND, b + SECOND
                if a < first or (a == first and b < second):
                    first, second = a, b
                if said_ends[i, 0] >= 0 and said_ends[i, 0] == heard_ends[j, 0]:  # all words of an entity at once
                    length = said_ends[i, 1]
                    a, b = firsts[(i - length) % rows, j - length] - 1, seconds[(i - length) % rows, j - length]
                    if a < first or (a == first and b < second):
                        first, second = a, b
            firsts[row, j], seconds[row, j] = first, second
    return firsts[len(said) % rows, len(heard)], seconds[len(said) % rows, len(heard)]
