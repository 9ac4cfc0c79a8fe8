"""State of the rows of label looping."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...fusion.rows import RowModels
from ..networks.search import ilm_weights_of

_KINDS = {
    "ends": "int64", "weights": "float32", "ilm_weights": "float32", "times": "int64", "symbols": "int64",
    "lm_states": "int32", "acoustic_scores": "float64", "lm_scores": "float32", "ilm_scores": "float64", "bad_frames": "int64",
}  # fmt: skip
_OF_AUTOMATA = ("weights", "lm_states", "lm_scores")


class LoopingRows(NamedTuple):
    """State of each row of a search: arrays on the CPU, or tensors on a GPU."""

    ends: Any  # int64 [B], number of frames
    weights: Any  # float32 [B, M], weights of the automata
    ilm_weights: Any  # float32 [B], weights of the internal LM, whose scores are subtracted
    # times, symbols: int64 [B], the frame to search next, and the number of tokens already emitted at that frame
    times: Any
    symbols: Any
    lm_states: Any  # int32 [B, M], states of the automata
    acoustic_scores: Any  # float64 [B]
    # lm_scores, ilm_scores: float32 [B, M] and float64 [B], unweighted scores of the automata and of the internal LM
    lm_scores: Any
    ilm_scores: Any
    bad_frames: Any  # int64 [B], first frame with NaN or infinity in the logits, or -1 if there is none

    @classmethod
    def room(cls, size: int, num_automata: int, device: torch.device | None = None) -> LoopingRows:
        """Return the state of `size` rows, filled with zeros: tensors on `device`, or arrays if `device` is None."""
        library: Any = np if device is None else torch
        zeros = np.zeros if device is None else functools.partial(torch.zeros, device=device)
        return cls(**{
            name: zeros((size, num_automata) if name in _OF_AUTOMATA else (size,), dtype=getattr(library, kind))
            for name, kind in _KINDS.items()
        })  # fmt: skip

    def begin(self, rows: Any, models: RowModels) -> None:
        """Begin new utterances in some rows, with the states and weights of `models`."""
        for zeros in (self.times, self.symbols, self.acoustic_scores, self.lm_scores, self.ilm_scores):
            zeros[rows] = 0
        self.bad_frames[rows] = -1
        self.lm_states[rows], self.weights[rows] = models.states.int(), models.weights.float()
        self.ilm_weights[rows] = 0 if models.ilm_weights is None else ilm_weights_of(models).float()

    def switch(self, rows: Any, states: Any, scores: Any, weights: Any) -> None:
        """Switch some rows `[N]` to other phrases. The arguments are as for `TransducerSearch.switch`."""
        self.lm_scores[rows, -1] += scores[:, 0]
        self.lm_states[rows, -1] = states[:, 0]
        self.weights[rows, -1] = weights


class GreedyBeam:
    """A view of rows as beams of one hypothesis; see `TransducerSearch.beam`."""

    def __init__(self, rows: LoopingRows) -> None:
        self.rows, self.bad_frames = rows, rows.bad_frames

    @property
    def scores(self) -> Any:
        rows = self.rows
        lm_scores = rows.lm_scores.double() if isinstance(rows.lm_scores, Tensor) else rows.lm_scores.astype(np.float64)
        return (rows.acoustic_scores + (rows.weights * lm_scores).sum(1) - rows.ilm_weights * rows.ilm_scores)[:, None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rows, name)[:, None]
