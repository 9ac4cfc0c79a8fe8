"""Frames of logits as the native core reads them (`csrc/frames.hpp`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..common.batches import packed_frames
from ..engines.native import Struct


class Frames(Struct):
    """The frames of some rows. Those of a row that are beyond its length are never read, so that padding costs nothing."""

    @classmethod
    def of(cls, logits: Tensor, lengths: Tensor, blank: int) -> Frames:
        """Return view logits `[B, T, C]` of any precision and layout (others than float32 are copied) and lengths `[B]`.

        Raises:
            ValueError: no class that the blank could be.
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
