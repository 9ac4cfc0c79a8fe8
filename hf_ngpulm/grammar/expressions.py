"""Define the expressions that make up a grammar.

An expression describes a set of sentences, and the slots that each sentence fills. The readers of grammar files build
expressions. Users can build expressions in Python:

    Sequence(Words("turn"), Choice(Slot("state", Words("on"), "on"), Slot("state", Words("off"), "off")), List("room"))

Where an expression is expected, a text means `Words`, and a list means `Choice`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..common.checks import WEIGHT, check

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Words:
    """Spoken words, separated by spaces. Without words, the expression matches silence."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"words should be a text, got {self.text!r}")


@dataclass(frozen=True, init=False)
class Sequence:
    """Expressions one after the other."""

    parts: tuple[Expression, ...]

    def __init__(self, *parts: Any) -> None:
        object.__setattr__(self, "parts", tuple(map(expression_of, parts)))


@dataclass(frozen=True, init=False)
class Choice:
    """One of several expressions.

    Args:
        options: the expressions.
        weights: the natural log of each option's weight; None gives all options the log weight 0.
    """

    options: tuple[Expression, ...]
    weights: tuple[float, ...] | None

    def __init__(self, *options: Any, weights: Any = None) -> None:
        if weights is not None:
            weights = tuple(check("the weight of an option", weight, WEIGHT) for weight in weights)
            if len(weights) != len(options):
                raise ValueError(f"{len(weights)} weights for {len(options)} options; pass one per option")
        object.__setattr__(self, "options", tuple(map(expression_of, options)))
        object.__setattr__(self, "weights", weights)


@dataclass(frozen=True)
class Repeat:
    """An expression that is repeated from `least` to `most` times; `most=None` sets no limit."""

    part: Expression
    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "part", expression_of(self.part))
        if self.least < 0 or (self.most is not None and self.most < max(self.least, 1)):
            raise ValueError(f"a part can't be repeated {self.least} to {self.most} times")


def Optional(*parts: Any) -> Repeat:
    """Return an optional expression, a sequence of the parts."""
    return Repeat(Sequence(*parts), 0, 1)


@dataclass(frozen=True)
class Slot:
    """An expression whose words fill a slot.

    Args:
        name: the slot's name.
        part: the expression. Slots don't contain slots.
        value: the slot's value. None selects the value of the list entry or number in `part`. If `part` has neither, the value
            is the slot's words.
    """

    name: str
    part: Expression
    value: Value = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "part", expression_of(self.part))


@dataclass(frozen=True)
class List:
    """The entries of the list with this name. The grammar has the lists; each call can replace a list's entries."""

    name: str


@dataclass(frozen=True)
class Number:
    """Whole numbers in words, or in digits if the recogniser writes digits. The enclosing slot gets the number as its value.

    Args:
        least, most: the range, both ends included, from -999,999,999 to 999,999,999.
        step: distance between two numbers, counted from `least`.
        language: language of the words ("en").
    """

    least: int
    most: int
    step: int = 1
    language: str = "en"

    def __post_init__(self) -> None:
        if self.step < 1 or self.most < self.least or max(-self.least, self.most) > 999_999_999:
            raise ValueError(f"numbers from {self.least} to {self.most} by {self.step} aren't a range")


@dataclass(frozen=True)
class Wildcard:
    """One or more arbitrary words. They end where the grammar continues."""


Expression = Words | Sequence | Choice | Repeat | Slot | List | Number | Wildcard


def expression_of(value: Any) -> Expression:
    """Return a value as an expression. An expression stays as it is, a text becomes `Words`, and a list becomes a `Choice`.
    Raises TypeError for any other value.
    """
    if isinstance(value, Words | Sequence | Choice | Repeat | Slot | List | Number | Wildcard):
        return value
    if isinstance(value, str):
        return Words(value)
    if isinstance(value, list | tuple):
        return Choice(*value)
    raise TypeError(f"an expression should be a text, a list, or one of {__name__}; got {value!r}")


def log_weights(weights: list[float]) -> list[float]:
    """Return the natural logs of weights divided by the largest weight. Raises ValueError if a weight isn't above 0."""
    if any(not weight > 0 or math.isinf(weight) for weight in weights):
        raise ValueError(f"weights should be finite and above 0, got {weights}")
    return [math.log(weight / max(weights)) for weight in weights]
