"""Define `Rules`, the result of reading a grammar file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from ..errors import GrammarError
from .expressions import Choice, Expression, List, Repeat, Sequence, Slot, Value

MOST_DEPTH, MOST_PARTS, MOST_NATS = 100, 1_000_000, 1_000_000
NOTHING = Choice()  # matches no sentence

FAMILIES = ("ctc", "transducer", "attention")  # of recognisers

Entry: TypeAlias = tuple[str | Expression, Value]


class Evidence(NamedTuple):
    """A curve from evidence to confidence. `middle` is the evidence at confidence 0.5. Both numbers are in nats per token."""

    middle: float
    width: float


def evidence_of(given: Mapping[str, Any], where: str) -> dict[str, Evidence]:
    """Return the curve of each family of recognisers. Raises GrammarError if a family is unknown, or a curve isn't a pair of
    finite numbers with a width above 0.
    """
    curves: dict[str, Evidence] = {}
    for family, curve in given.items():
        if family not in FAMILIES:
            raise GrammarError(f"{where}: evidence is for the families {', '.join(FAMILIES)}; got {family!r}")
        match curve:
            case [int() | float() as middle, int() | float() as width] if abs(middle) < MOST_NATS and 0 < width < MOST_NATS:
                curves[family] = Evidence(float(middle), float(width))
            case _:
                raise GrammarError(
                    f"{where}: evidence of {family} should be two numbers, a middle and a width above 0; got {curve!s:.200}"
                )
    return curves


class Rules(NamedTuple):
    """The sentences of a grammar.

    Args:
        intents: the expression of each intent. A grammar without intents has the single key None.
        lists: the entries of each list, as pairs (spoken text, value).
        evidence: a dictionary from families of recognisers to the curves that `hf_ngpulm.evaluation.tune_grammar` found.
    """

    intents: dict[str | None, Expression]
    lists: dict[str, list[Entry]]
    evidence: Mapping[str, Evidence] = MappingProxyType({})


def checked(rules: Rules, where: str) -> Rules:
    """Return rules after checking that they can be compiled.

    Args:
        where: the file's name in error messages.

    Raises:
        GrammarError: a list is unknown or empty; expressions are nested too deeply; there are too many expressions (each
            repetition counts); or a slot contains a slot.
    """
    sizes: dict[int, _Size] = {}
    sizes_of_lists: dict[str, _Size | None] = {}  # None marks a list that is being measured, so it contains itself

    def size(expression: Expression) -> _Size:
        if id(expression) not in sizes:
            sizes[id(expression)] = measured(expression)
        return sizes[id(expression)]

    def measured(expression: Expression) -> _Size:
        parts: tuple[Expression, ...] = ()
        times, slot = 1, None
        match expression:
            case Sequence():
                parts = expression.parts
            case Choice():
                parts = expression.options
            case Repeat():
                parts, times = (expression.part,), max(expression.most or expression.least, 1)
            case Slot():
                parts, slot = (expression.part,), expression.name
            case List():
                return size_of_list(expression.name)
        inside = [size(part) for part in parts]
        within = next((each.slot for each in inside if each.slot is not None), None)
        if slot is not None and within is not None:
            raise GrammarError(f"{where}: the slot {within!r} is within the slot {slot!r}; slots can't contain slots")
        return added(inside, times, within if slot is None else slot)

    def added(inside: list[_Size], times: int, slot: str | None) -> _Size:
        total = _Size(1 + times * sum(each.parts for each in inside), 1 + max((each.depth for each in inside), default=0), slot)
        if total.depth > MOST_DEPTH:
            raise GrammarError(f"{where}: expressions are nested more than {MOST_DEPTH} deep; flatten them")
        if total.parts > MOST_PARTS:
            raise GrammarError(f"{where}: written out, the grammar has more than {MOST_PARTS:,} parts; use lists")
        return total

    def size_of_list(name: str) -> _Size:
        if name not in rules.lists:
            known = ", ".join(sorted(rules.lists)) or "none"
            raise GrammarError(
                f"{where}: the list {name!r} is unknown; define it, or pass lists={{{name!r}: [...]}}. Known lists: {known}"
            )
        if not rules.lists[name]:
            raise GrammarError(f"{where}: the list {name!r} is empty; give it an entry")
        if name not in sizes_of_lists:
            sizes_of_lists[name] = None
            inside = [size(text) for text, _ in rules.lists[name] if not isinstance(text, str)]
            if any(each.slot is not None for each in inside):
                raise GrammarError(f"{where}: an entry of the list {name!r} has a slot; entries can't contain slots")
            sizes_of_lists[name] = added(inside, 1, None)
        total = sizes_of_lists[name]
        if total is None:
            around = [*list(sizes_of_lists)[list(sizes_of_lists).index(name) :], name]
            raise GrammarError(f"{where}: the list {name!r} contains itself: {' -> '.join(around)}")
        return total

    try:
        for name in rules.lists:
            size_of_list(name)
        added([size(expression) for expression in rules.intents.values()], 1, None)
    except RecursionError:
        raise GrammarError(f"{where}: expressions are nested more than {MOST_DEPTH} deep; flatten them") from None
    return rules


class _Size(NamedTuple):
    """Hold an expression's number of parts (each repetition counts), its depth, and the name of a slot in it (or None)."""

    parts: int
    depth: int
    slot: str | None


def place(where: str, line: int | None = None, column: int | None = None) -> str:
    """Return a text for error messages that names a place in a file."""
    return ":".join([where, *(str(number) for number in (line, column) if number is not None)])


def text_and_name(source: str | Path, what: str, is_text: Callable[[str], bool]) -> tuple[str, str]:
    """Return the text of a source and the source's name for messages.

    Args:
        source: a path, or the text itself.
        what: the name for a source that is a text, such as "JSGF".
        is_text: returns whether a string is the text itself, not a path.

    Raises:
        GrammarError: the file can't be read, or isn't UTF-8.
    """
    if isinstance(source, str) and is_text(source):
        return source, what
    try:
        return Path(source).read_text(encoding="utf-8-sig"), str(source)
    except (OSError, UnicodeDecodeError) as error:
        raise GrammarError(f"{str(source)[:200]!r} can't be read as a file in UTF-8: {error}") from None
