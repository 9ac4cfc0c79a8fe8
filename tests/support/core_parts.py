"""Parts of the native core that no search returns as they are (`csrc/checks.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ngpulm.engines.native import Function

FUNCTIONS = ("exp", "sigmoid", "tanh", "gate_tanh")
_function = Function("ngpulm_check_function")
_softmax = Function("ngpulm_check_softmax")
_product = Function("ngpulm_check_product")
_highest = Function("ngpulm_check_highest")


def function(name: str, numbers: Tensor) -> Tensor:
    """One of `FUNCTIONS` of all numbers."""
    out = torch.empty_like(numbers)
    _function(FUNCTIONS.index(name), numbers.numel(), numbers, out)
    return out


def softmax_parts(numbers: Tensor) -> tuple[float, float, int, float]:
    """The highest number, the sum of exponentials less that, the highest one's place, the log of the sum."""
    found = torch.empty(3)
    place = _softmax(len(numbers), numbers, found)
    highest, total, log_sum = found.tolist()
    return highest, total, place, log_sum


def product(x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """`x @ weights.T + biases`, with what pads the columns: `[rows, 16 * N]`."""
    rows, (size, inputs) = len(x), weights.shape
    out = torch.full((rows, -(-size // 16) * 16), 7.0)
    assert _product(rows, size, inputs, x, weights, biases, out) == out.shape[1]
    return out


def highest(numbers: Tensor, others: Tensor, most: int) -> list[int]:
    """The places that are looked at for the `most` highest sums of two numbers each, the last place left out."""
    places = torch.empty(len(numbers), dtype=torch.int64)
    return places[: _highest(len(numbers), numbers, others, most, places)].tolist()
