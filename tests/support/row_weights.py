"""Weights of rows."""

from __future__ import annotations

import torch
from torch import Tensor


def ilm_weights_of(weight: float, rows: int) -> Tensor | None:
    """Return weights of the internal LM, other ones in neighbouring rows and 0 in every third; None for a weight of 0."""
    return weight * torch.tensor([1.0, 0.5, 0.0]).repeat(rows)[:rows] if weight else None


def weight_at(weights: Tensor | None, row: int) -> float:
    return 0.0 if weights is None else float(weights[row])
