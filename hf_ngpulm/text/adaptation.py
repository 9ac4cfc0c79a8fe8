"""Rewrite texts in a recogniser's style: its case, punctuation and numbers. Transcripts or the tokenizer show the style."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from .normalisation import without_punctuation
from .numbers import WORD, in_digits, spelled, to_digits, to_words
from .sources import read_texts
from .style import begins_capital, ends_marked, style_of, style_written_by
from .vocabulary import tokenizer_of
from .words import UNSPACED, begins_with_blank

USUAL = 0.5  # share of transcripts that makes a style the recogniser's
SHOUTED = 0.95  # share of words in capitals that makes a text caseless
OFTEN = 2  # occurrences of a word that make its case certain
WHISPER_DIGITS = 10  # smallest number that Whisper writes in digits, if its transcripts don't show it
_WHISPER_OF_ENGLISH = 50256  # id of <|endoftext|> in English-only Whispers; in other Whispers it is 50257
_HYPHEN = "‐‑-"
_HYPHENS = re.compile(f"[{_HYPHEN}]")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_SENTENCE_END = re.compile(r"[.?!]\s*$")
_I = re.compile(r"(?<![\w'’-])i(?=$|[\s,.;:?!]|['’](?:d|m|ll|ve)\b)")


@dataclass(frozen=True)
class Habits:
    """Describe the style of a recogniser's transcripts. An attribute is None if it isn't known."""

    case: str | None = None  # "lower", "upper", or "sentence" (texts begin with a capital letter)
    # words that have capitals inside a sentence ("NASA", "Anna"), by their lowercase form
    capitals: Mapping[str, str] = field(default_factory=dict)
    end: str | None = None  # the usual punctuation mark at the end of texts; "" if the recogniser writes no punctuation
    # other punctuation marks at the end of texts, by the first word of the text ("what": "?")
    ends: Mapping[str, str] = field(default_factory=dict)
    # the smallest number that is written in digits; infinity if all numbers are written in words
    digits_from: float | None = None
    hyphenless: bool = False  # whether the recogniser never writes hyphens
    language: str | None = None  # the language of the texts, such as "en"; None if it isn't known


def habits_of(recogniser: Any, outputs: Iterable[str] | None = None, language: str | None = None) -> Habits:
    """Return the style of a recogniser.

    Args:
        recogniser: the recogniser's tokenizer or processor, a repo or folder with a tokenizer, or the recogniser's transcripts
            (a list, or a file with one transcript per line).
        outputs: some of the recogniser's transcripts. Transcripts show more of the style than a tokenizer.
        language: the language of the texts; by default "en" for English-only Whisper models. Only English numbers are
            rewritten.

    Raises:
        ValueError: the arguments don't show the style, there are no transcripts, or transcripts are passed twice.
    """
    if isinstance(recogniser, str) and os.path.isfile(recogniser):
        given: list[str] | None = list(filter(None, read_texts([recogniser])))
    elif isinstance(recogniser, Sequence) and not isinstance(recogniser, str):
        given = list(recogniser)
    else:
        given = None
    if given is not None and outputs is not None:
        raise ValueError("the recogniser's transcripts were given twice, as style_of and as outputs; give them once")
    transcripts = given if outputs is None else list(outputs)
    written = Habits(language=language) if given is not None else written_by(tokenizer_of(recogniser), language)
    if transcripts is not None:
        if not transcripts:
            raise ValueError("the list of the recogniser's transcripts is empty; pass some, to show its style")
        seen = shown_by(transcripts, written.language)
        if seen.digits_from is None:
            seen = replace(seen, digits_from=written.digits_from)
        hyphenless = written.hyphenless if given is None else not any(mark in text for text in transcripts for mark in _HYPHEN)
        return replace(seen, hyphenless=hyphenless)
    if (written.case, written.end, written.digits_from) == (None, None, None):
        raise ValueError(
            "the tokenizer doesn't tell how the recogniser writes (its pieces can write anything); give some of its "
            "transcripts as outputs (--outputs)"
        )
    return written


def written_by(tokenizer: Any, language: str | None = None) -> Habits:
    """Return the style that a tokenizer allows."""
    if begins_with_blank(tokenizer):  # Whisper's pieces can write anything, but its style is known
        if language is None and tokenizer.convert_tokens_to_ids("<|endoftext|>") == _WHISPER_OF_ENGLISH:
            language = "en"
        return Habits("sentence", end=".", digits_from=WHISPER_DIGITS, language=language)
    style = style_written_by(tokenizer)
    case = None if style.cased is None else "sentence" if style.cased else "upper" if style.upper else "lower"
    end = "" if style.punctuated == 0 else "." if case == "sentence" else None
    hyphenless = not any(mark in piece for piece in tokenizer.get_vocab() for mark in _HYPHEN) and case is not None
    return Habits(case, end=end, digits_from=inf if style.digits == 0 else None, hyphenless=hyphenless, language=language)


def shown_by(transcripts: Sequence[str], language: str | None = None) -> Habits:
    """Return the style of transcripts."""
    style = style_of(transcripts)
    begins = [begin for begin in map(begins_capital, transcripts) if begin is not None]
    case: str | None = None
    if style.upper is not None and style.cased is False:
        case = "upper" if style.upper > 0.5 else "lower"
    elif begins and sum(begins) / len(begins) >= USUAL:
        case = "sentence"
    inside = any(unicodedata.category(mark) == "Po" and mark not in "'’" for text in transcripts for mark in text)
    marks = Counter(text.rstrip()[-1] for text in transcripts if ends_marked(text))
    end, ends = "" if not inside else None, {}
    if style.punctuated is not None and style.punctuated >= USUAL:
        end = marks.most_common(1)[0][0]
        ends = _ends(transcripts, end)
    capitals = _capitals(transcripts) if case == "sentence" else {}
    if language == "en":
        digits_from = _digits_from(transcripts)
    else:  # numbers in words aren't recognised in other languages, so only the smallest number in digits is known
        digits_from = min((value for text in transcripts for value in in_digits(text)), default=inf)
    return Habits(case, capitals, end, ends, digits_from, language=language)


class Adapter:
    """Rewrite texts in a recogniser's style and count the changes. A text that already has the style stays unchanged.

    Args:
        habits: the recogniser's style.
        sample: some of the texts. If the sample is in capitals, but the recogniser writes both cases, texts are lowercased.
    """

    def __init__(self, habits: Habits, sample: Iterable[str] = ()) -> None:
        self.habits, self.texts = habits, 0
        self.changes: dict[str, tuple[int, str, str]] = {}
        words = [word for text in sample for word in WORD.findall(text)]
        self.has_digits = any(map(str.isdecimal, "".join(words)))
        # Words of one letter ("I") don't count, because they may be capitals in any text.
        shouted = [word.isupper() for word in words if len(word) > 1 and word.upper() != word.lower()]
        is_shouted = bool(shouted) and sum(shouted) / len(shouted) > SHOUTED
        steps: list[tuple[str, Callable[[str], str]]] = []
        least = habits.digits_from if habits.language == "en" else None
        if habits.case in ("lower", "sentence") and (habits.case == "lower" or is_shouted):
            steps.append(("small letters", str.lower))
        if habits.hyphenless:
            steps.append(("no hyphens", _without_hyphens))
        if least:
            bound = f"below {least:g} " if least < inf else ""
            steps.append((f"numbers {bound}in words", lambda text: to_words(text, least)))
        if habits.end == "":
            steps.append(("no punctuation", lambda text: " ".join(without_punctuation(text).split())))
        if least is not None and least < inf:
            plain = habits.end == ""
            steps.append((f"numbers from {least:g} on in digits", lambda text: to_digits(text, least, plain)))
        if habits.hyphenless:
            steps.append(("no hyphens in numbers", _without_hyphens))
        if habits.case == "sentence":
            steps.append(("capitals", self._capitals))
        elif habits.case == "upper":
            steps.append(("capitals", str.upper))
        if habits.end:
            steps.append(("a mark at the end", self._end))
        self.steps = steps

    def __call__(self, text: str) -> str:
        self.texts += 1
        for name, step in self.steps:
            before, text = text, step(text)
            if text != before:
                count, *example = self.changes.get(name, (0, before, text))
                self.changes[name] = (count + 1, example[0], example[1])
        return text

    def anew(self) -> Adapter:
        """Return an adapter that makes the same changes. Its counts are zero."""
        new = copy(self)
        new.texts, new.changes = 0, {}
        return new

    def add(self, other: Adapter) -> None:
        """Add the counts of another adapter. The other adapter rewrote the texts that follow this adapter's texts."""
        self.texts += other.texts
        for name, (count, before, after) in other.changes.items():
            already, *first = self.changes.get(name, (0, before, after))
            self.changes[name] = (already + count, first[0], first[1])

    def told(self) -> list[str]:
        """Return a line for each kind of change, with its count and an example."""
        return [
            f"{name}: {count:,} of {self.texts:,} texts, such as {_example(before, after)}"
            for name, (count, before, after) in self.changes.items()
        ]

    def notices(self) -> list[str]:
        """Return messages about numbers that stay unchanged because the language isn't English or isn't known."""
        least = self.habits.digits_from
        if self.habits.language == "en" or least is None or (least == inf and not self.has_digits):
            return []
        language = self.habits.language
        said = "" if language is None else f", not in {language!r}"
        return [
            f"numbers are left as the text has them: they are known in English only{said}"
            + ("; if the text is English, say so with language='en' (--language en)" if language is None else "")
        ]

    def _capitals(self, text: str) -> str:
        capitals, english = self.habits.capitals, self.habits.language == "en"

        def written(match: re.Match[str]) -> str:
            return capitals.get(match[0], match[0])

        text = WORD.sub(written, text)
        if english:
            text = _I.sub("I", text)
        place = next((i for i, character in enumerate(text) if character.isalnum()), None)
        if place is None or not text[place].islower() or len(text[place].upper()) > 1:
            return text
        return text[:place] + text[place].upper() + text[place + 1 :]

    def _end(self, text: str) -> str:
        bare = text.rstrip()
        if not bare or unicodedata.category(bare[-1])[0] in "PSC" or (self.habits.end == "." and _UNSPACED.match(bare[-1])):
            return text
        first = WORD.search(bare)
        mark = self.habits.ends.get(first[0].lower(), self.habits.end) if first else self.habits.end
        return f"{bare}{mark}"


