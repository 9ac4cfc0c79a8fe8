"""Rows of a CTC search, and their frames of logits, for the native core (`csrc/ctc_rows.hpp`, `csrc/frames.hpp`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..engines.native import Struct
from ..fusion.rows import RowModels

# Scores that the end of a row adds: none; the repaid bonuses of unfinished phrases; these bonuses and the score of `</s>`.
GOES_ON, PHRASES, SENTENCE = range(3)


class CtcRows(Struct):
    """The rows of a batch. They are selected from arrays that hold the states of more rows, such as all rows of a session."""

    @classmethod
    def of(
        cls, rows: np.ndarray | None, states: np.ndarray, firsts: np.ndarray | None = None, sums: np.ndarray | None = None
    ) -> CtcRows:
        """Return a selection of `N` rows. The arrays hold `S` rows and are used without a copy.

        Args:
            rows: int64 `[N]`, the selected rows; None selects all rows in order.
            states: `[S]`, state of each row's search.
            firsts: int64 `[S]`, number of frames that each row had before this batch.
            sums: float64 `[S]`, sum of the confidences of the frames that each row had before this batch. The search updates
                the sums.
        """
        return cls(rows=rows, states=states, firsts=firsts, sums=sums)


class CtcModels(Struct):
    """`RowModels` for the native core.

    `end` says which scores of the end are added: none (`GOES_ON`), only the phrases' scores (`PHRASES`), or the phrases' scores
    and log p(</s>) (`SENTENCE`).
    """

    @classmethod
    def of(cls, models: RowModels, end: int) -> CtcModels:
        weights, present = models.weights.contiguous(), models.present.contiguous()
        return cls(weights=weights, present=present, num_automata=weights.shape[1], num_lms=models.num_lms, end=end)


class Frames(Struct):
    """The frames of some rows. Padding beyond a row's length is never read."""

    @classmethod
    def of(cls, logits: Tensor, lengths: Tensor, blank: int) -> Frames:
        """Return the frames of logits `[B, T, C]`. `lengths`, `[B]`, has the number of frames of each row.

        Contiguous float32 logits are used in place. Logits of another precision or layout are copied.

        Raises:
            ValueError: `blank` isn't in `0 .. C - 1`.
        """
        batch_size, frames, classes = logits.shape
        if not 0 <= blank < classes:
            raise ValueError(f"the blank has the id {blank}, but the logits have {classes} classes")
        lengths = lengths.to(torch.int32).clamp(0, frames)
        logits = logits.detach().float().contiguous()  # with the padding: faster than picking the rows' frames
        starts = frames * np.arange(batch_size, dtype=np.int64)
        return cls(starts=starts, lengths=lengths.contiguous(), logits=logits, classes=classes, blank=blank)
