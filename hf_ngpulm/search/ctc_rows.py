"""Rows of a CTC search for the native core (`csrc/ctc_rows.hpp`)."""

from __future__ import annotations

import numpy as np

from ..engines.native import Struct
from ..fusion.fusion import RowModels

GOES_ON, PHRASES, SENTENCE = range(3)  # the end's score: none; repaid bonuses; those and </s>


class CtcRows(Struct):
    """The rows of a session that a batch belongs to."""

    @classmethod
    def of(
        cls,
        rows: np.ndarray | None,
        states: np.ndarray,
        firsts: np.ndarray | None = None,
        sums: np.ndarray | None = None,
    ) -> CtcRows:
        """View arrays of a session.

        Args:
            rows: int64 `[N]`, numbers of the batch's rows; None for all in order.
            states: `[S]`, state of each row's search.
            firsts: int64 `[S]`, number of each row's frames before this batch.
            sums: float64 `[S]`, sum of the confidences of those frames; updated.
        """
        return cls(rows=rows, states=states, firsts=firsts, sums=sums)


class CtcModels(Struct):
    """`RowModels` for the core; `end` is `GOES_ON`, `PHRASES` or `SENTENCE`."""

    @classmethod
    def of(cls, models: RowModels, end: int) -> CtcModels:
        weights, present = models.weights.contiguous(), models.present.contiguous()
        return cls(weights=weights, present=present, num_automata=weights.shape[1], num_lms=models.num_lms, end=end)