def _without_hyphens(text: str) -> str:
    return " ".join(_HYPHENS.sub(" ", text).split())


def _capitals(transcripts: Iterable[str]) -> dict[str, str]:
    """Find words that usually have capitals inside sentences. Return a mapping from each word's lowercase form to its usual
    form.
    """
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text in transcripts:
        for match in WORD.finditer(text):
            before = text[: match.start()].strip()
            if before and not _SENTENCE_END.search(before):
                forms[match[0].lower()][match[0]] += 1
    most = {word: counts.most_common(1)[0] for word, counts in forms.items()}
    return {
        word: form
        for word, (form, count) in most.items()
        if form != word and count >= OFTEN and 2 * count > forms[word].total()
    }


def _ends(transcripts: Iterable[str], usual: str) -> dict[str, str]:
    """Return a mapping from a word to the most frequent end mark of the texts that begin with this word. If this end mark
    equals `usual`, the mapping doesn't contain the word.
    """
    marks: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text in transcripts:
        first = WORD.search(text)
        if first and ends_marked(text):
            marks[first[0].lower()][text.rstrip()[-1]] += 1
    usual_marks = {word: counts.most_common(1)[0][0] for word, counts in marks.items()}
    return {word: mark for word, mark in usual_marks.items() if mark != usual}


