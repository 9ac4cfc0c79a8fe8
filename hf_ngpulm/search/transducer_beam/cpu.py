"""Beam search for transducers on the CPU: as compiled loops, networks of the usual kind included; those of others run on all
hypotheses that go on, step by step.

A hypothesis keeps its prediction until its next token: predictions lie in slots, of which a row has several times as many as
hypotheses, and hypotheses point to them. So do the LM scores of all classes. What nobody points to stays until its slot is
needed, since often another hypothesis comes to the same tokens soon, at another frame.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.compiled import CPU, arrays_of
from ...automaton.tensors import AutomatonTensors
from ...engines.threads import in_threads
from ..confidence import ALPHA, MEASURES
from ..networks.model import TransducerModel
from . import FIRST_HASH, BeamHypotheses, BeamSettings, lines, loops, whole
from .tracing import Trace, hypotheses

SLOTS = 3  # for each hypothesis


class Beam:
    """Hypotheses of `B` rows, `K` each, as arrays that the compiled loops change in place.

    `slots` says which of a row's slots a hypothesis's prediction lies in; `lines` holds what LMs add to each class by slot. A
    slot is that of some tokens (`slot_hashes`, and `slot_sizes`, -1 for none), last in use at a time of the row's clock
    (`slot_uses`; the clock is its last column).
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
        self.lines = np.zeros((SLOTS * batch_size * num_beams if has_lines else 0, classes), dtype=np.float32)
        self.bad_frames = np.full(batch_size, -1, dtype=np.int64)
        self.slot_hashes = np.zeros((batch_size, SLOTS * num_beams), dtype=np.int64)
        self.slot_sizes = np.full(self.slot_hashes.shape, -1, dtype=np.int64)
        self.slot_uses = np.zeros((batch_size, SLOTS * num_beams + 1), dtype=np.int64)

    def begin(self, rows: np.ndarray, lm_states: np.ndarray) -> None:
        """One hypothesis without tokens in each of some rows; their LMs are in states `[N, M]`."""
        self.scores[rows] = self.acoustic_scores[rows] = -np.inf
        self.scores[rows, 0] = self.acoustic_scores[rows, 0] = 0.0
        for zeros in (self.times, self.symbols, self.sizes, self.parent_hashes, self.slots, self.lm_scores):
            zeros[rows] = 0
        self.last_tokens[rows], self.hashes[rows], self.bad_frames[rows] = -1, FIRST_HASH, -1
        self.lm_states[rows] = lm_states[:, None]
        self.slot_hashes[rows, 0], self.slot_sizes[rows], self.slot_uses[rows] = FIRST_HASH, -1, 0
        self.slot_sizes[rows, 0] = 0

    def forget(self, rows: np.ndarray) -> None:
        """Have no slot of some rows serve hypotheses that don't point to it already: what LMs add is something else now."""
        self.slot_sizes[rows] = -1

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
        self.model, self.settings, self.vocab_size, self.like = model, settings, vocab_size, like
        self.num_beams, self.batch_size, self.confidence = num_beams, batch_size, confidence
        self.weights = np.zeros((batch_size, num_automata), dtype=np.float32)
        self.num_lms = self.weights[:, : settings.num_lms].shape[1]
        self.totals = np.zeros(batch_size, dtype=np.float32)
        self.durations = np.array(model.durations or (), dtype=np.int64)
        self.automaton = arrays_of(automaton)
        self.beam = Beam(batch_size, num_beams, num_automata, classes, has_lines)
        self.trace = Trace(batch_size, num_beams)

        networks = model.networks()
        serves = networks is not None and networks.serve(like, classes, len(self.durations))
        self.networks = networks if serves else None
        self.laid_out: whole.Networks | None = None
        # By slot; of the state its parts, or if the networks run in compiled loops one tensor of all.
        self.predictions: Tensor | None = None
        self.state: tuple[Tensor, ...] = ()
        if self.networks is not None:
            slots, projection = SLOTS * batch_size * num_beams, self.networks.projection
            self.predictions = projection.new_zeros((slots, projection.shape[0]))
            self.state = (projection.new_zeros((self.networks.num_parts, slots, projection.shape[1])),)

        # The hypotheses that go on: place in the beam, slot and frame.
        self.places = np.full((batch_size, num_beams), -1, dtype=np.int64)
        self.open_slots, self.open_frames = (
            torch.empty(batch_size * num_beams, dtype=torch.int64, device=CPU) for _ in range(2)
        )
        # New tokens: the slot that they are read from, the token, the slot that its prediction goes to.
        self.new = torch.empty((3, batch_size * num_beams), dtype=torch.int64, device=CPU)
        # Of each row: frames; the frame before which a step is taken; and how many have been taken at it (AES).
        self.lengths, self.limits, self.phases = (np.zeros(batch_size, dtype=np.int64) for _ in range(3))

    def begin(self, rows: Tensor, states: Tensor, weights: Tensor) -> None:
        """Begin anew in some rows, int64 `[N]`, with automata in states `[N, M]` and their weights `[N, M]`."""
        numbers = rows.numpy()
        self.weights[numbers] = weights.to(torch.float32).numpy()
        self.totals[numbers] = self.weights[numbers, : self.num_lms].sum(1) - np.float32(self.settings.ilm_weight)
        self.beam.begin(numbers, states.numpy())
        arrays = (
            *self.automaton, numbers, self.beam.lm_states, self.weights, self.num_lms, self.vocab_size,
            SLOTS * self.num_beams, self.beam.lines,
        )  # fmt: skip
        lines.first_lines(*arrays)
        if self.networks is not None:
            # Weights may have changed since other utterances began.
            self.laid_out = whole.Networks.of(self.networks)
            whole.begin_rows(
                numbers, SLOTS * self.num_beams, self.model.blank_id, self.laid_out, *self._of_slots(), self.beam.lines,
                self.model.vocab_size,
            )  # fmt: skip
            return
        prediction, state = self.model.start(len(rows), self.like)
        if self.predictions is None:
            slots = SLOTS * self.batch_size * self.num_beams
            self.predictions = prediction.new_zeros((slots, *prediction.shape[1:]))
            self.state = tuple(part.new_zeros((slots, *part.shape[1:])) for part in state)
        self._keep(rows * SLOTS * self.num_beams, prediction, state)

    def _of_slots(self) -> tuple[np.ndarray, np.ndarray, float]:
        """What the compiled loops need to run networks, besides these."""
        assert self.predictions is not None
        return self.state[0].numpy(), self.predictions.numpy(), float(self.settings.ilm_weight)

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
            beam.lines = np.zeros((SLOTS * self.batch_size * self.num_beams, self.model.vocab_size), dtype=np.float32)
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
            SLOTS * self.num_beams, beam.lines,
        )  # fmt: skip
        beam.forget(numbers)
        lines.lines_of_rows(*arrays)
        if self.settings.ilm_weight:
            assert self.predictions is not None
            slots = beam.slots[numbers] + numbers[:, None] * SLOTS * self.num_beams
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
        self.lengths, self.reaches = lengths.numpy().copy(), reaches.numpy()
        self.limits, self.phases = self.lengths.copy(), np.zeros_like(self.lengths)
        self.trace.clear()
        if self.settings.strategy == "aes":
            self.limits, self.reaches = np.minimum(self.lengths, 1), np.zeros_like(self.reaches)
        if self.laid_out is not None:
            self._run_whole(frames.contiguous(), self.laid_out)
        else:
            self.frames, self.longest = frames.reshape(-1, frames.shape[2]), frames.shape[1]
            if self.settings.strategy == "alsd":
                self.alsd()
            else:
                self.aes()

    def _run_whole(self, frames: Tensor, networks: whole.Networks) -> None:
        # A token for every second frame is usual; if there are more, the search goes on with more room.
        steps = int(self.lengths.max(initial=0)) * (3 if self.settings.strategy == "aes" else 2) + self.num_beams + 1
        of_slots, of_search = self._of_slots(), (self.reaches, self.of_rows, self.rules, self.beam.arrays())
        work = frames.shape[1] * self.num_beams * networks.head_biases.size
        lacks_room = True
        while lacks_room:
            trace = self.trace.room(steps)
            arguments = (self.automaton, frames.numpy(), *of_search, self.places, trace, networks, *of_slots)
            found = in_threads(functools.partial(_run_rows, arguments), self.batch_size, work)
            lacks_room, steps = any(found), len(trace[1])

    def shift(self, frames: Tensor) -> None:
        """Have times count from later frames, by so many in each row, int64 `[B]`."""
        self.beam.times -= frames.numpy()[:, None]

    @property
    def of_rows(self) -> tuple[np.ndarray, ...]:
        """What the loops need to know of each row, and change."""
        return self.lengths, self.limits, self.phases, self.weights, self.totals

    @property
    def rules(self) -> tuple[object, ...]:
        """What the loops need to know of all rows."""
        settings, aes = self.settings, self.settings.strategy == "aes"
        return (
            self.durations, self.model.blank_id, self.model.vocab_size, self.vocab_size, settings.aes_steps if aes else 0,
            settings.blank_aware, settings.late, settings.log_sum, min(settings.max_symbols, loops.ANY_NUMBER),
            self.num_beams + (settings.aes_beta if aes else 0), settings.aes_gamma,
            -1 if self.confidence is None else MEASURES.index(self.confidence), np.float32(ALPHA), self.num_lms,
            bool(settings.ilm_weight),
        )  # fmt: skip

    def logits(self) -> Tensor | None:
        """What the joint network says to hypotheses at frames before the limits; None if there are none."""
        count = loops.collect(
            self.beam.scores, self.beam.times, self.beam.slots, self.limits, self.reaches, self.longest,
            SLOTS * self.num_beams, self.places, self.open_slots.numpy(), self.open_frames.numpy(),
        )  # fmt: skip
        if not count:
            return None
        assert self.predictions is not None
        frames = self.frames.index_select(0, self.open_frames[:count])
        predictions = self.predictions.index_select(0, self.open_slots[:count])
        return self.model.join(frames, predictions).float().contiguous()

    def step(self, logits: Tensor) -> None:
        """Extend the hypotheses before the limits."""
        arrays = (
            self.automaton, logits.numpy(), self.places, self.of_rows, self.rules, self.beam.arrays(),
            self.trace.room(self.num_beams + 1), self.new.numpy(),
        )  # fmt: skip
        found = in_threads(
            lambda first, last: loops.step_rows(first, last, *arrays), self.batch_size, logits.shape[1] * self.num_beams * 8
        )
        self.phases += 1
        sources, tokens, targets = torch.cat([self.new[:, begin : begin + count] for begin, count, _ in found], 1)
        if len(tokens):
            predictions, state = self.model.predict(tokens, tuple(part.index_select(0, sources) for part in self.state))
            self._keep(targets, predictions, state)

    def alsd(self) -> None:
        while (logits := self.logits()) is not None:
            self.step(logits)

    def aes(self) -> None:
        for time in range(int(self.lengths.max(initial=0))):
            np.minimum(self.lengths, time + 1, out=self.limits)
            self.phases[:] = 0
            for _ in range(self.settings.aes_steps):
                logits = self.logits()
                if logits is None:
                    break
                self.step(logits)
            self.phases[:] = self.settings.aes_steps
            logits = self.logits()
            if logits is not None:  # none but the blank is left
                self.step(logits)

    def steps(self) -> list[np.ndarray]:
        """Links, labels and moves (int32) of all steps, and confidences (float32) `[S, B, K]`."""
        return self.trace.steps(self.confidence, self.model.vocab_size)

    def found(self) -> BeamHypotheses:
        beam = self.beam
        tensors = [torch.from_numpy(array) for array in (beam.scores, beam.acoustic_scores, beam.lm_scores, beam.lm_states)]
        return hypotheses(tensors, self.steps(), torch.from_numpy(beam.bad_frames))


def _run_rows(arguments: tuple[Any, ...], first: int, last: int) -> bool:
    return whole.run_rows(first, last, *arguments)[0]


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
