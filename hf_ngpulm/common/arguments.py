"""Checks of arguments that several decoders have, and how they are shown."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from torch import Tensor

# Far more than any weight is good for, and so little that sums of weighted scores stay finite in single precision.
LARGEST_WEIGHT = 1e6
MOST_SHOWN = 4


def whole(name: str, value: Any, most: int | None = None, why: str = "", least: int = 1) -> int:
    """Return a whole number within bounds."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or int(value) < least
        or (most is not None and int(value) > most)
    ):
        bounds = f"from {least} to {most}{why}" if most is not None else f"above {least - 1}"
        raise ValueError(f"{name} should be a whole number {bounds}, got {value!r}")
    return int(value)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return one of some words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")
    return value


def refuse_idle(given: Mapping[str, Any], why: str) -> None:
    """Refuse those that are given (not None), since nothing would come of them."""
    idle = [name for name, value in given.items() if value is not None]
    if idle:
        raise ValueError(f"{', '.join(idle)} {why}")


def check_weight(weight: float | Tensor, name: str) -> float | Tensor:
    """Return a finite number that isn't too large, or a tensor `[B]` of them."""
    if isinstance(weight, Tensor):
        if weight.dim() != 1 or not bool((weight.abs() <= LARGEST_WEIGHT).all()):
            raise ValueError(
                f"{name} should be a number, or a tensor [B] of finite numbers, got {weight}; up to "
                f"{LARGEST_WEIGHT:,.0f} will do"
            )
        return weight
    return check_number(weight, name)


def check_number(value: float, name: str, most: float = LARGEST_WEIGHT) -> float:
    """Return a finite number of at most some size."""
    # Compared, not converted: an int may be too large for a float.
    finite = isinstance(value, Real) and not isinstance(value, bool) and abs(value) < math.inf
    if not finite or abs(value) > min(most, sys.float_info.max):
        bound = f"; up to {most:,.0f} will do" if math.isfinite(most) else ""
        raise ValueError(f"{name} should be a finite number, got {value!r}{bound}")
    return float(value)


def shown(of: Any, *first: str, **settings: Any) -> str:
    """Return the `repr` of an object by what it is made of, on one line: long lists are cut short."""
    told = [f"{name}={_shown(value)}" for name, value in settings.items()]
    return f"{type(of).__name__}({', '.join([*first, *told])})"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor | Mapping | list):
        values = value.tolist() if isinstance(value, Tensor) else list(value)
        few = [_shown(each) for each in values[:MOST_SHOWN]]
        return f"[{', '.join(few + [f'... {len(values)} in all'] * (len(values) > MOST_SHOWN))}]"
    return repr(value)
