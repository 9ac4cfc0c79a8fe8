"""Batches of rows as the native core searches them in CTC outputs (`csrc/ctc_rows.hpp`)."""

from __future__ import annotations

import numpy as np

from ..engines.native import Struct
from ..fusion.fusion import RowModels

GOES_ON, PHRASES, SENTENCE = range(3)  # what an utterance's end adds: nothing; what unfinished phrases give back; and </s>


class CtcRows(Struct):
    """The rows that a batch belongs to."""

    @classmethod
    def of(
        cls,
        rows: np.ndarray | None,
        states: np.ndarray,
        firsts: np.ndarray | None = None,
        sums: np.ndarray | None = None,
    ) -> CtcRows:
        """Return view arrays.

        Args:
            rows: int64 `[N]`, their numbers; None for all in their order.
            states: `[S]`, where the search of each row stands.
            firsts: int64 `[S]`, frames of each row before the batch's.
            sums: float64 `[S]`, of the confidences of those; rewritten.
        """
        return cls(rows=rows, states=states, firsts=firsts, sums=sums)


class CtcModels(Struct):
    """See `RowModels`; `end` is `GOES_ON`, `PHRASES` or `SENTENCE`."""

    @classmethod
    def of(cls, models: RowModels, end: int) -> CtcModels:
        weights, present = models.weights.contiguous(), models.present.contiguous()
        return cls(weights=weights, present=present, num_automata=weights.shape[1], num_lms=models.num_lms, end=end)
