"""Check the entries of a config. Configs come with files of strangers: nothing in them is taken unchecked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, TypeVar

from ..errors import NGramFormatError

T = TypeVar("T")


class Kind(NamedTuple):
    """Say in words what a value should be, and tell whether one is."""

    right: str
    is_right: Callable[[Any], bool]


def number(least: float = -sys.float_info.max, most: float = sys.float_info.max, right: str = "") -> Kind:
    """Return finite numbers within bounds; by comparison, as some integers are larger than any float."""
    right = right or ("a finite number" if most == sys.float_info.max else f"a number from {least:g} to {most:g}")
    return Kind(right, lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most)


def whole(least: int = 0, most: int | None = None) -> Kind:
    """Return whole numbers within bounds."""
    right = f"a whole number from {least} " + ("on" if most is None else f"to {most}")

    def is_right(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most)

    return Kind(right, is_right)


def one_of(*choices: str) -> Kind:
    return Kind(f"one of {choices}", lambda value: isinstance(value, str) and value in choices)


def either(*kinds: Kind) -> Kind:
    return Kind(" or ".join(kind.right for kind in kinds), lambda value: any(kind.is_right(value) for kind in kinds))


def list_of(kind: Kind, size: int | None = None) -> Kind:
    """Return lists, of any length or `size` values."""
    right = f"a list of {kind.right}" if size is None else f"{size} times {kind.right}"
    return Kind(right, lambda v: isinstance(v, list) and size in (None, len(v)) and all(map(kind.is_right, v)))


COUNT = whole()
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
NULL = Kind("null", lambda value: value is None)
TEXT = Kind("text", lambda value: isinstance(value, str))
NAME = Kind("a name", lambda value: isinstance(value, str) and 0 < len(value) <= 512)


def an_object(values: Any, where: str, what: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        NGramFormatError: it is something else.
    """
    if not isinstance(values, dict):
        raise NGramFormatError(f"{where}: {what} should be an object, is {str(values)[:80]!r}")
    return values


def check(values: Mapping[str, Any], kinds: Mapping[str, Kind], where: str, what: str = "") -> None:
    """Check the entries of an object for which there are kinds; those that are missing count as null.

    Args:
        where: the file, and `what`, in front of the entries' names, the part of it, for messages.

    Raises:
        NGramFormatError: says which entry is wrong and what it should be.
    """
    for name, kind in kinds.items():
        if not kind.is_right(values.get(name)):
            raise NGramFormatError(f"{where}: {what}{name} should be {kind.right}, is {str(values.get(name))[:80]!r}")


def read(cls: Callable[..., T], values: Any, kinds: Mapping[str, Kind], where: str, what: str) -> T:
    """Return a dataclass made of an object, whose missing entries have their defaults; those without a kind are counts.

    Raises:
        NGramFormatError: says which entry is wrong and what it should be.
    """
    values, found = an_object(values, where, what), {}
    for entry in fields(cls):  # type: ignore[arg-type]
        value = values.get(entry.name, None if entry.default is MISSING else entry.default)
        found[entry.name] = list(value) if isinstance(value, tuple) else value
    check(found, {name: kinds.get(name, COUNT) for name in found}, where, f"{what}.")
    return cls(**{name: _as_tuples(value) for name, value in found.items()})


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
