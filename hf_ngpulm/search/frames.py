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
        """View logits `[B, T, C]` of any precision and layout (copied unless float32 and contiguous), with lengths `[B]`.

        Raises:
            ValueError: `blank` isn't a class.
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
