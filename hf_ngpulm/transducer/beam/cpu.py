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
from ...confidence import ALPHA, MEASURES
from ..model import TransducerModel
from . import FIRST_HASH, BeamHypotheses, BeamSettings, loops
from .tracing import Trace, hypotheses

ANY_NUMBER = np.iinfo(np.int64).max


class Beam:
    """Hypotheses of `B` rows, `K` each, as arrays that the compiled loops change in place.

    `slots` says which of a row's slots a hypothesis's prediction lies in; `lines` holds what LMs add to each class by slot.
    """

    def __init__(self, batch_size: int, num_beams: int, num_automata: int, classes: int, has_lines: bool) -> None:
        shape = (batch_size, num_beams)
        self.scores = np.full(shape, -np.inf)
        self.acoustic_scores = self.scores.copy()
        self.times = np.zeros(shape, dtype=np.int64)
        self.symbols = np.zeros(shape, dtype=np.int64)
        self.sizes = np.zeros(shape, dtype=np.int64)
        self.last_tokens = np.full(shape, -1, dtype=np.int64)
        self.hashes = np.full(shape, FIRST_HASH, dtype=np.int64)
        self.parent_hashes = np.zeros(shape, dtype=np.int64)
        self.slots = np.zeros(shape, dtype=np.int64)
        self.lm_states = np.zeros((*shape, num_automata), dtype=np.int32)
        self.lm_scores = np.zeros((*shape, num_automata), dtype=np.float32)
        self.lines = np.zeros((2 * batch_size * num_beams if has_lines else 0, classes), dtype=np.float32)
        self.bad_frames = np.full(batch_size, -1, dtype=np.int64)

    def begin(self, rows: np.ndarray, lm_states: np.ndarray) -> None:
        """One hypothesis without tokens in each of some rows; their LMs are in states `[N, M]`."""
        self.scores[rows] = self.acoustic_scores[rows] = -np.inf
        self.scores[rows, 0] = self.acoustic_scores[rows, 0] = 0.0
        for zeros in (self.times, self.symbols, self.sizes, self.parent_hashes, self.slots, self.lm_scores):
            zeros[rows] = 0
        self.last_tokens[rows], self.hashes[rows], self.bad_frames[rows] = -1, FIRST_HASH, -1
        self.lm_states[rows] = lm_states[:, None]

    def arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(vars(self).values())


