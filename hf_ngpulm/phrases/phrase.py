"""Define `Phrase`, and find phrases and their aliases among the words of a transcript."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..common.checks import WEIGHT, Kind, check, either
from ..text.respelled import AUTO, HOMOPHONES, LANGUAGE, NEAR, sounding_like

NEVER = -math.inf  # the weight of a phrase that is never written
OR_NEVER = either(WEIGHT, Kind("-inf (never written)", lambda value: isinstance(value, float) and value == NEVER))
# Characters around a word that aren't part of it.
_EDGES = ' \t\n.,;:!?"()[]{}\u2026\u201c\u201d\u00bf\u00a1'


@dataclass(frozen=True)
class Phrase:
    """Hold one phrase with its settings.

    If the text or an alias of it is recognised, in any case of letters, the transcript gets exactly this `text`.

    Args:
        text: the text in transcripts.
        weight: bonus of the phrase (natural log, see `hf_ngpulm.PhraseBooster`); None for the list's weight. A phrase with the
            weight -inf is never written.
        threshold: the least log-likelihood ratio (natural log) in a second look (see `hf_ngpulm.PhraseDecoder`). With None, the
            threshold depends on the lengths of phrase and list. With -inf, the phrase always stays.
        aliases: other spellings, for example by sound: `Phrase("n8n", aliases=["n eight n", "enate en"])`. "homophones" selects
            all spellings with the same sounds. "auto" adds spellings in which one easily misheard phone differs (see
            `hf_ngpulm.text.respelled.sounding_like`).
        language: the language of the phrase, such as "de", for "homophones" and "auto"; None for English.

    Raises:
        TypeError: an argument has another type.
        ValueError: a weight isn't a finite number, or a threshold isn't a number.
    """

    text: str
    weight: float | None = None
    threshold: float | None = None
    aliases: Sequence[str] = ()
    language: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.text, str) and self.aliases in (AUTO, HOMOPHONES):
            alike = sounding_like(self.text, within=NEAR if self.aliases == AUTO else 0.0, language=self.language)
            object.__setattr__(self, "aliases", tuple(alike))
        if isinstance(self.aliases, str) or not all(isinstance(text, str) for text in (self.text, *self.aliases)):
            raise TypeError(
                f"a phrase has a text, and a list of texts as its aliases; got text={self.text!r}, aliases={self.aliases!r}"
            )
        object.__setattr__(self, "aliases", tuple(self.aliases))
        if self.language is not None:
            check(f"the language of {self.text!r}", self.language, LANGUAGE)
        if self.weight is not None:
            check(f"the weight of {self.text!r}", self.weight, OR_NEVER)
        if self.weight == NEVER and self.threshold is not None:
            raise ValueError(
                f"{self.text!r} is never written (weight=-inf), so its threshold has no effect; leave one of them out"
            )
        if self.threshold is not None and not float(self.threshold) == self.threshold:
            raise ValueError(f"the threshold of {self.text!r} should be a number, got {self.threshold!r}")


def is_never(item: Any) -> bool:
    """Return whether an item of a list (a phrase, or a pair of a text and a weight) is never written."""
    return (item.weight if isinstance(item, Phrase) else item[1] if isinstance(item, tuple) else None) == NEVER


class Match(NamedTuple):
    """Hold a phrase that occurs in a transcript."""

    first: int  # index of the phrase's first word
    last: int  # index of the word after the phrase
    text: str  # the text to write for the phrase


class Forms:
    """Find phrases among words, and rewrite the phrases. `spoken`: a dictionary from folded words to the text to write."""

    def __init__(self, spoken: Mapping[tuple[str, ...], str] | None = None) -> None:
        self.spoken = dict(spoken or {})
        self.longest: dict[str, int] = {}  # by the first word
        for words in self.spoken:
            self.longest[words[0]] = max(len(words), self.longest.get(words[0], 0))

    def __bool__(self) -> bool:
        return bool(self.spoken)

    @classmethod
    def of(cls, phrases: Any, every: bool = False) -> Forms:
        """Return the forms of the `Phrase` objects among phrases; with `every`, also the forms of texts and pairs.

        If two phrases share a form, a phrase's own text has priority over aliases, and an earlier phrase has priority over
        later phrases. For a phrase that is never written, the text to write is empty.
        """
        phrases = list(phrases.items() if isinstance(phrases, Mapping) else phrases)
        others = [item for item in phrases if not isinstance(item, str)]
        never = {folded(text.split()) for item in others if is_never(item) for text in texts_of(item)}
        own: dict[tuple[str, ...], str] = {}
        of_aliases: dict[tuple[str, ...], str] = {}
        for item in phrases if every or never else others:
            texts = texts_of(item)
            # A text that contains a never-written phrase needs a form of its own, so that it is kept.
            if not isinstance(item, Phrase) and not every and not (never and _has_any(folded(texts[0].split()), never)):
                continue
            for into, text in ((own, texts[0]), *((of_aliases, alias) for alias in texts[1:])):
                words = folded(text.split())
                if all(words) and words:
                    into.setdefault(words, texts[0])
        return cls({**of_aliases, **own, **{words: "" for words in never if all(words) and words}})

    def found(self, words: Sequence[str]) -> list[Match]:
        """Return the phrases among words, from left to right. If several phrases begin at a word, the longest phrase counts."""
        matches: list[Match] = []
        folds, place = folded(words), 0
        while place < len(folds):
            most = min(self.longest.get(folds[place], 0), len(folds) - place)
            for count in range(most, 0, -1):
                text = self.spoken.get(folds[place : place + count])
                if text is not None:
                    matches.append(Match(place, place + count, text))
                    place += count
                    break
            else:
                place += 1
        return matches

    def written(self, text: str) -> str:
        """Return a transcript in which the words of each phrase are replaced by the text to write for it. Everything else,
        including spaces, is unchanged. If the text to write is empty, the space before the phrase is removed, too.
        """
        spans, end = [], 0
        for word in text.split():
            end = text.index(word, end) + len(word)
            spans.append((end - len(word), end, word))
        for first, last, wanted in reversed(self.found([word for *_, word in spans])):
            begin, finish = spans[first][0], spans[last - 1][1]
            before = text[:begin] if wanted else text[:begin].rstrip()
            text = before + edged(wanted, text[begin:finish]) + text[finish:]
        return text.lstrip() if "" in self.spoken.values() else text


def texts_of(item: Any) -> list[str]:
    """Return the text and the aliases of an item of a list of phrases."""
    return [item.text, *item.aliases] if isinstance(item, Phrase) else [item if isinstance(item, str) else item[0]]


def _has_any(words: tuple[str, ...], spans: Iterable[tuple[str, ...]]) -> bool:
    return any(words[n : n + len(span)] == span for span in spans for n in range(len(words) - len(span) + 1))


def folded(words: Iterable[str]) -> tuple[str, ...]:
    """Return words for comparison: without differences in case, and without the marks around each word."""
    return tuple(stripped(word).casefold() for word in words)


def stripped(word: str) -> str:
    """Return a word without the marks around it."""
    return word.strip(_EDGES)


def edged(wanted: str, heard: str) -> str:
    """Return `wanted` with the punctuation around `heard`."""
    core = stripped(heard)
    before = heard[: len(heard) - len(heard.lstrip(_EDGES))]
    return f"{before}{wanted}{heard[len(before) + len(core) :]}"
