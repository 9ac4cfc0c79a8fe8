"""Batches without their padding."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_frames(logits: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The frames of all rows, one behind the other, in single precision.

    `[B, T, C]` logits, `[B]` lengths -> where each row begins, int64 `[B]`, and float32 `[N, C]`.
    """
    batch_size, frames, _ = logits.shape
    lengths = lengths.to(torch.int64)
    starts = torch.cumsum(lengths, 0) - lengths
    if int(lengths.sum()) == batch_size * frames:
        return starts, logits.detach().float().flatten(0, 1).contiguous()
    rows = [logits[row, :length].detach().float() for row, length in enumerate(lengths.tolist())]
    return starts, torch.cat(rows)
