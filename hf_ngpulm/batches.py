"""Rows of different lengths in one batch."""

from __future__ import annotations

import torch
from torch import Tensor


def checked_lengths(lengths: Tensor | None, batch_size: int, frames: int, device: torch.device) -> Tensor:
    """Lengths of the rows, int64 `[B]`; all `frames` if there are none.

    Raises:
        ValueError: another number of rows, no integers, or lengths beyond the frames.
    """
    if lengths is None:
        return torch.full((batch_size,), frames, dtype=torch.int64, device=device)
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (batch_size,) or lengths.dtype.is_floating_point:
        raise ValueError(f"lengths should be {batch_size} integers, one per row, got {lengths.dtype} {tuple(lengths.shape)}")
    if batch_size and (int(lengths.min()) < 0 or int(lengths.max()) > frames):
        lowest, highest = int(lengths.min()), int(lengths.max())
        raise ValueError(f"lengths should lie in 0..{frames}, the frames there are, got {lowest}..{highest}")
    return lengths.to(device, torch.int64)


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