def _digits_from(transcripts: Iterable[str]) -> float | None:
    """Return the smallest number that is written in digits; None if the transcripts contain no numbers.

    The transcripts may be inconsistent, so the result is the bound that the fewest numbers contradict. If several bounds tie,
    the largest bound is returned. "One" and ordinals below ten aren't counted.
    """
    words: Counter[float] = Counter()
    digits: Counter[float] = Counter()
    for text in transcripts:
        digits.update(in_digits(text))
        words.update(each.value for each in spelled(text) if each.alone and each.value >= (10 if each.is_ordinal else 2))
    if not words and not digits:
        return None
    bounds = [*sorted(words.keys() | digits.keys()), inf]

    def wrong(bound: float) -> int:
        return sum(n for value, n in words.items() if value >= bound) + sum(n for value, n in digits.items() if value < bound)

    return min(reversed(bounds), key=wrong)


def _example(before: str, after: str, around: int = 20, most: int = 50) -> str:
    """Return excerpts of two texts. `around`: number of characters before the first difference at which long texts are cut.
    `most`: maximum number of characters of an excerpt.
    """
    differ = (place for place, pair in enumerate(zip(before, after)) if pair[0] != pair[1])
    same = next(differ, min(len(before), len(after)))
    first = max(0, same - around) if max(len(before), len(after)) > most else 0
    shown = [
        f"{'…' if first else ''}{text[first : first + most]}{'…' if first + most < len(text) else ''}"
        for text in (before, after)
    ]
    return f"{shown[0]!r} -> {shown[1]!r}"
