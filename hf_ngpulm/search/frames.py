"""Frames of logits for the native core (`csrc/frames.hpp`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..common.batches import packed_frames
from ..engines.native import Struct


class Frames(Struct):
    """The frames of some rows. Padding beyond a row's length is never read."""

    @classmethod
    def of(cls, logits: Tensor, lengths: Tensor, blank: int) -> Frames:
        """Return the frames of logits `[B, T, C]` in rows of the given lengths `[B]`.

        Contiguous float32 logits are used in place. Logits of another precision or layout are copied.

        Raises:
            ValueError: `blank` isn't in `0 .. C - 1`.
        """
        batch_size, frames, classes = logits.shape
        if not 0 <= blank < classes:
            raise ValueError(f"the blank has the id {blank}, but the logits have {classes} classes")
        lengths = lengths.to(torch.int32).clamp(0, frames)
        starts: Tensor | np.ndarray
        if logits.dtype == torch.float32 and logits.is_contiguous():
            starts, logits = frames * np.arange(batch_size, dtype=np.int64), logits.detach()
        else:
            starts, logits = packed_frames(logits, lengths)
        return cls(starts=starts, lengths=lengths.contiguous(), logits=logits, classes=classes, blank=blank)
