"""Label looping in buffers of fixed shapes; `gpu` has the kernels of a step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...fusion.rows import RowModels, widened
from ..networks.buffers import STEPS, BufferedSearch
from .rows import GreedyBeam, LoopingRows

WINDOW = 4  # number of frames per row and step


class LoopingBuffers(BufferedSearch):
    """Buffers of label looping: the state of each row, and the trace of a block of steps (see `TransducerSearch.steps`)."""

    window = WINDOW

    def make_buffers(self, rows: int, num_automata: int) -> None:
        self.rows = LoopingRows.room(rows, num_automata, self.device)
        self.beam = GreedyBeam(self.rows)
        prediction, state = self.model.start(rows, self.frames)
        self.prediction, self.state = prediction.clone(), tuple(part.clone() for part in state)
        self.internal = self.internal_lm(self.prediction).clone()
        # The class by step, row and place in the window. Only the last class of a window may be a token.
        self.tokens = torch.zeros((STEPS, rows, self.window), dtype=torch.int32, device=self.device)
        self.moves, self.confidences = torch.zeros_like(self.tokens), torch.zeros(self.tokens.shape, device=self.device)

    def carries(self) -> list[Tensor]:
        return [*self.rows, self.prediction, *self.state, self.internal]

    def internal_lm(self, prediction: Tensor) -> Tensor:
        if self.has_ilm:
            return self.model.internal_lm(prediction)
        return prediction.new_zeros((len(prediction), 0), dtype=torch.float32)

    def begin(self, rows: np.ndarray, models: RowModels) -> None:
        self.changed()
        self.set_times(rows)
        (places,) = self.places(rows)
        self.rows.begin(places, models)
        prediction, state = self.model.start(len(rows), self.frames)
        buffers = (self.prediction, *self.state, self.internal)
        for buffer, value in zip(buffers, (prediction, *state, self.internal_lm(prediction))):
            buffer[places] = value

    def limit(self, lengths: Tensor, reaches: Tensor) -> None:
        self.rows.ends.zero_()[: len(lengths)] = lengths

    def traces(self) -> tuple[Tensor, ...]:
        return self.tokens, self.moves, self.confidences

    def steps(self) -> list[np.ndarray]:
        # [steps, rows, window] -> [steps * window, rows, 1]: unused places become steps in which a row stands still.
        labels, moves, confidences = (
            np.ascontiguousarray(np.concatenate(part).swapaxes(1, 2).reshape(-1, part[0].shape[1], 1)[:, : self.size])
            for part in zip(*self.traced)
        )
        return [np.zeros_like(labels), labels, moves, confidences]

    def shift(self, frames: np.ndarray) -> None:
        self.rows.times[: self.size] -= self.places(frames)[0]
        self.set_times(slice(self.size), frames)

    def widen(self, models: RowModels, shift: int) -> None:
        rows = self.rows
        self.rows = rows._replace(
            lm_states=widened(rows.lm_states, shift), lm_scores=widened(rows.lm_scores), weights=widened(rows.weights)
        )
        self.models, self.beam = models, GreedyBeam(self.rows)
        self.changed()
        self.make_room()

    def switch(self, rows: np.ndarray, states: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        self.changed()
        self.rows.switch(*self.places(rows, states, scores, weights))
