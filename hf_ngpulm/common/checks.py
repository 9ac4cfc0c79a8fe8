"""Check users' arguments and the entries of files. All packages describe permitted values with this module's `Kind`s."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ..errors import NGramFormatError

T = TypeVar("T")
# Far larger than any useful weight, and small enough that sums of weighted scores stay finite in single precision.
LARGEST_WEIGHT = 1e6


class Kind(NamedTuple):
    """Describe the permitted values of an argument or an entry."""

    right: str  # the permitted values in words, for messages: "`name` should be `right`"
    is_right: Callable[[Any], bool]  # returns whether a value is of this kind
    convert: Callable[[Any], Any] = lambda value: value  # converts an argument of this kind


def number(least: float = -sys.float_info.max, most: float = sys.float_info.max, right: str = "") -> Kind:
    """Describe numbers within bounds. The check doesn't convert values, because an integer may be too large for a float.
    `right`: the permitted values in words; by default the bounds.
    """
    right = right or ("a finite number" if most == sys.float_info.max else f"a number from {least:g} to {most:g}")
    return Kind(right, lambda value: _is_number(value, Real) and least <= value <= most, float)


def whole(least: int = 1, most: int | None = None, right: str = "") -> Kind:
    """Describe whole numbers within bounds. `right`: the permitted values in words; by default the bounds."""
    right = right or f"a whole number {f'of at least {least}' if most is None else f'from {least} to {most}'}"
    bound = math.inf if most is None else most
    return Kind(right, lambda value: _is_number(value, Integral) and least <= value <= bound, int)


def _is_number(value: Any, type_: type) -> bool:
    return isinstance(value, type_) and not isinstance(value, bool)


def one_of(*choices: str) -> Kind:
    return Kind(f"one of {choices}", lambda value: isinstance(value, str) and value in choices)


def either(*kinds: Kind) -> Kind:
    return Kind(" or ".join(kind.right for kind in kinds), lambda value: any(kind.is_right(value) for kind in kinds))


def list_of(kind: Kind, size: int | None = None) -> Kind:
    """Describe lists whose values are of one kind. `size`: number of values; by default any number."""
    right = f"a list of {kind.right}" if size is None else f"{size} times {kind.right}"
    return Kind(right, lambda v: isinstance(v, list) and size in (None, len(v)) and all(map(kind.is_right, v)))


COUNT = whole(0)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
NULL = Kind("null", lambda value: value is None)
TEXT = Kind("text", lambda value: isinstance(value, str))
NAME = Kind("a name", lambda value: isinstance(value, str) and 0 < len(value) <= 512)
WEIGHT = number(-LARGEST_WEIGHT, LARGEST_WEIGHT, f"a finite number of at most {LARGEST_WEIGHT:,.0f} in size")
AT_LEAST_0 = number(0, LARGEST_WEIGHT, f"a finite number from 0 to {LARGEST_WEIGHT:,.0f}")
_ROWS = Kind("", lambda value: isinstance(value, Tensor) and value.dim() == 1 and bool((value.abs() <= LARGEST_WEIGHT).all()))
ROW_WEIGHTS = Kind(
    f"{WEIGHT.right}, or a tensor [B] of them",
    either(WEIGHT, _ROWS).is_right,
    lambda value: value if isinstance(value, Tensor) else float(value),
)


def check(name: str, value: Any, kind: Kind) -> Any:
    """Return an argument after checking and converting it. Raises ValueError that names the permitted values."""
    if not kind.is_right(value):
        raise ValueError(f"{name} should be {kind.right}, got {value!r}")
    return kind.convert(value)


def refuse_idle(options: Mapping[str, Any], why: str) -> None:
    """Check options that have no effect here. Raise ValueError if an option isn't None. The message names each
    option with a value, and gives the reason `why`.
    """
    idle = [name for name, value in options.items() if value is not None]
    if idle:
        raise ValueError(f"{', '.join(idle)} {why}")


def check_entries(values: Mapping[str, Any], kinds: Mapping[str, Kind], where: str, what: str = "") -> None:
    """Check the entries of a JSON object in a file. A missing entry counts as null.

    Args:
        values: the object. Only the entries named in `kinds` are checked.
        kinds: the kind of each entry, by name.
        where: the file, for messages.
        what: text for messages, before the entry's name; it names the object's place in the file.

    Raises:
        NGramFormatError: an entry is wrong. The message names the entry and the permitted values.
    """
    for name, kind in kinds.items():
        if not kind.is_right(values.get(name)):
            raise NGramFormatError(f"{where}: {what}{name} should be {kind.right}, is {str(values.get(name))[:80]!r}")


def an_object(values: Any, where: str, what: str) -> dict[str, Any]:
    """Return `values`. Raises NGramFormatError if `values` isn't a JSON object. For the message: `where` is the file, and
    `what` is the object's place in the file.
    """
    if not isinstance(values, dict):
        raise NGramFormatError(f"{where}: {what} should be an object, is {str(values)[:80]!r}")
    return values


def read_entries(cls: Callable[..., T], values: Any, kinds: Mapping[str, Kind], where: str, what: str) -> T:
    """Make a dataclass from a JSON object. Missing entries get their defaults. Entries without a kind in `kinds` must be
    counts. Raises NGramFormatError if an entry is wrong. The message names the entry, its permitted values, the file (`where`)
    and the object (`what`).
    """
    values, entries = an_object(values, where, what), {}
    for entry in fields(cls):  # type: ignore[arg-type]
        value = values.get(entry.name, None if entry.default is MISSING else entry.default)
        entries[entry.name] = list(value) if isinstance(value, tuple) else value
    check_entries(entries, {name: kinds.get(name, COUNT) for name in entries}, where, f"{what}.")
    return cls(**{name: _as_tuples(value) for name, value in entries.items()})


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
