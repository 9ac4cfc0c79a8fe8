"""What a decoder is given: a model's outputs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..common.batches import tensor_of
from ..errors import InvalidLogitsError
from ..formats.wav2vec2.constants import MIN_TOKEN_CLIP_P

NEVER = -1e4  # a log-probability that nothing makes up for


def log_probs_of(logits: Any, classes: int) -> Tensor:
    """Return log-probabilities `[T, C]` of whatever a model's outputs are, float32."""
    values = tensor_of(logits, "logits").detach().float()
    if values.dim() != 2 or values.shape[1] != classes:
        raise InvalidLogitsError(
            f"logits should have the shape [T, {classes}], a class for each label (the blank among them), got "
            f"{list(values.shape)}"
        )
    if len(values) and bool(values.min() >= 0) and abs(float(values.sum(1).mean()) - 1) < 1e-3:
        return values.clamp(MIN_TOKEN_CLIP_P, 1.0).log()
    return values.log_softmax(-1).clamp(min=math.log(MIN_TOKEN_CLIP_P))


def without_unlikely(log_probs: Tensor, lengths: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities without labels below the least one, but for the likeliest of each frame.

    Args:
        log_probs: `[B, T, C]`.
        lengths: `[B]`.

    Returns:
        `[B, T, C]`, and the log of what is left, summed over the frames of each row, `[B]`: the search normalises its frames.
    """
    kept = log_probs
    if least > math.log(MIN_TOKEN_CLIP_P):
        unlikely = (log_probs < least) & (log_probs < log_probs.amax(-1, keepdim=True))
        kept = log_probs.masked_fill(unlikely, NEVER)
    inside = torch.arange(log_probs.shape[1], device=log_probs.device) < lengths[:, None]
    return kept, kept.logsumexp(-1).masked_fill(~inside, 0.0).sum(1, dtype=torch.float64)
