"""What each step of a search did, and from there back to the steps of a hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import compiled
from . import STILL, BeamHypotheses


class Trace:
    """For each step, row and place in the beam: the place before the step, the label, and the frames moved on.

    Room grows by doubling. What nobody writes means that a hypothesis stays where it is.
    """

    def __init__(self, batch_size: int, num_beams: int) -> None:
        self._size = 0
        self._shape = (batch_size, num_beams)
        self._links, self._labels, self._moves = self._blocks(64)

    def _blocks(self, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shape = (steps, *self._shape)
        links = np.ascontiguousarray(np.broadcast_to(np.arange(self._shape[1], dtype=np.int32), shape))
        return links, np.full(shape, STILL, dtype=np.int32), np.zeros(shape, dtype=np.int32)

    def room(self, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Links, labels and moves `[S, B, K]` of the next steps; at least so many."""
        while self._size + steps > len(self._links):
            blocks = self._blocks(len(self._links))
            self._links, self._labels, self._moves = (
                np.concatenate((old, new)) for old, new in zip((self._links, self._labels, self._moves), blocks)
            )
        return self._links[self._size :], self._labels[self._size :], self._moves[self._size :]

    def used(self, steps: int) -> None:
        """So many of them are taken."""
        self._size += steps

    def arrays(self) -> list[np.ndarray]:
        """Those that are taken."""
        return [array[: self._size] for array in (self._links, self._labels, self._moves)]


def hypotheses(tensors: Sequence[Tensor], trace: Sequence[np.ndarray], bad_frames: Tensor) -> BeamHypotheses:
    """The result of a search.

    Args:
        tensors: the fields of `BeamHypotheses` up to `lm_states`.
        trace: links, labels and moves, int32 `[S, B, K]`.
    """
    links, labels, moves = trace
    counts = np.zeros(links.shape[1:], dtype=np.int64)
    _count(links, labels, counts)
    out = [np.zeros((*counts.shape, counts.max(initial=0)), dtype=np.int64) for _ in range(3)]
    _follow(links, labels, moves, counts, *out)
    return BeamHypotheses._make([*tensors, *(torch.from_numpy(array) for array in (counts, *out)), bad_frames])


@compiled
def _count(links, labels, counts):
    for row in range(counts.shape[0]):
        for k in range(counts.shape[1]):
            place = k
            for step in range(links.shape[0] - 1, -1, -1):
                counts[row, k] += labels[step, row, place] != STILL
                place = links[step, row, place]


@compiled
def _follow(links, labels, moves, counts, out_labels, out_frames, out_moves):
    for row in range(counts.shape[0]):
        for k in range(counts.shape[1]):
            place, at = k, counts[row, k]
            for step in range(links.shape[0] - 1, -1, -1):
                if labels[step, row, place] != STILL:
                    at -= 1
                    out_labels[row, k, at], out_moves[row, k, at] = labels[step, row, place], moves[step, row, place]
                place = links[step, row, place]
            frame = 0
            for i in range(counts[row, k]):
                out_frames[row, k, i] = frame
                frame += out_moves[row, k, i]
