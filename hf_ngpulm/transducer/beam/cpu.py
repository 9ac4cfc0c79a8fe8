"""Beam search for transducers on the CPU: the networks run on all hypotheses that go on, compiled loops do the rest.

A hypothesis keeps its prediction until its next token: predictions lie in slots, of which a row has twice as many as
hypotheses, and hypotheses point to them. So do the LM scores of all classes, which are looked up once for each new token.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import CPU, arrays_of, in_threads
from ...automaton.tensors import AutomatonTensors
from ..model import TransducerModel
from . import FIRST_HASH, BeamHypotheses, BeamSettings, loops
from .tracing import Trace, hypotheses

ANY_NUMBER = np.iinfo(np.int64).max


class Beam:
    """Hypotheses of `B` rows, `K` each, as arrays that the compiled loops change in place.

    `slots` says which of a row's slots a hypothesis's prediction lies in; `lines` holds what LMs add to each class by slot.
    """

    def __init__(self, lm_states: Tensor, num_beams: int, classes: int, has_lines: bool) -> None:
        batch_size, num_automata = lm_states.shape
        shape = (batch_size, num_beams)
        self.scores = np.full(shape, -np.inf)
        self.scores[:, 0] = 0.0
        self.acoustic_scores = self.scores.copy()
        self.times = np.zeros(shape, dtype=np.int64)
        self.symbols = np.zeros(shape, dtype=np.int64)
        self.sizes = np.zeros(shape, dtype=np.int64)
        self.last_tokens = np.full(shape, -1, dtype=np.int64)
        self.hashes = np.full(shape, FIRST_HASH, dtype=np.int64)
        self.parent_hashes = np.zeros(shape, dtype=np.int64)
        self.slots = np.zeros(shape, dtype=np.int64)
        self.lm_states = np.repeat(lm_states.numpy().astype(np.int32)[:, None], num_beams, 1)
        self.lm_scores = np.zeros((*shape, num_automata), dtype=np.float32)
        self.lines = np.zeros((2 * batch_size * num_beams if has_lines else 0, classes), dtype=np.float32)
        self.bad_frames = np.full(batch_size, -1, dtype=np.int64)

    def arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(vars(self).values())


class Search:
    """One search for a batch, step by step."""

    def __init__(
        self,
        model: TransducerModel,
        frames: Tensor,
        lengths: Tensor,
        automaton: AutomatonTensors,
        states: Tensor,
        weights: Tensor,
        vocab_size: int,
        settings: BeamSettings,
    ) -> None:
        batch_size, self.longest, dim = frames.shape
        num_beams, classes = settings.num_beams, model.vocab_size
        self.model, self.settings, self.vocab_size = model, settings, vocab_size
        self.num_beams, self.batch_size = num_beams, batch_size
        self.frames = frames.reshape(-1, dim)
        self.lengths = lengths.to(torch.int64).contiguous().numpy().copy()
        self.weights = weights.to(torch.float32).contiguous().numpy()
        self.num_lms = self.weights[:, : settings.num_lms].shape[1]
        self.totals = self.weights[:, : self.num_lms].sum(1) - np.float32(settings.ilm_weight)
        self.durations = np.array(model.durations or (), dtype=np.int64)
        self.automaton = arrays_of(automaton)
        self.beam = Beam(states, num_beams, classes, bool(self.weights.any()) or bool(settings.ilm_weight))
        self.trace = Trace(batch_size, num_beams)

        networks = model.networks()
        if networks is not None and networks.serve(frames, classes, len(self.durations)):
            self.predict, self.join = networks.predict, networks.join
            prediction, state = networks.start(batch_size, model.blank_id)
        else:
            self.predict, self.join = model.predict, model.join
            prediction, state = model.start(batch_size, frames)

        # Slots, and the hypotheses that go on (`num_open` of them): place in the beam, slot and frame.
        first_slots = torch.arange(batch_size, device=CPU) * 2 * num_beams
        self.predictions = prediction.new_zeros((2 * batch_size * num_beams, *prediction.shape[1:]))
        self.state = tuple(part.new_zeros((2 * batch_size * num_beams, *part.shape[1:])) for part in state)
        self.places = np.full((batch_size, num_beams), -1, dtype=np.int64)
        self.open_slots, self.open_frames = (
            torch.empty(batch_size * num_beams, dtype=torch.int64, device=CPU) for _ in range(2)
        )
        # New tokens: the slot that they are read from, the token, the slot that its prediction goes to.
        self.new = torch.empty((3, batch_size, num_beams), dtype=torch.int64, device=CPU)
        self.new_counts = np.zeros(batch_size, dtype=np.int64)
        arrays = (*self.automaton, self.beam.lm_states, self.weights, self.num_lms, vocab_size, 2 * num_beams, self.beam.lines)
        loops.first_lines(*arrays)
        self._keep(first_slots, prediction, state)

    def _keep(self, slots: Tensor, predictions: Tensor, state: tuple[Tensor, ...]) -> None:
        self.predictions.index_copy_(0, slots, predictions)
        for part, new in zip(self.state, state):
            part.index_copy_(0, slots, new)
        if self.settings.ilm_weight:
            scores = self.model.internal_lm(predictions)
            scores[:, self.model.blank_id] = 0.0
            torch.from_numpy(self.beam.lines).index_add_(0, slots, scores, alpha=-self.settings.ilm_weight)

    def logits(self, limits: np.ndarray) -> Tensor | None:
        """What the joint network says to hypotheses at frames before the limits `[B]`; None if there are none."""
        count = loops.collect(
            self.beam.scores, self.beam.times, self.beam.slots, limits, self.longest, self.places, self.open_slots.numpy(),
            self.open_frames.numpy(),
        )  # fmt: skip
        if not count:
            return None
        frames = self.frames.index_select(0, self.open_frames[:count])
        predictions = self.predictions.index_select(0, self.open_slots[:count])
        return self.join(frames, predictions).float().contiguous()

    def step(self, logits: Tensor, limits: np.ndarray, most_symbols: int, merges_prefixes: bool = False) -> None:
        """Extend the hypotheses before the limits."""
        settings = self.settings
        links, labels, moves = self.trace.room(self.num_beams + 1 if merges_prefixes else 1)
        aes = settings.strategy == "aes"
        arrays = (
            *self.automaton, logits.numpy(), self.places, limits, self.lengths, self.durations, self.model.blank_id,
            self.model.vocab_size, self.vocab_size, self.weights, self.num_lms, self.totals,
            aes, merges_prefixes, settings.blank_aware, settings.late, settings.log_sum, most_symbols,
            self.num_beams + (settings.aes_beta if aes else 0), settings.aes_gamma,
            *self.beam.arrays(), *self.new.numpy(), self.new_counts, links, labels, moves,
        )  # fmt: skip
        used = in_threads(
            lambda first, last: loops.search_rows(first, last, *arrays), self.batch_size, logits.shape[1] * self.num_beams * 8
        )
        self.trace.used(max(used))
        count = loops.packed(self.new.numpy(), self.new_counts)
        if count:
            sources, tokens, targets = self.new.view(3, -1)[:, :count]
            predictions, state = self.predict(tokens, tuple(part.index_select(0, sources) for part in self.state))
            self._keep(targets, predictions, state)

    def alsd(self) -> None:
        while (logits := self.logits(self.lengths)) is not None:
            self.step(logits, self.lengths, self.settings.max_symbols)

    def aes(self) -> None:
        for time in range(int(self.lengths.max(initial=0))):
            limits = np.minimum(self.lengths, time + 1)
            for turn in range(self.settings.aes_steps):
                logits = self.logits(limits)
                if logits is None:
                    break
                self.step(logits, limits, ANY_NUMBER, merges_prefixes=turn == 0)
            logits = self.logits(limits)
            if logits is not None:  # none but the blank is left
                self.step(logits, limits, 0)

    def found(self) -> BeamHypotheses:
        beam = self.beam
        tensors = [torch.from_numpy(array) for array in (beam.scores, beam.acoustic_scores, beam.lm_scores, beam.lm_states)]
        return hypotheses(tensors, self.trace.arrays(), torch.from_numpy(beam.bad_frames))


def beam_search(
    model: TransducerModel,
    frames: Tensor,
    lengths: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    settings: BeamSettings,
) -> BeamHypotheses:
    search = Search(model, frames, lengths, automaton, states, weights, vocab_size, settings)
    if settings.strategy == "alsd":
        search.alsd()
    else:
        search.aes()
    return search.found()
