"""Convert English numbers from words to digits and back: "twelve" and "12"."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# A number in digits that stands alone: not part of a time, date, version, telephone number or name (B12).
_DIGITS = re.compile(
    r"(?<![\w.,:/])(?<!\d-)(?P<money>[$€£])?(?P<whole>\d{1,3}(?:,\d{3})+|\d+)"
    r"(?:(?P<ordinal>st|nd|rd|th)|(?P<decimals>\.\d+)?(?P<percent>%)?)(?![\w%:/])(?![.,:/-]\d)",
    re.IGNORECASE,
)
_MONEY = {"$": "dollars", "€": "euros", "£": "pounds"}
_LONGEST = 12  # largest number of digits that are read as one number
_MILLION = 1_000_000  # larger numbers are easier to read in words, and seldom written in digits
_IN_ONE_BREATH = re.compile(r"[\s\-‐‑]*")


@dataclass(frozen=True)
class Spelled:
    """Hold a number that a text has in words, and the number's place in the text."""

    # first, last: the number's span of characters, `text[first:last]`
    first: int
    last: int
    digits: str  # the number in digits
    value: float  # the number's value
    is_ordinal: bool  # whether the number is an ordinal ("twelfth", not "twelve")
    alone: bool  # whether no other number, in words or digits, is next to it


def spelled(text: str) -> Iterator[Spelled]:
    """Yield the numbers that are written in words in a text ("twelve", not "12"), in the order of the text.

    "Hundred" alone doesn't count as a number. "Nineteen eighty-four" is one number, a year.
    """
    words = list(WORD.finditer(text))
    gaps = [_IN_ONE_BREATH.fullmatch(text, before.end(), after.start()) is None for before, after in pairwise(words)]
    apart = [True, *gaps, True]  # whether more than blanks and hyphens separates a word from the word before it
    parts = [_NumberWord(match[0], away) for match, away in zip(words, apart)]
    numbers = [(each.start, each.end, each.text, each.value, each.is_ordinal) for each in _find_numbers()(parts, "en", 0.0)]
    taken = {i for start, end, *_ in numbers for i in range(start, end)}
    taken |= {i for i, match in enumerate(words) if match[0][0].isdecimal() or match[0].lower() == "oh"}

    def beside(start: int, end: int) -> tuple[bool, bool]:
        return start - 1 in taken and not apart[start], end in taken and not apart[end]

    while numbers:
        start, end, digits, value, is_ordinal = numbers.pop(0)
        if numbers and numbers[0][0] == end and not apart[end] and not is_ordinal and not numbers[0][4]:
            _, after, _, rest, _ = numbers[0]
            if value in range(11, 21) and rest in range(10, 100) and beside(start, after) == (False, False):
                numbers.pop(0)
                end, value = after, 100 * value + rest
                digits = str(int(value))
        if end > start + 1 or value < 100:
            place = words[start].start(), words[end - 1].end()
            yield Spelled(*place, digits, value, is_ordinal, not any(beside(start, end)))


def to_digits(text: str, least: float, plain: bool = False) -> str:
    """Rewrite a text's numbers from words to digits, such as "12", "21st" and "1984".

    Some numbers stay unchanged: numbers below `least`, "one" (often a pronoun), ordinals below ten, numbers of a million or
    more, and neighbouring numbers, which may be a time or a telephone number.

    Args:
        plain: whether to write numbers without commas and points, for texts without punctuation.
    """
    pieces: list[tuple[int, int, str]] = []
    for number in spelled(text):
        whole = number.value == int(number.value)
        if not number.alone or number.value >= _MILLION or (plain and not whole):
            continue
        if whole and number.value < max(least, 10 if number.is_ordinal else 2):
            continue
        digits = number.digits
        if whole and number.value >= 10_000 and not plain:
            digits = f"{int(number.value):,}{digits.lstrip('0123456789')}"
        pieces.append((number.first, number.last, digits))
    for first, last, digits in reversed(pieces):
        text = text[:first] + digits + text[last:]
    return text


def to_words(text: str, below: float) -> str:
    """Rewrite a text's numbers below a bound from digits to words, such as "twelve", "twenty-first", "nineteen eighty-four".

    If the bound is infinity, sums of money ("five dollars"), percentages and decimals are also rewritten. Times, dates and
    telephone numbers stay unchanged.
    """
    before = ""
    while text != before and any(map(str.isdecimal, text)):  # a number whose neighbour is now in words stands alone
        before, text = text, _DIGITS.sub(lambda match: _in_words(match, below), text)
    return text


def in_digits(text: str) -> Iterator[float]:
    """Yield the values of a text's whole numbers in digits."""
    for match in _DIGITS.finditer(text):
        if not match["decimals"]:
            yield float(match["whole"].replace(",", ""))


class _NumberWord:
    """Implement the interface of tokens that `text2num` expects."""

    def __init__(self, text: str, apart: bool) -> None:
        self._text, self.apart = text, apart

    def text(self) -> str:
        return self._text.lower()

    def nt_separated(self, previous: Any) -> bool:
        return self.apart

    def not_a_number_part(self) -> bool:
        return False


def _in_words(match: re.Match[str], below: float) -> str:
    digits = match["whole"].replace(",", "")
    always = below == float("inf")
    if len(digits) > _LONGEST or not (always or int(digits) < below):
        return match[0]
    if not always and (match["money"] or match["percent"] or match["decimals"]):
        return match[0]
    say = _num2words()
    if match["decimals"]:
        spoken = f"{say(int(digits))} point {' '.join(say(int(digit)) for digit in match['decimals'][1:])}"
    elif match["ordinal"]:
        spoken = say(int(digits), to="ordinal")
    elif len(digits) > 1 and digits[0] == "0":
        spoken = " ".join(say(int(digit)) for digit in digits)
    elif "," not in match["whole"] and not match["money"] and (1100 <= int(digits) < 2000 or 2010 <= int(digits) < 2100):
        spoken = say(int(digits), to="year")
    else:
        spoken = say(int(digits))
    unit = " ".join(filter(None, [_MONEY.get(match["money"] or ""), "percent" if match["percent"] else None]))
    return f"{spoken.replace(',', '')} {unit}".rstrip()


def _find_numbers() -> Callable[..., Any]:
    try:
        from text_to_num import find_numbers
    except ImportError as error:
        raise ImportError("text2num is needed to recognise numbers: pip install 'hf-ngpulm[text]'") from error
    return find_numbers


def _num2words() -> Callable[..., str]:
    try:
        from num2words import num2words
    except ImportError as error:
        raise ImportError("num2words is needed to spell numbers: pip install 'hf-ngpulm[text]'") from error
    return num2words
