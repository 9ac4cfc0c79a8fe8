"""What each step of a search did, and from there back to the steps of a hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...automaton.compiled import compiled
from ..confidence import confidence_of_sums
from . import STILL, BeamHypotheses


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
        links = np.broadcast_to(np.arange(self._shape[1], dtype=np.int32), shape).copy()
        labels, moves = np.full(shape, STILL, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        return [links, labels, moves, np.zeros(shape, dtype=np.float32)]

    def room(self, steps: int) -> tuple[np.ndarray, ...]:
        """`used`, and links, labels, moves and sums `[S, B, K]`, in which each row finds room for so many more steps."""
        room, needed = len(self._arrays[0]), self._size + steps
        if needed > room:
            blocks = self._blocks(max(needed - room, room))
            self._arrays = [np.concatenate((old, new)) for old, new in zip(self._arrays, blocks)]
        return self.used, *self._arrays

    @property
    def _size(self) -> int:
        return int(self.used.max(initial=0))

    def steps(self, confidence: str | None, classes: int) -> list[np.ndarray]:
        """Links, labels, moves and, by this measure, confidences of the steps that are taken."""
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
    """The result of a search.

    Args:
        tensors: the fields of `BeamHypotheses` up to `lm_states`.
        trace: links, labels, moves (int32) and confidences (float32) `[S, B, K]`.
    """
    links, labels, moves, confidences = trace
    counts = np.zeros(links.shape[1:], dtype=np.int64)
    _count(links, labels, counts)
    shape = (*counts.shape, counts.max(initial=0))
    out = [*(np.zeros(shape, dtype=np.int64) for _ in range(3)), np.zeros(shape, dtype=np.float32)]
    _follow(links, labels, moves, confidences, counts, *out)
    return BeamHypotheses._make([*tensors, *(torch.from_numpy(array) for array in (counts, *out)), bad_frames, (links, labels)])


@compiled
def _count(links, labels, counts):
    for row in range(counts.shape[0]):
        for k in range(counts.shape[1]):
            place = k
            for step in range(links.shape[0] - 1, -1, -1):
                counts[row, k] += labels[step, row, place] != STILL
                place = links[step, row, place]


@compiled
def _follow(links, labels, moves, confidences, counts, out_labels, out_frames, out_moves, out_confidences):
    for row in range(counts.shape[0]):
        for k in range(counts.shape[1]):
            place, at = k, counts[row, k]
            for step in range(links.shape[0] - 1, -1, -1):
                if labels[step, row, place] != STILL:
                    at -= 1
                    out_labels[row, k, at], out_moves[row, k, at] = labels[step, row, place], moves[step, row, place]
                    out_confidences[row, k, at] = confidences[step, row, place]
                place = links[step, row, place]
            frame = 0
            for i in range(counts[row, k]):
                out_frames[row, k, i] = frame
                frame += out_moves[row, k, i]
