"""Turn templates with parts of words ("light[s]", "{name}s", "l'{area}") into expressions of whole words.

Adjacent parts without a space make one word. Expressions consist of whole words, so "light[s]" becomes a choice of "light" and
"lights". A list next to letters becomes a derived list, whose entries contain these letters. A word at the end of a part is
unfinished until the next part shows whether more letters follow. The parts of an unfinished word are an `Open`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from .expressions import Choice, Expression, Sequence, Words

# Scripts that are written without spaces (Thai, Lao, Burmese, Khmer, Chinese and Japanese): parts are words there.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
_PUNCTUATION = ".。,，?¿？؟!¡！;；:：’…—–―"
MOST_OPEN = 10_000  # ways to begin a word
NO_WORDS = Words("")


@dataclass(frozen=True, eq=False)
class Fill:
    """A part of a template that becomes an expression, such as a list. Letters may come directly before or after the part."""

    whole: Expression  # the expression if no letters touch the part
    # returns the expression with letters before and after it; None if letters next to the part are separate words
    within: Callable[[str, str], Expression] | None = None


Open: TypeAlias = tuple["str | Fill", ...]  # the parts of an unfinished word; empty between words
Ways: TypeAlias = dict[Open, Expression]  # from unfinished words to the expression before them


@dataclass(frozen=True, eq=False)
class Run:
    """Parts in sequence. No space is added between parts: "light" and "s" make the word "lights"."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class AnyOf:
    """One of several parts."""

    options: tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class AnyOrder:
    """All of several parts, in any order."""

    parts: tuple[Part, ...]


Part: TypeAlias = "str | Fill | Run | AnyOf | AnyOrder"


@dataclass
class Gluer:
    """Turn parts into expressions. Results are cached by part and by the unfinished word before the part."""

    known: dict[tuple[Part, Open], Ways] = field(default_factory=dict)
    orders: dict[tuple[Part, ...], Part] = field(default_factory=dict)

    def expression(self, part: Part) -> Expression:
        """Return the expression of a whole sentence."""
        return _sum(_then(before, _word(opened)) for opened, before in self._ways(part, ()).items())

    def _ways(self, part: Part, opened: Open) -> Ways:
        """Return the ways to read a part. Each way is an item of a dictionary: the key is the unfinished word at the part's
        end, and the value is an expression of the words before that word. `opened`: the unfinished word before the part.
        """
        if isinstance(part, str):
            return _read(part, opened)
        if isinstance(part, Fill):
            return _filled(part, opened)
        if (part, opened) not in self.known:
            self.known[part, opened] = self._ways_of_group(part, opened)
        return self.known[part, opened]

    def _ways_of_group(self, part: Run | AnyOf | AnyOrder, opened: Open) -> Ways:
        if isinstance(part, Run):
            done: Expression = NO_WORDS
            ways: Ways = {opened: NO_WORDS}
            for each in part.parts:
                ways = _merged(
                    (after, _then(before, more))
                    for here, before in ways.items()
                    for after, more in self._ways(each, here).items()
                )
                if len(ways) == 1:  # the common beginning isn't repeated for each continuation
                    ((here, before),) = ways.items()
                    done, ways = _then(done, before), {here: NO_WORDS}
            return {here: _then(done, before) for here, before in ways.items()}
        options: Iterable[Part] = part.options if isinstance(part, AnyOf) else self._first_of(part)
        return _merged(way for option in options for way in self._ways(option, opened).items())

    def _first_of(self, order: AnyOrder) -> Iterable[Part]:
        """For each part, yield a sequence that begins with this part and goes on with the other parts in any order."""
        for first in order.parts:
            rest = tuple(each for each in order.parts if each is not first)
            if rest not in self.orders:
                self.orders[rest] = AnyOrder(rest) if len(rest) > 1 else Run(rest)
            yield Run((first, self.orders[rest]))


def _read(text: str, opened: Open) -> Ways:
    """Return the ways to read a text after the unfinished word `opened`; see `Gluer._ways`."""
    pieces = re.split(r"\s+", text)
    if len(pieces) == 1:
        return {_joined(opened, text): NO_WORDS} if not _parted(opened, text) else {_joined((), text): _word(opened)}
    ways = _read(pieces[0], opened) if pieces[0] else {opened: NO_WORDS}
    between = Words(" ".join(filter(None, map(cleaned, pieces[1:-1]))))
    result: Ways = {}
    for here, before in ways.items():
        result[_joined((), pieces[-1])] = _then(_then(before, _word(here)), between)
        # An article with an apostrophe may be joined to the next word: "l'entrée" for "l' {area}".
        if len(pieces) == 2 and not pieces[-1] and here and isinstance(here[-1], str) and here[-1].endswith("'"):
            result[here] = before
    return result


def _filled(part: Fill, opened: Open) -> Ways:
    if part.within is None or _parted(opened, None) or any(isinstance(each, Fill) for each in opened):
        return {(): _then(_word(opened), part.whole)} if part.within is None else {(part,): _word(opened)}
    return {(*opened, part): NO_WORDS}


def _parted(opened: Open, text: str | None) -> bool:
    """Return whether the next part begins a new word, although no space separates the part from the unfinished word `opened`.
    This happens in scripts without spaces. `text`: the next part; None if it isn't a text.
    """
    last = opened[-1][-1] if opened and isinstance(opened[-1], str) else ""
    first = text[0] if text else ""
    return bool(opened) and bool(_UNSPACED.match(last) or _UNSPACED.match(first))


def _joined(opened: Open, text: str) -> Open:
    if not text:
        return opened
    return (*opened[:-1], opened[-1] + text) if opened and isinstance(opened[-1], str) else (*opened, text)


def _word(opened: Open) -> Expression:
    """Return the expression of a word that is complete now. `opened`: the word's parts."""
    fills = [each for each in opened if isinstance(each, Fill)]
    if not fills:
        return Words(cleaned("".join(each for each in opened if isinstance(each, str))))
    at = opened.index(fills[0])
    before, after = ("".join(map(str, texts)) for texts in (opened[:at], opened[at + 1 :]))
    before, after = before.lstrip(_PUNCTUATION), after.rstrip(_PUNCTUATION)
    fill = fills[0]
    return fill.within(before, after) if (before or after) and fill.within else fill.whole


def cleaned(word: str) -> str:
    """Return a word without punctuation marks at its ends."""
    return word.strip(_PUNCTUATION)


def _then(first: Expression, second: Expression) -> Expression:
    if first == NO_WORDS or second == NO_WORDS:
        return second if first == NO_WORDS else first
    return Sequence(*(first.parts if isinstance(first, Sequence) else (first,)), second)


def _sum(options: Iterable[Expression]) -> Expression:
    found = list(options)
    return found[0] if len(found) == 1 else Choice(*found)


def _merged(found: Iterable[tuple[Open, Expression]]) -> Ways:
    by_open: dict[Open, list[Expression]] = {}
    for opened, expression in found:
        by_open.setdefault(opened, []).append(expression)
        if len(by_open) > MOST_OPEN:
            raise ValueError(f"more than {MOST_OPEN:,} ways to begin a word; put spaces between its parts")
    return {opened: _sum(_different(options)) for opened, options in by_open.items()}


def _different(options: Iterable[Expression]) -> Iterable[Expression]:
    """Return the expressions without duplicates. Duplicates are the same object, or have the same words."""
    return {each.text if isinstance(each, Words) else id(each): each for each in options}.values()
