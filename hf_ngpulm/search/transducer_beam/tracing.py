"""Keep what each step of a search did, and trace from there back to the steps of a hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...engines.native import Function
from ..confidence import confidence_of_sums
from . import STILL, BeamHypotheses

_trace = Function("ngpulm_beam_trace")


class Trace:
    """For each step, row and place in the beam: the place before the step, the label, the frames moved on, and what the
    confidence in a token is made of (see `hf_ngpulm.search.confidence.confidence_of_sums`).

    Rows take steps of their own, `used` says how many. Room grows by doubling. What nobody writes means that a hypothesis stays
    where it is.
    """

    def __init__(self, batch_size: int, num_beams: int) -> None:
        self.used = np.zeros(batch_size, dtype=np.int64)
        self._shape = (batch_size, num_beams)
        self._arrays = self._blocks(0)

    def _blocks(self, steps: int) -> list[np.ndarray]:
        shape = (steps, *self._shape)
        links, labels = np.empty(shape, dtype=np.int32), np.full(shape, STILL, dtype=np.int32)
        links[:] = np.arange(self._shape[1], dtype=np.int32)
        return [links, labels, np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32)]

    def room(self, steps: int) -> list[np.ndarray]:
        """Return links, labels, moves and sums `[S, B, K]`, in which each row finds room for so many more steps."""
        room, needed = len(self._arrays[0]), self._size + steps
        if needed > room:
            blocks = self._blocks(max(needed - room, room))
            self._arrays = [np.concatenate(both) for both in zip(self._arrays, blocks)] if room else blocks
        return self._arrays

    @property
    def _size(self) -> int:
        return int(self.used.max(initial=0))

    def steps(self, confidence: str | None, classes: int) -> list[np.ndarray]:
        """Return links, labels, moves and, by this measure, confidences of the steps that are taken."""
        *arrays, sums = (array[: self._size] for array in self._arrays)
        if confidence is not None:
            sums = confidence_of_sums(torch.from_numpy(sums), confidence, classes).numpy()
        return [*arrays, sums]

    def clear(self) -> None:
        """Forget the steps."""
        for array, new in zip(self._arrays, self._blocks(self._size)):
            array[: self._size] = new
        self.used[:] = 0


def hypotheses(tensors: Sequence[Tensor], trace: Sequence[np.ndarray], bad_frames: Tensor) -> BeamHypotheses:
    """Return the result of a search.

    Args:
        tensors: the fields of `BeamHypotheses` up to `sizes`.
        trace: links, labels, moves (int32) and confidences (float32) `[S, B, K]`.
    """
    steps, *shape = trace[0].shape
    counts = np.empty(shape, dtype=np.int64)
    found = [np.empty((*shape, steps), dtype=dtype) for dtype in (np.int64, np.int64, np.int64, np.float32)]
    most = _trace(steps, *shape, *map(np.ascontiguousarray, trace), counts, *found)
    of_steps = (torch.from_numpy(array[..., :most]) for array in found)
    return BeamHypotheses._make([*tensors, torch.from_numpy(counts), *of_steps, bad_frames, (trace[0], trace[1])])
