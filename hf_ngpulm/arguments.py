"""Checks of arguments that several decoders have."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any


def whole(name: str, value: Any, most: int | None = None, why: str = "", least: int = 1) -> int:
    """A whole number within bounds."""
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
    """One of some words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")
    return value


def refuse_idle(given: Mapping[str, Any], why: str) -> None:
    """Refuse those that are given (not None), since nothing would come of them."""
    idle = [name for name, value in given.items() if value is not None]
    if idle:
        raise ValueError(f"{', '.join(idle)} {why}")