class Search:
    """Searches of the rows of a batch, step by step. Rows `begin`, and `run_on` as far as their frames reach, any number of
    times.
    """

    def __init__(
        self,
        model: TransducerModel,
        like: Tensor,
        batch_size: int,
        automaton: AutomatonTensors,
        num_automata: int,
        vocab_size: int,
        settings: BeamSettings,
        confidence: str | None,
        has_lines: bool,
    ) -> None:
        """Args: like: frames `[..., D]`; has_lines: whether any weight, the internal LM's too, is or will be other than 0."""
        num_beams, classes = settings.num_beams, model.vocab_size
        self.model, self.settings, self.vocab_size = model, settings, vocab_size
        self.num_beams, self.batch_size, self.confidence = num_beams, batch_size, confidence
        self.weights = np.zeros((batch_size, num_automata), dtype=np.float32)
        self.num_lms = self.weights[:, : settings.num_lms].shape[1]
        self.totals = np.zeros(batch_size, dtype=np.float32)
        self.durations = np.array(model.durations or (), dtype=np.int64)
        self.automaton = arrays_of(automaton)
        self.beam = Beam(batch_size, num_beams, num_automata, classes, has_lines)
        self.trace = Trace(batch_size, num_beams)

        networks = model.networks()
        if networks is not None and networks.serve(like, classes, len(self.durations)):
            self.predict, self.join = networks.predict, networks.join
            self.first = lambda rows: networks.start(rows, model.blank_id)
        else:
            self.predict, self.join = model.predict, model.join
            self.first = lambda rows: model.start(rows, like)
        self.predictions: Tensor | None = None  # by slot; the state, too
        self.state: tuple[Tensor, ...] = ()

        # The hypotheses that go on (`num_open` of them): place in the beam, slot and frame.
        self.places = np.full((batch_size, num_beams), -1, dtype=np.int64)
        self.open_slots, self.open_frames = (
            torch.empty(batch_size * num_beams, dtype=torch.int64, device=CPU) for _ in range(2)
        )
        # New tokens: the slot that they are read from, the token, the slot that its prediction goes to.
        self.new = torch.empty((3, batch_size, num_beams), dtype=torch.int64, device=CPU)
        self.new_counts = np.zeros(batch_size, dtype=np.int64)

    def begin(self, rows: Tensor, states: Tensor, weights: Tensor) -> None:
        """Begin anew in some rows, int64 `[N]`, with automata in states `[N, M]` and their weights `[N, M]`."""
        numbers = rows.numpy()
        self.weights[numbers] = weights.to(torch.float32).numpy()
        self.totals[numbers] = self.weights[numbers, : self.num_lms].sum(1) - np.float32(self.settings.ilm_weight)
        self.beam.begin(numbers, states.numpy())
        prediction, state = self.first(len(rows))
        if self.predictions is None:
            slots = 2 * self.batch_size * self.num_beams
            self.predictions = prediction.new_zeros((slots, *prediction.shape[1:]))
            self.state = tuple(part.new_zeros((slots, *part.shape[1:])) for part in state)
        arrays = (
            *self.automaton, numbers, self.beam.lm_states, self.weights, self.num_lms, self.vocab_size, 2 * self.num_beams,
            self.beam.lines,
        )  # fmt: skip
        loops.first_lines(*arrays)
        self._keep(rows * 2 * self.num_beams, prediction, state)

    def _keep(self, slots: Tensor, predictions: Tensor, state: tuple[Tensor, ...]) -> None:
        assert self.predictions is not None
        self.predictions.index_copy_(0, slots, predictions)
        for part, new in zip(self.state, state):
            part.index_copy_(0, slots, new)
        if self.settings.ilm_weight:
            self._subtract_ilm(slots, predictions)

    def _subtract_ilm(self, slots: Tensor, predictions: Tensor) -> None:
        scores = self.model.internal_lm(predictions)
        scores[:, self.model.blank_id] = 0.0
        torch.from_numpy(self.beam.lines).index_add_(0, slots, scores, alpha=-self.settings.ilm_weight)

    def use(self, tensors: AutomatonTensors) -> None:
        """Go on with automata that lie in other tensors, at the same places."""
        self.automaton = arrays_of(tensors)

    def widen(self, tensors: AutomatonTensors, vocab_size: int, num_lms: int, shift: int) -> None:
        """Have one automaton more, which no row has yet; the states of the others are larger by `shift`."""

        def wider(values: np.ndarray) -> np.ndarray:
            return np.concatenate([values, np.zeros((*values.shape[:-1], 1), values.dtype)], -1)

        beam = self.beam
        beam.lm_states, beam.lm_scores = wider(beam.lm_states + np.int32(shift)), wider(beam.lm_scores)
        self.weights = wider(self.weights)
        self.vocab_size, self.num_lms = vocab_size, num_lms
        self.settings = self.settings._replace(num_lms=num_lms)
        if not len(beam.lines):
            beam.lines = np.zeros((2 * self.batch_size * self.num_beams, self.model.vocab_size), dtype=np.float32)
        self.use(tensors)

    def switch(self, rows: Tensor, states: Tensor, scores: Tensor, weights: Tensor) -> None:
        """Have the hypotheses of some rows, int64 `[N]`, follow other phrases.

        Args:
            states, scores: `[N, K]`, where they begin, and what the old ones give back, unweighted.
            weights: of the new ones, `[N]`.
        """
        beam, numbers = self.beam, rows.numpy()
        beam.lm_scores[numbers, :, -1] += scores.numpy()
        beam.scores[numbers] += self.weights[numbers, -1:] * scores.numpy()
        beam.lm_states[numbers, :, -1] = states.numpy()
        self.weights[numbers, -1] = weights.numpy()
        arrays = (
            *self.automaton, numbers, beam.scores, beam.slots, beam.lm_states, self.weights, self.num_lms, self.vocab_size,
            2 * self.num_beams, beam.lines,
        )  # fmt: skip
        loops.lines_of_rows(*arrays)
        if self.settings.ilm_weight:
            assert self.predictions is not None
            slots = beam.slots[numbers] + numbers[:, None] * 2 * self.num_beams
            kept = torch.from_numpy(np.unique(slots[beam.scores[numbers] > -np.inf]))
            self._subtract_ilm(kept, self.predictions[kept])

    def run_on(self, frames: Tensor, lengths: Tensor, reaches: Tensor) -> None:
        """Go on as far as the frames reach.

        Args:
            frames: `[B, T, D]`; times of hypotheses count from the first one.
            lengths: int64 `[B]`, frames of each row.
            reaches: int64 `[B]`, the farthest that a step of ALSD may lead where more frames may come, 0 where none will. A
                step that may lead beyond the last frame waits, since where it leads to depends on what comes.
        """
        self.frames, self.longest = frames.reshape(-1, frames.shape[2]), frames.shape[1]
        self.lengths, self.reaches = lengths.numpy().copy(), reaches.numpy()
        self.trace.clear()
        self.none_reach = np.zeros_like(self.reaches)
        if self.settings.strategy == "alsd":
            self.alsd()
        else:
            self.aes()

    def shift(self, frames: Tensor) -> None:
        """Have times count from later frames, by so many in each row, int64 `[B]`."""
        self.beam.times -= frames.numpy()[:, None]

    def logits(self, limits: np.ndarray, reaches: np.ndarray) -> Tensor | None:
        """What the joint network says to hypotheses at frames before the limits `[B]`; None if there are none."""
        count = loops.collect(
            self.beam.scores, self.beam.times, self.beam.slots, limits, reaches, self.longest, self.places,
            self.open_slots.numpy(), self.open_frames.numpy(),
        )  # fmt: skip
        if not count:
            return None
        assert self.predictions is not None
        frames = self.frames.index_select(0, self.open_frames[:count])
        predictions = self.predictions.index_select(0, self.open_slots[:count])
        return self.join(frames, predictions).float().contiguous()

    def step(self, logits: Tensor, limits: np.ndarray, most_symbols: int, merges_prefixes: bool = False) -> None:
        """Extend the hypotheses before the limits."""
        settings = self.settings
        trace = self.trace.room(self.num_beams + 1 if merges_prefixes else 1)
        aes = settings.strategy == "aes"
        arrays = (
            *self.automaton, logits.numpy(), self.places, limits, self.lengths, self.durations, self.model.blank_id,
            self.model.vocab_size, self.vocab_size, self.weights, self.num_lms, self.totals,
            aes, merges_prefixes, settings.blank_aware, settings.late, settings.log_sum, most_symbols,
            self.num_beams + (settings.aes_beta if aes else 0), settings.aes_gamma,
            -1 if self.confidence is None else MEASURES.index(self.confidence), np.float32(ALPHA),
            *self.beam.arrays(), *self.new.numpy(), self.new_counts, *trace,
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
        while (logits := self.logits(self.lengths, self.reaches)) is not None:
            self.step(logits, self.lengths, self.settings.max_symbols)

    def aes(self) -> None:
        for time in range(int(self.lengths.max(initial=0))):
            limits = np.minimum(self.lengths, time + 1)
            for turn in range(self.settings.aes_steps):
                logits = self.logits(limits, self.none_reach)
                if logits is None:
                    break
                self.step(logits, limits, ANY_NUMBER, merges_prefixes=turn == 0)
            logits = self.logits(limits, self.none_reach)
            if logits is not None:  # none but the blank is left
                self.step(logits, limits, 0)

    def steps(self) -> list[np.ndarray]:
        """Links, labels and moves (int32) of all steps, and confidences (float32) `[S, B, K]`."""
        return self.trace.steps(self.confidence, self.model.vocab_size)

    def found(self) -> BeamHypotheses:
        beam = self.beam
        tensors = [torch.from_numpy(array) for array in (beam.scores, beam.acoustic_scores, beam.lm_scores, beam.lm_states)]
        return hypotheses(tensors, self.steps(), torch.from_numpy(beam.bad_frames))


def beam_search(
    model: TransducerModel,
    frames: Tensor,
    lengths: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    settings: BeamSettings,
    confidence: str | None = None,
) -> BeamHypotheses:
    has_lines = bool((weights != 0).any()) or bool(settings.ilm_weight)
    search = Search(model, frames, len(frames), automaton, states.shape[1], vocab_size, settings, confidence, has_lines)
    search.begin(torch.arange(len(frames), device=CPU), states, weights)
    search.run_on(frames, lengths, torch.zeros_like(lengths))
    return search.found()
