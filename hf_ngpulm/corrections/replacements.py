"""Align what was heard with what was meant, and find what sounds alike in the places that differ.

Words that both texts share are fixed first. Between them, groups of up to `MOST_WORDS` words of one text stand for groups of
the other, so that the sum of the groups' distances in sound is least.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

from ..phrases.phrase import folded
from ..text.sounds import distance, readings, unlikeness

MOST_WORDS = 4
# So unlike may a word and its mishearing be: 73% of a recogniser's replacements of one word are, and 4% of random pairs.
SOUND_ALIKE = 0.5
_PER_WORD = 0.1  # so that of equally good groups the smallest count
_MOST_REGION = 12  # words of a region; a longer one was written anew


class Replacement(NamedTuple):
    """Hold words that were heard, and the words that were meant instead; with `alike`, both sound alike."""

    heard: str
    meant: str
    alike: bool


class Aligned(NamedTuple):
    """Hold an alignment, from left to right.

    Args:
        right: runs of words that were heard rightly.
        places: the places of these words in what was heard and in what was meant.
        replaced: words in place of others.
    """

    right: list[list[str]]
    places: list[tuple[int, int]]
    replaced: list[Replacement]


@lru_cache(4096)
def align(heard: str, meant: str) -> Aligned:
    """Align two texts by words. Marks around words and case don't count as differences."""
    ours, theirs = heard.split(), meant.split()
    found = Aligned([], [], [])
    matcher = SequenceMatcher(None, folded(ours), folded(theirs), autojunk=False)
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        if kind == "equal":
            found.right.append(theirs[j:j_end])
            found.places.extend(zip(range(i, i_end), range(j, j_end)))
        elif kind == "replace":
            found.replaced.extend(_groups(ours[i:i_end], theirs[j:j_end]))
    return found


def sound_alike(heard: str, meant: str) -> bool:
    """Return whether one text may be a mishearing of the other."""
    return unlikeness(heard, meant) <= SOUND_ALIKE


def _groups(heard: Sequence[str], meant: Sequence[str]) -> list[Replacement]:
    """Return the replacements in a region without common words."""
    if max(len(heard), len(meant)) > _MOST_REGION:
        return [Replacement(" ".join(heard), " ".join(meant), False)]
    # The least cost of the first i and j words, and the sizes of the last group.
    best: dict[tuple[int, int], tuple[float, int, int]] = {(0, 0): (0.0, 0, 0)}
    for i in range(len(heard) + 1):
        for j in range(len(meant) + 1):
            for a in range(min(i, MOST_WORDS) + 1):
                for b in range(min(j, MOST_WORDS) + 1):
                    # Words that are left out or put in come one by one.
                    if (a or b) and ((a and b) or a + b == 1):
                        cost = best[i - a, j - b][0] + _distance(heard[i - a : i], meant[j - b : j])
                        if (i, j) not in best or cost < best[i, j][0]:
                            best[i, j] = cost, a, b
    i, j = len(heard), len(meant)
    found: list[Replacement] = []
    while i or j:
        _, a, b = best[i, j]
        if a and b:
            pair = " ".join(heard[i - a : i]), " ".join(meant[j - b : j])
            found.append(Replacement(*pair, sound_alike(*pair)))
        i, j = i - a, j - b
    return found[::-1]


def _distance(heard: Sequence[str], meant: Sequence[str]) -> float:
    pairs = ((a, b) for a in readings(" ".join(heard)) or ("",) for b in readings(" ".join(meant)) or ("",))
    return min(distance(a, b) for a, b in pairs) + _PER_WORD * max(len(heard) + len(meant) - 2, 0)
