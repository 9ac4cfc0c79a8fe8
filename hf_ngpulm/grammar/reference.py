"""Define the meaning of a grammar: list all readings of a text. This reference is slow, because it walks through the
expressions word by word.

A place is the index of a word. A way leads through an expression from one place to a later place, see `Way`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple, TypeAlias

from .expressions import Choice, Expression, List, Number, Repeat, Sequence, Slot, Value, Words, expression_of
from .network import number_entries
from .rules import Rules


class Meaning(NamedTuple):
    """A reading of a text."""

    intent: str | None  # the intent; None for a grammar without intents
    slots: tuple[tuple[str, Value], ...]  # names and values of slots, in the order of the slots' ends
    weight: float  # the grammar's weight (natural log)


# A way through an expression: the place where it ends, the number of free words, the value of the last entry or number (None
# without one), and the slots. `Ways` maps each way to its weight.
Way: TypeAlias = tuple[int, int, Value, tuple[tuple[str, Value], ...]]
Ways: TypeAlias = dict[Way, float]


def readings(rules: Rules, text: str) -> list[Meaning]:
    """Return all readings of a text, the best one first.

    Readings are ranked by weight. Among readings of equal weight, fewer words in wildcards are better. If these numbers are
    equal, the reading whose expressions come first is better. Case is ignored, but words that are a slot's value keep their
    case.

    Args:
        text: words, separated by spaces, without punctuation marks.
    """
    said = text.split()
    heard = [_folded(word) for word in said]

    ways_from: dict[tuple[int, int], Ways] = {}

    @cache
    def texts(symbol: List | Number) -> list[tuple[Expression, Value]]:
        entries = rules.lists[symbol.name] if isinstance(symbol, List) else number_entries(symbol)
        return [(expression_of(entry), value) for entry, value in entries]

    def ways(expression: Expression, place: int) -> Ways:
        """Return the ways through an expression that begin at a place."""
        if (id(expression), place) not in ways_from:
            ways_from[id(expression), place] = found_ways(expression, place)
        return ways_from[id(expression), place]

    def found_ways(expression: Expression, place: int) -> Ways:
        match expression:
            case Words(text):
                words = list(map(_folded, text.split()))
                return {(place + len(words), 0, None, ()): 0.0} if heard[place : place + len(words)] == words else {}
            case Sequence(parts):
                so_far: Ways = {(place, 0, None, ()): 0.0}
                for part in parts:
                    so_far = after(so_far, part)
                return so_far
            case Choice(options, weights):
                return best(
                    (way, weight + more)
                    for option, weight in zip(options, weights or [0.0] * len(options))
                    for way, more in ways(option, place).items()
                )
            case Repeat():
                return repeated(expression, place)
            case Slot(name, part, value):
                return best(
                    (
                        (end, free, None, (*slots, (name, next(filter(_known, (value, last)), " ".join(said[place:end]))))),
                        weight,
                    )
                    for (end, free, last, slots), weight in ways(part, place).items()
                )
            case List() | Number():
                return best(
                    ((end, free, value if _known(value) else last, slots), weight)
                    for entry, value in texts(expression)
                    for (end, free, last, slots), weight in ways(entry, place).items()
                )
        return {(end, end - place, None, ()): 0.0 for end in range(place + 1, len(heard) + 1)}  # a wildcard

    def after(before: Ways, part: Expression) -> Ways:
        """Return all ways that consist of a way in `before` and a way through `part`."""
        return best(
            ((end, free + more_free, last if _known(last) else value, slots + more_slots), weight + more)
            for (place, free, value, slots), weight in before.items()
            for (end, more_free, last, more_slots), more in ways(part, place).items()
        )

    def repeated(expression: Repeat, place: int) -> Ways:
        """Return the ways through a repeated part. The first repetition, and all repetitions up to `least`, may be empty. Later
        repetitions contain words.
        """
        part, least, most = expression.part, expression.least, expression.most
        here: Ways = {(place, 0, None, ()): 0.0}
        so_far = here if least == 0 else {}
        times = 0
        while here and times != most:
            times += 1
            here = best(
                (way, weight)
                for start, before in here.items()
                for way, weight in after({start: before}, part).items()
                if times <= max(least, 1) or way[0] > start[0]
            )
            if times >= least:
                so_far = best([*so_far.items(), *here.items()])
        return so_far

    every: dict[tuple[str | None, tuple[tuple[str, Value], ...]], tuple[float, int]] = {}
    for intent, expression in rules.intents.items():
        for (end, free, _, slots), weight in ways(expression, 0).items():
            if end == len(heard):
                key = intent, slots
                every[key] = max(every.get(key, (weight, -free)), (weight, -free))
    order = sorted(every.items(), key=lambda item: item[1], reverse=True)
    return [Meaning(intent, slots, weight) for (intent, slots), (weight, _) in order]


def best(found: Iterable[tuple[Way, float]]) -> Ways:
    """Return the distinct ways, each with its largest weight. `found`: pairs of a way and a weight; ways may be repeated."""
    result: Ways = {}
    for way, weight in found:
        result[way] = max(result.get(way, weight), weight)
    return result


def _known(value: Value) -> bool:
    return value is not None


def _folded(word: str) -> str:
    return unicodedata.normalize("NFC", word).casefold()
