"""Checks of arguments that several decoders have."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

LARGEST_WEIGHT = torch.finfo(torch.float32).max


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


def check_weight(weight: float | Tensor, name: str) -> float | Tensor:
    """A finite number, or a tensor `[B]` of them."""
    if isinstance(weight, Tensor):
        if weight.dim() != 1 or not bool(torch.isfinite(weight.to(torch.float32)).all()):
            raise ValueError(f"{name} should be a number, or a tensor [B] of finite numbers, got {weight}")
        return weight
    return check_number(weight, name)


def check_number(weight: float, name: str) -> float:
    if isinstance(weight, bool) or not isinstance(weight, Real) or not abs(weight) <= LARGEST_WEIGHT:
        raise ValueError(f"{name} should be a finite number, got {weight!r}")
    return float(weight)
