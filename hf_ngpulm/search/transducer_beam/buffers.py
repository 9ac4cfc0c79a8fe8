"""Beam search in buffers of fixed shapes; `gpu` has the kernels of a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...fusion.rows import RowModels, widened
from ..networks.buffers import STEPS, BufferedSearch
from ..networks.model import State
from ..networks.search import ilm_weights_of
from . import FIRST_HASH


class BeamTensors(NamedTuple):
    """Hypotheses of `B` rows, with `K` places per row. An empty place has the score -inf."""

    # scores, acoustic_scores: float64 [B, K]
    scores: Tensor
    acoustic_scores: Tensor
    shares: Tensor  # float64 [B, K], see `TransducerSearch.share`
    # times, symbols, sizes, last_tokens, hashes, parent_hashes: int64 [B, K]; `symbols` counts the tokens at the present frame,
    # `sizes` counts all tokens
    times: Tensor
    symbols: Tensor
    sizes: Tensor
    last_tokens: Tensor
    hashes: Tensor
    parent_hashes: Tensor
    # lm_states, lm_scores: int32 and float32 [B, K, M], states and unweighted scores of the automata
    lm_states: Tensor
    lm_scores: Tensor
    predictions: Tensor  # [B * K, D], projected outputs of the prediction network
    bad_frames: Tensor  # int64 [B], first frame with NaN or infinity, or -1 if there is none
    state: State  # state of the prediction network, whose parts are [B * K, ...]


class BeamBuffers(BufferedSearch):
    """Buffers of a beam search: the hypotheses, and the trace of a block of steps (see `TransducerSearch.steps`)."""

    beam: BeamTensors

    def make_buffers(self, rows: int, num_automata: int) -> None:
        settings, num_beams, device = self.settings, self.settings.num_beams, self.device
        self.lengths, self.reaches = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        self.weights = torch.zeros((rows, num_automata), device=device)
        self.totals, self.ilm_weights = (torch.zeros(rows, device=device) for _ in range(2))
        self.time = torch.zeros((), dtype=torch.int64, device=device)
        self.beam = self.first(torch.zeros((rows, num_automata), dtype=torch.int32, device=device))
        each = 1 if settings.strategy == "alsd" else num_beams + settings.aes_steps
        self.trace = torch.zeros((3, STEPS * each, rows, num_beams), dtype=torch.int32, device=device)
        self.confidences = torch.zeros(self.trace.shape[1:], device=device)

    def carries(self) -> list[Tensor]:
        return [*self.beam[:-1], *self.beam.state, self.time]

    @property
    def most_extensions(self) -> int:
        """Return the maximum number of extensions of a hypothesis."""
        return min(self.settings.most_extensions, self.model.vocab_size * max(self.durations.numel(), 1))

    def first(self, states: Tensor) -> BeamTensors:
        """Return beams of N rows with only the empty hypothesis. `states`, int32 `[N, M]`: the initial states of the M
        automata.
        """
        num_beams, device = self.settings.num_beams, self.device
        shape = (states.shape[0], num_beams)
        scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=device)
        scores[:, 0] = 0.0
        zeros = torch.zeros(shape, dtype=torch.int64, device=device)
        lm_states = states.to(torch.int32)[:, None].repeat(1, num_beams, 1)
        predictions, state = self.model.start(shape[0] * num_beams, self.frames)
        return BeamTensors(
            scores, scores.clone(), torch.zeros_like(scores), zeros, zeros.clone(), zeros.clone(), zeros - 1,
            zeros + FIRST_HASH, zeros.clone(), lm_states, torch.zeros(lm_states.shape, device=device), predictions.clone(),
            zeros[:, 0] - 1, tuple(part.clone() for part in state),
        )  # fmt: skip

    def begin(self, rows: np.ndarray, models: RowModels) -> None:
        self.changed()
        self.set_times(rows)
        (numbers,) = self.places(rows)
        ilm_weights = ilm_weights_of(models)
        self.weights[numbers], self.ilm_weights[numbers] = models.weights, ilm_weights
        self.totals[numbers] = models.weights[:, : models.num_lms].sum(1) - ilm_weights
        new = self.first(models.states)
        for name in set(BeamTensors._fields) - {"predictions", "state"}:
            getattr(self.beam, name)[numbers] = getattr(new, name)
        num_beams = self.settings.num_beams
        places = (numbers[:, None] * num_beams + torch.arange(num_beams, device=self.device)).flatten()
        for buffer, part in zip((self.beam.predictions, *self.beam.state), (new.predictions, *new.state)):
            buffer[places] = part

    def limit(self, lengths: Tensor, reaches: Tensor) -> None:
        self.lengths.zero_()[: len(lengths)] = lengths
        self.reaches.zero_()[: len(reaches)] = reaches
        self.time.zero_()

    def run_blocks(self, longest: int) -> None:
        if self.settings.strategy == "alsd":
            super().run_blocks(longest)
            return
        for _ in range(0, longest, STEPS):  # in AES a block has `STEPS` frames
            self.run_block()
        self.look()

    def traces(self) -> tuple[Tensor, ...]:
        return self.trace, self.confidences

    def steps(self) -> list[np.ndarray]:
        none = np.zeros((3, 0, *self.trace.shape[2:]), dtype=np.int32), np.zeros((0, *self.trace.shape[2:]), dtype=np.float32)
        traces, confidences = zip(none, *self.traced)
        steps = [*np.concatenate(traces, 1), np.concatenate(confidences)]
        return [np.ascontiguousarray(part[:, : self.size]) for part in steps]

    def shift(self, frames: np.ndarray) -> None:
        self.beam.times[: self.size] -= self.places(frames)[0][:, None]
        self.set_times(slice(self.size), frames)

    def widen(self, models: RowModels, shift: int) -> None:
        beam = self.beam
        self.beam = beam._replace(lm_states=widened(beam.lm_states, shift), lm_scores=widened(beam.lm_scores))
        self.weights = widened(self.weights)
        self.models = models
        self.changed()
        self.make_room()

    def switch(self, rows: np.ndarray, states: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        self.changed()
        beam = self.beam
        numbers, of_phrases, gains, new_weights = self.places(rows, states, scores, weights)
        beam.lm_scores[numbers, :, -1] += gains
        beam.scores[numbers] += self.weights[numbers, -1:] * gains
        beam.lm_states[numbers, :, -1] = of_phrases
        self.weights[numbers, -1] = new_weights

    def share(self, rows: np.ndarray, shares: np.ndarray) -> None:
        numbers, values = self.places(rows, shares)
        self.beam.shares[numbers] = values
