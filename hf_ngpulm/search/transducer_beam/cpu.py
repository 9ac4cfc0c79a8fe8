"""Beam search for transducers by the native core (`csrc/transducer_beam.cpp`), networks of the usual kind included; those of
others run on all hypotheses that go on, step by step.

A hypothesis keeps its prediction until its next token: predictions lie in slots, of which a row has several times as many as
hypotheses, and hypotheses point to them. So do the LM scores of all classes. What nobody points to stays until its slot is
needed, since often another hypothesis comes to the same tokens soon, at another frame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import CPU, Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import in_threads, on_rows
from ..networks.cpu import Classes, Networks, Slots
from ..networks.model import TransducerModel
from . import FIRST_HASH, BeamHypotheses, BeamSettings
from .tracing import Trace, hypotheses

SLOTS = 2  # for each hypothesis
NO_ROOM = -2


class NgpulmBeamSettings(Struct):
    """Hold what is the same for all rows, see `BeamSettings`; `aes_steps` are 0 for ALSD."""

    @classmethod
    def of(cls, settings: BeamSettings, vocab_size: int, num_lms: int) -> NgpulmBeamSettings:
        aes = settings.strategy == "aes"
        return cls(
            vocab_size=vocab_size, num_lms=num_lms, max_symbols=settings.max_symbols,
            aes_steps=settings.aes_steps if aes else 0, most_extensions=settings.num_beams + (settings.aes_beta if aes else 0),
            aes_gamma=settings.aes_gamma, has_ilm=settings.has_ilm, blank_aware=settings.blank_aware, late=settings.late,
            log_sum=settings.log_sum,
        )  # fmt: skip


class NgpulmBeam(Struct):
    """See `Beam`."""


class BeamRows(Struct):
    """Of each row: its frames; the frame before which steps are taken; the farthest that a step may lead (see `Search.run_on`);
    steps that have been taken at this frame (AES); weights, the total of the LMs', and the internal LM's.
    """


class BeamSteps(Struct):
    """See `Trace`; there is `room` for so many steps of each row."""

    @classmethod
    def of(cls, trace: Trace, steps: int) -> BeamSteps:
        """Return one with room for so many more steps of each row."""
        links, labels, moves, sums = trace.room(steps)
        return cls(
            used=trace.used, links=links, labels=labels, moves=moves, sums=sums, room=len(links), batch=len(trace.used)
        )  # fmt: skip


_lines = Function("ngpulm_beam_lines")
_begin = Function("ngpulm_beam_begin")
_rows = Function("ngpulm_beam_rows")
_open = Function("ngpulm_beam_open")
_step = Function("ngpulm_beam_step")


class Beam:
    """Hypotheses of `B` rows, `K` each, as arrays that the core changes in place.

    `slots` says which of a row's slots a hypothesis's prediction lies in; `lines` holds what LMs add to each class by slot. A
    slot is that of some tokens (`slot_hashes`, and `slot_sizes`, -1 for none), last in use at a time of the row's clock
    (`slot_uses`; the clock is its last column).
    """

    def __init__(self, batch_size: int, num_beams: int, num_automata: int, classes: int, has_lines: bool) -> None:
        shape, slots = (batch_size, num_beams), SLOTS * num_beams
        self.scores, self.acoustic_scores = np.full(shape, -np.inf), np.full(shape, -np.inf)
        self.times, self.symbols, self.sizes, self.last_tokens, self.hashes, self.parent_hashes, self.slots = (
            np.zeros(shape, dtype=np.int64) for _ in range(7)
        )
        self.lm_states = np.zeros((*shape, num_automata), dtype=np.int32)
        self.lm_scores = np.zeros((*shape, num_automata), dtype=np.float32)
        self.lines = np.empty((batch_size * slots if has_lines else 0, classes), dtype=np.float32)
        self.bad_frames = np.full(batch_size, -1, dtype=np.int64)
        self.slot_hashes, self.slot_sizes, self.slot_uses = (
            np.zeros((batch_size, size), dtype=np.int64) for size in (slots, slots, slots + 1)
        )

    def begin(self, rows: np.ndarray, lm_states: np.ndarray) -> None:
        """Begin with one hypothesis without tokens in each of some rows; their LMs are in states `[N, M]`."""
        self.scores[rows] = self.acoustic_scores[rows] = -np.inf
        self.scores[rows, 0] = self.acoustic_scores[rows, 0] = 0.0
        for zeros in (self.times, self.symbols, self.sizes, self.parent_hashes, self.slots, self.lm_scores, self.slot_uses):
            zeros[rows] = 0
        self.last_tokens[rows], self.hashes[rows], self.bad_frames[rows] = -1, FIRST_HASH, -1
        self.lm_states[rows] = lm_states[:, None]
        self.slot_hashes[rows, 0], self.slot_sizes[rows] = FIRST_HASH, -1
        self.slot_sizes[rows, 0] = 0

    def forget(self, rows: np.ndarray) -> None:
        """Have no slot of some rows serve hypotheses that don't point to it already: what LMs add is something else now."""
        self.slot_sizes[rows] = -1

    def arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(vars(self).values())

    def native(self) -> NgpulmBeam:
        """Return it as the core sees it, until an array is another one."""
        num_beams, num_automata = self.lm_states.shape[1:]
        members = vars(self) | {"lines": self.lines if len(self.lines) else None}
        return NgpulmBeam(
            **members, num_beams=num_beams, num_automata=num_automata, slots_of_row=self.slot_hashes.shape[1]
        )  # fmt: skip


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
        composing: Struct | None = None,
    ) -> None:
        """Args: like: frames `[..., D]`; has_lines: whether any weight of an automaton is or will be other than 0;
        composing: see `Automaton.of`.
        """
        num_beams, classes = settings.num_beams, model.vocab_size
        self.model, self.settings, self.like, self.confidence = model, settings, like, confidence
        self.batch_size, self.slots = batch_size, SLOTS * batch_size * num_beams
        self.weights = np.zeros((batch_size, num_automata), dtype=np.float32)
        self.totals, self.ilm_weights = (np.zeros(batch_size, dtype=np.float32) for _ in range(2))
        # Of each row, see `BeamRows`.
        self.lengths, self.limits, self.reaches, self.phases = (np.zeros(batch_size, dtype=np.int64) for _ in range(4))
        self.beam = Beam(batch_size, num_beams, num_automata, classes, has_lines or settings.has_ilm)
        self.trace = Trace(batch_size, num_beams)
        durations = torch.tensor(model.durations or (), dtype=torch.int64, device=CPU)
        self.classes = Classes.of(classes, model.blank_id, durations, confidence)
        self._take(automaton, vocab_size, settings.num_lms, composing)

        networks = model.networks()
        serves = networks is not None and networks.serve(like, classes, len(durations))
        self.networks = networks if serves else None
        self.laid_out: Networks | None = None
        # By slot; of the state its parts, or if the core runs the networks one tensor of all.
        self.predictions: Tensor | None = None
        self.state: tuple[Tensor, ...] = ()
        if self.networks is not None:
            projection = self.networks.projection
            self.predictions = projection.new_empty((self.slots, projection.shape[0]))
            self.state = (projection.new_empty((self.networks.num_parts, self.slots, projection.shape[1])),)

        # The lines of logits of the hypotheses that go on, and their slots and frames.
        self.lines = np.full((batch_size, num_beams), -1, dtype=np.int64)
        self.open_slots, self.open_frames = (
            torch.empty(batch_size * num_beams, dtype=torch.int64, device=CPU) for _ in range(2)
        )
        # New tokens: the slot that they are read from, the token, the slot that its prediction goes to.
        self.new = [torch.empty(batch_size * num_beams, dtype=torch.int64, device=CPU) for _ in range(3)]

    def _take(self, automaton: AutomatonTensors, vocab_size: int, num_lms: int | None, composing: Struct | None = None) -> None:
        """Search with these automata, and tell the core of all arrays."""
        self.num_lms = self.weights[:, :num_lms].shape[1]
        self.vocab_size = vocab_size
        self.rules = NgpulmBeamSettings.of(self.settings, vocab_size, self.num_lms)
        self.rows = BeamRows(
            lengths=self.lengths, limits=self.limits, reaches=self.reaches, phases=self.phases, weights=self.weights,
            totals=self.totals, ilm_weights=self.ilm_weights,
        )  # fmt: skip
        self.native_beam = self.beam.native()
        self.use(automaton, composing)

    def use(self, tensors: AutomatonTensors, composing: Struct | None = None) -> None:
        """Go on with automata that lie in other tensors, at the same places."""
        self.automaton = Automaton.of(tensors, self.vocab_size, composing)

    def begin(self, rows: Tensor, states: Tensor, weights: Tensor, ilm_weights: Tensor) -> None:
        """Begin anew in some rows, int64 `[N]`, with automata in states `[N, M]`, their weights `[N, M]` and the internal LM's
        `[N]`.
        """
        numbers = rows.numpy()
        self.weights[numbers] = weights.to(torch.float32).numpy()
        self.ilm_weights[numbers] = ilm_weights.to(torch.float32).numpy()
        self.totals[numbers] = self.weights[numbers, : self.num_lms].sum(1) - self.ilm_weights[numbers]
        self.beam.begin(numbers, states.numpy())
        self._write_lines(numbers)
        if self.networks is not None:
            # Weights may have changed since other utterances began.
            self.laid_out = Networks.of(self.networks)
            of_networks = (self.laid_out, self._of_slots())
            _begin(0, len(numbers), numbers, self.classes, self.rules, self.rows, self.native_beam, *of_networks)
            return
        prediction, state = self.model.start(len(rows), self.like)
        if self.predictions is None:
            self.predictions = prediction.new_zeros((self.slots, *prediction.shape[1:]))
            self.state = tuple(part.new_zeros((self.slots, *part.shape[1:])) for part in state)
        self._keep(rows * SLOTS * self.settings.num_beams, prediction, state)

    def _write_lines(self, numbers: np.ndarray) -> None:
        """Write what LMs add after all hypotheses of some rows."""
        bad_row = _lines(0, len(numbers), numbers, *self._of_search(0))
        if bad_row >= 0:
            raise IndexError(self._refusal(bad_row))

    def _of_search(self, steps: int) -> tuple[Any, ...]:
        """Return what the core needs to know, with room for so many more steps."""
        return (
            self.automaton, self.classes, self.rules, self.rows, self.native_beam, BeamSteps.of(self.trace, steps)
        )  # fmt: skip

    def _of_slots(self) -> Slots:
        assert self.predictions is not None
        return Slots.of(self.state[0], self.predictions)

    def _keep(self, slots: Tensor, predictions: Tensor, state: tuple[Tensor, ...]) -> None:
        assert self.predictions is not None
        self.predictions.index_copy_(0, slots, predictions)
        for part, new in zip(self.state, state):
            part.index_copy_(0, slots, new)
        if self.settings.has_ilm:
            self._subtract_ilm(slots, predictions)

    def _subtract_ilm(self, slots: Tensor, predictions: Tensor) -> None:
        scores = self.model.internal_lm(predictions)
        scores[:, self.model.blank_id] = 0.0
        weights = torch.from_numpy(self.ilm_weights)[slots // (SLOTS * self.settings.num_beams), None]
        torch.from_numpy(self.beam.lines).index_add_(0, slots, torch.where(weights != 0, weights * scores, 0.0), alpha=-1)

    def widen(self, tensors: AutomatonTensors, vocab_size: int, num_lms: int, shift: int) -> None:
        """Have one automaton more, which no row has yet; the states of the others are larger by `shift`."""

        def wider(values: np.ndarray) -> np.ndarray:
            return np.concatenate([values, np.zeros((*values.shape[:-1], 1), values.dtype)], -1)

        beam = self.beam
        beam.lm_states, beam.lm_scores = wider(beam.lm_states + np.int32(shift)), wider(beam.lm_scores)
        self.weights = wider(self.weights)
        self.settings = self.settings._replace(num_lms=num_lms)
        if not len(beam.lines):
            beam.lines = np.zeros((self.slots, self.model.vocab_size), dtype=np.float32)
        self._take(tensors, vocab_size, num_lms)

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
        beam.forget(numbers)
        self._write_lines(numbers)
        if self.settings.has_ilm:
            assert self.predictions is not None
            slots = beam.slots[numbers] + numbers[:, None] * SLOTS * self.settings.num_beams
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
        self.lengths[:] = self.limits[:] = lengths.numpy()
        self.reaches[:], self.phases[:] = reaches.numpy(), 0
        if self.settings.strategy == "aes":
            self.reaches[:] = self.limits[:] = 0  # frame by frame
        self.trace.clear()
        if self.laid_out is not None:
            self._run_whole(frames.contiguous(), self.laid_out)
        else:
            while (logits := self._logits(frames)) is not None:
                self._step(logits)

    def _run_whole(self, frames: Tensor, networks: Networks) -> None:
        # A token for every second frame is usual; if there are more, the search goes on with more room.
        num_beams, of_networks = self.settings.num_beams, (networks, self._of_slots(), frames, frames.shape[1])
        steps = int(self.lengths.max(initial=0)) * (3 if self.settings.strategy == "aes" else 2) + num_beams + 1
        work = frames.shape[1] * num_beams * networks.outputs
        while True:
            if NO_ROOM not in on_rows(_rows, (*self._of_search(steps), *of_networks), self.batch_size, work, self._refusal):
                break
            steps = len(self.trace.room(0)[0])

    def _refusal(self, row: int) -> str:
        return f"an automaton has no state of {self.beam.lm_states[row].tolist()}, row {row}"

    def shift(self, frames: Tensor) -> None:
        """Have times count from later frames, by so many in each row, int64 `[B]`."""
        self.beam.times -= frames.numpy()[:, None]

    def _logits(self, frames: Tensor) -> Tensor | None:
        """Return what the joint network says to hypotheses that go on; None if there are none."""
        count = _open(
            self.batch_size, self.rules, self.rows, self.native_beam, frames.shape[1], self.lines, self.open_slots,
            self.open_frames,
        )  # fmt: skip
        if not count:
            return None
        assert self.predictions is not None
        heard = frames.reshape(-1, frames.shape[2]).index_select(0, self.open_frames[:count])
        predictions = self.predictions.index_select(0, self.open_slots[:count])
        return self.model.join(heard, predictions).float().contiguous()

    def _step(self, logits: Tensor) -> None:
        """Extend the hypotheses that go on."""
        num_beams = self.settings.num_beams
        arguments = (*self._of_search(num_beams + 1), logits, self.lines, *self.new)

        def run(first: int, last: int) -> tuple[int, int]:
            return first * num_beams, _step(first, last, *arguments)

        found = in_threads(run, self.batch_size, logits.shape[1] * num_beams * 8)
        sources, tokens, targets = (torch.cat([part[begin : begin + count] for begin, count in found]) for part in self.new)
        if len(tokens):
            predictions, state = self.model.predict(tokens, tuple(part.index_select(0, sources) for part in self.state))
            self._keep(targets, predictions, state)

    def steps(self) -> list[np.ndarray]:
        """Return links, labels and moves (int32) of all steps, and confidences (float32) `[S, B, K]`."""
        return self.trace.steps(self.confidence, self.model.vocab_size)

    def found(self) -> BeamHypotheses:
        beam = self.beam
        tensors = [
            torch.from_numpy(array) for array in (beam.scores, beam.acoustic_scores, beam.lm_scores, beam.lm_states, beam.sizes)
        ]
        return hypotheses(tensors, self.steps(), torch.from_numpy(beam.bad_frames))


def beam_search(
    model: TransducerModel,
    frames: Tensor,
    lengths: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    ilm_weights: Tensor,
    vocab_size: int,
    settings: BeamSettings,
    confidence: str | None = None,
    composing: Struct | None = None,
) -> BeamHypotheses:
    has_lines = bool((weights != 0).any())
    search = Search(
        model, frames, len(frames), automaton, states.shape[1], vocab_size, settings, confidence, has_lines, composing
    )  # fmt: skip
    search.begin(torch.arange(len(frames), device=CPU), states, weights, ilm_weights)
    search.run_on(frames, lengths, torch.zeros_like(lengths))
    return search.found()
