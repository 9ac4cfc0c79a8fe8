"""Align a recognised text with the meant text, and decide which differing words sound alike.

Words that both texts share are aligned first. In the regions between shared words, groups of up to `MOST_WORDS` words of both
texts are aligned. The alignment minimises the sum of the distances in sound between aligned groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..phrases.phrase import folded
from ..text.sounds import distances, readings, unlikeness

MOST_WORDS = 4
# Largest distance in sound of a word and its mishearing. 73% of a recogniser's replacements of one word are within this
# distance, and 4% of random pairs.
SOUND_ALIKE = 0.5
_PER_WORD = 0.1  # cost of each further word of a group, so that smaller groups are preferred among equals
_MOST_REGION = 12  # words of a region; longer regions count as rewritten
_MOST_CELLS = 400_000  # steps to compare the sounds in all regions of a text; a region of 12 English words takes as many


class Replacement(NamedTuple):
    """Hold words of the recognised text and the words that were meant instead."""

    heard: str
    meant: str
    alike: bool  # whether heard and meant words sound alike


class Aligned(NamedTuple):
    """Hold an alignment, from left to right.

    Args:
        right: runs of correct words.
        places: for each correct word, the word's places in the recognised text and in the meant text.
        replaced: the replacements between correct words.
    """

    right: list[list[str]]
    places: list[tuple[int, int]]
    replaced: list[Replacement]


def align(heard: str, meant: str) -> Aligned:
    """Align two texts word by word. Differences in case and in punctuation around words don't count.

    After a total of `_MOST_CELLS` steps, further regions aren't compared. Such regions count as rewritten.
    """
    ours, theirs = heard.split(), meant.split()
    aligned, cells = Aligned([], [], []), 0
    ends = -1, -1
    for i, j in [*shared_words(folded(ours), folded(theirs)), (len(ours), len(theirs))]:
        mine, other = ours[ends[0] + 1 : i], theirs[ends[1] + 1 : j]
        if mine and other:
            region = _Region.of(mine, other)
            cells += region.cells
            aligned.replaced.extend(region.groups() if cells <= _MOST_CELLS else [region.rewritten()])
        if (i, j) != (len(ours), len(theirs)):
            if mine or other or not aligned.right:
                aligned.right.append([])
            aligned.right[-1].append(theirs[j])
            aligned.places.append((i, j))
        ends = i, j
    return aligned


def shared_words(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Return a longest common subsequence of words. Each word is a pair of its index in `ours` and its index in `theirs`. Among
    subsequences of equal length, later words are preferred.
    """
    numbers = {word: n for n, word in enumerate(dict.fromkeys((*ours, *theirs)))}
    mine, other = (np.array([numbers[word] for word in words], dtype=np.int64) for words in (ours, theirs))
    lengths = np.zeros((len(ours) + 1, len(theirs) + 1), dtype=np.int64)  # of the longest common subsequence of beginnings
    for i, word in enumerate(mine):
        longer = np.maximum(lengths[i, 1:], lengths[i, :-1] + (other == word))
        np.maximum.accumulate(longer, out=lengths[i + 1, 1:])
    i, j, places = len(ours), len(theirs), []
    while i and j:
        if ours[i - 1] == theirs[j - 1]:
            i, j = i - 1, j - 1
            places.append((i, j))
        elif lengths[i - 1, j] >= lengths[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return places[::-1]


def sound_alike(heard: str, meant: str) -> bool:
    """Return whether one text may be a mishearing of the other."""
    return unlikeness(heard, meant) <= SOUND_ALIKE


class _Region(NamedTuple):
    """Hold the words of both texts between two shared words. These words differ.

    Args:
        heard, meant: the words of each text.
        ours, theirs: the pronunciations of groups of up to `MOST_WORDS` of these words; see `_readings`.
        cells: number of steps to compare all groups.
    """

    heard: Sequence[str]
    meant: Sequence[str]
    ours: dict[tuple[int, int], tuple[str, ...]]
    theirs: dict[tuple[int, int], tuple[str, ...]]
    cells: int

    @classmethod
    def of(cls, heard: Sequence[str], meant: Sequence[str]) -> _Region:
        if max(len(heard), len(meant)) > _MOST_REGION:
            return cls(heard, meant, {}, {}, _MOST_CELLS + 1)
        spans = _readings(heard), _readings(meant)
        sizes = [sum(len(text) for texts in each.values() for text in texts) for each in spans]
        return cls(heard, meant, *spans, sizes[0] * sizes[1])

    def rewritten(self) -> Replacement:
        """Return the region as one replacement, without comparing its words."""
        return Replacement(" ".join(self.heard), " ".join(self.meant), False)

    def groups(self) -> list[Replacement]:
        """Divide the region into replacements, so that the sum of their distances in sound is as small as possible."""
        distance = self._distances()
        # For the first i and j words: the least cost, and the sizes of the last groups.
        best: dict[tuple[int, int], tuple[float, int, int]] = {(0, 0): (0.0, 0, 0)}
        for i in range(len(self.heard) + 1):
            for j in range(len(self.meant) + 1):
                for a in range(min(i, MOST_WORDS) + 1):
                    for b in range(min(j, MOST_WORDS) + 1):
                        # Words that are deleted or inserted form no groups.
                        if (a and b) or a + b == 1:
                            cost = best[i - a, j - b][0] + distance[i - a, a][j - b, b] + _PER_WORD * max(a + b - 2, 0)
                            if (i, j) not in best or cost < best[i, j][0]:
                                best[i, j] = cost, a, b
        i, j = len(self.heard), len(self.meant)
        replacements: list[Replacement] = []
        while i or j:
            _, a, b = best[i, j]
            if a and b:
                pair = " ".join(self.heard[i - a : i]), " ".join(self.meant[j - b : j])
                replacements.append(Replacement(*pair, sound_alike(*pair)))
            i, j = i - a, j - b
        return replacements[::-1]

    def _distances(self) -> dict[tuple[int, int], dict[tuple[int, int], float]]:
        """Return the distance in sound of each group of `heard` from each group of `meant`, by their closest pronunciations."""
        flat = [[text for texts in spans.values() for text in texts] for spans in (self.ours, self.theirs)]
        starts = [np.cumsum([0, *map(len, spans.values())])[:-1] for spans in (self.ours, self.theirs)]
        closest = np.minimum.reduceat(np.minimum.reduceat(distances(*flat), starts[0]), starts[1], 1)
        return {span: dict(zip(self.theirs, row)) for span, row in zip(self.ours, closest.tolist())}


def _readings(words: Sequence[str]) -> dict[tuple[int, int], tuple[str, ...]]:
    """Return the pronunciations of each group of up to `MOST_WORDS` words. A key is a pair of the index of the group's first
    word and the group's number of words.
    """
    spans = ((first, size) for first in range(len(words) + 1) for size in range(min(MOST_WORDS, len(words) - first) + 1))
    return {(first, size): readings(" ".join(words[first : first + size])) or ("",) for first, size in spans}
