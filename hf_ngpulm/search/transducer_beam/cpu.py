"""Run beam search for transducers on the CPU, with the native core (`csrc/transducer_beam.cpp`).

A prediction depends only on the tokens, so hypotheses with the same tokens share a prediction. A slot holds a prediction, and
the LM scores of all classes after the same tokens. Each hypothesis points to a slot. A row has `SLOTS` times as many slots as
hypotheses. A slot without a hypothesis is kept until the space is needed, because another hypothesis often gets the same tokens
soon, at another frame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import CPU, Automaton
from ...engines.native import Function, Struct
from ...engines.threads import in_threads, on_rows
from ...fusion.rows import RowModels
from ..networks.cpu import CoreSearch, Networks, NgpulmSlots, on_the_cpu, wider
from ..networks.model import TransducerModel
from ..networks.search import SearchSettings, ilm_weights_of
from . import FIRST_HASH

SLOTS = 2  # number of slots per hypothesis
NO_ROOM = -2


class BeamSettings(Struct):
    """`SearchSettings` for the native core. `aes_steps` is 0 unless the strategy is "aes"."""


class NgpulmBeam(Struct):
    """`BeamArrays` for the native core."""


class BeamRows(Struct):
    """Values of each row for the native core.

    Each array has a value per row. `lengths` is the number of frames. `limits` is the frame at which hypotheses stop. `reaches`
    is the largest number of frames that a step can advance (see `TransducerSearch.run_on`). `phases` is the number of steps at
    the present frame (only in AES, see `hf_ngpulm.search.transducer_beam`). The other arrays have the automata's weights, the
    sums of the LMs' weights, and the internal LM's weights.
    """


_lines = Function("ngpulm_beam_lines")
_begin = Function("ngpulm_beam_begin")
_rows = Function("ngpulm_beam_rows")
_open = Function("ngpulm_beam_open")
_step = Function("ngpulm_beam_step")


class BeamArrays:
    """Hypotheses of `B` rows, with `K` places per row, as arrays that the core changes in place.

    `shares` are as in `TransducerSearch.share`. `slots` has the slot of each hypothesis's prediction. `lines` has the weighted
    LM scores of all classes, by slot. `slot_hashes` has the hash of each slot's tokens, `slot_sizes` has the number of these
    tokens (-1 for an unused slot). `slot_uses` has the time at which each slot was last used, by the row's clock. The last
    column of `slot_uses` is the clock.
    """

    def __init__(self, batch_size: int, num_beams: int, num_automata: int, classes: int, has_lines: bool) -> None:
        shape, slots = (batch_size, num_beams), SLOTS * num_beams
        self.scores, self.acoustic_scores = np.full(shape, -np.inf), np.full(shape, -np.inf)
        self.shares = np.zeros(shape)
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
        """Begin some rows with one empty hypothesis each. `lm_states`, `[N, M]`: the automata's initial states."""
        self.scores[rows] = self.acoustic_scores[rows] = -np.inf
        self.scores[rows, 0] = self.acoustic_scores[rows, 0] = 0.0
        for zeros in (
            self.shares,
            self.times,
            self.symbols,
            self.sizes,
            self.parent_hashes,
            self.slots,
            self.lm_scores,
            self.slot_uses,
        ):
            zeros[rows] = 0
        self.last_tokens[rows], self.hashes[rows], self.bad_frames[rows] = -1, FIRST_HASH, -1
        self.lm_states[rows] = lm_states[:, None]
        self.slot_hashes[rows, 0], self.slot_sizes[rows] = FIRST_HASH, -1
        self.slot_sizes[rows, 0] = 0

    def forget(self, rows: np.ndarray) -> None:
        """Mark the slots of some rows as unused, so that no new hypothesis reuses their outdated LM scores."""
        self.slot_sizes[rows] = -1

    def arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(vars(self).values())

    def native(self) -> NgpulmBeam:
        """Return the struct for the core. The struct becomes invalid when an array of the beam is replaced."""
        num_beams, num_automata = self.lm_states.shape[1:]
        members = vars(self) | {"lines": self.lines if len(self.lines) else None}
        return NgpulmBeam(
            **members, num_beams=num_beams, num_automata=num_automata, slots_of_row=self.slot_hashes.shape[1]
        )  # fmt: skip


class Search(CoreSearch):
    """Beam search whose beams are arrays.

    Attributes:
        lengths, limits, reaches, phases: int64 `[B]`, see `BeamRows`.
    """

    def __init__(self, model: TransducerModel, like: Tensor, size: int, models: RowModels, settings: SearchSettings) -> None:
        super().__init__(model, like, size, models, settings, SLOTS * size * settings.num_beams)
        num_beams, num_automata = settings.num_beams, models.states.shape[1]
        self.weights = np.zeros((size, num_automata), dtype=np.float32)
        self.totals, self.ilm_weights = (np.zeros(size, dtype=np.float32) for _ in range(2))
        self.lengths, self.limits, self.reaches, self.phases = (np.zeros(size, dtype=np.int64) for _ in range(4))
        has_lines = self.has_ilm or num_automata > 0
        self.beam = BeamArrays(size, num_beams, num_automata, model.vocab_size, has_lines)
        self._tell()
        if self.networks is not None:
            return
        # The rows of the logits, the slots and the frames of the hypotheses that go on.
        self.lines = np.full((size, num_beams), -1, dtype=np.int64)
        self.open_slots, self.open_frames = (torch.empty(size * num_beams, dtype=torch.int64, device=CPU) for _ in range(2))
        # For each new token: the slot of the state before the token, the token, and the slot of the new prediction.
        self.new = [torch.empty(size * num_beams, dtype=torch.int64, device=CPU) for _ in range(3)]

    def _tell(self) -> None:
        """Pass the addresses of all arrays to the core."""
        settings, models = self.settings, self.models
        self.rules = BeamSettings(
            vocab_size=models.vocab_size, num_lms=models.num_lms, max_symbols=settings.max_symbols,
            aes_steps=settings.aes_steps if settings.strategy == "aes" else 0, most_extensions=settings.most_extensions,
            aes_gamma=settings.aes_gamma, has_ilm=self.has_ilm, blank_aware=settings.blank_aware, late=settings.late,
            log_sum=settings.log_sum,
        )  # fmt: skip
        self.rows = BeamRows(
            lengths=self.lengths, limits=self.limits, reaches=self.reaches, phases=self.phases, weights=self.weights,
            totals=self.totals, ilm_weights=self.ilm_weights,
        )  # fmt: skip
        self.native_beam = self.beam.native()
        self.use(models)

    def begin(self, rows: np.ndarray, models: RowModels) -> None:
        models = on_the_cpu(models)
        self.weights[rows] = models.weights.float()
        self.ilm_weights[rows] = 0 if models.ilm_weights is None else ilm_weights_of(models).float()
        self.totals[rows] = self.weights[rows, : models.num_lms].sum(1) - self.ilm_weights[rows]
        self.beam.begin(rows, models.states.numpy())
        self._write_lines(rows)
        if self.networks is not None:
            self.laid_out = Networks.of(self.networks)
            of_networks = (self.laid_out, self._of_slots())
            _begin(0, len(rows), rows, self.classes, self.rules, self.rows, self.native_beam, *of_networks)
            return
        self.keep_start(torch.from_numpy(rows) * SLOTS * self.settings.num_beams)

    def _write_lines(self, rows: np.ndarray) -> None:
        """For each hypothesis of some rows, write the LM scores of all classes after the hypothesis's tokens."""
        with self.models.automaton() as automaton:
            bad_row = _lines(0, len(rows), rows, automaton, *self._of_search(0))
        if bad_row >= 0:
            raise IndexError(self._refusal(bad_row))

    def _of_search(self, steps: int) -> tuple[Any, ...]:
        """Return all structs of the core, except the struct of the automata. The trace gets room for `steps` more steps."""
        return self.classes, self.rules, self.rows, self.native_beam, self.trace.native(steps)

    def _of_slots(self) -> NgpulmSlots:
        assert self.predictions is not None
        return NgpulmSlots.of(self.state[0], self.predictions)

    def keep(self, slots: Tensor, predictions: Tensor, state: tuple[Tensor, ...]) -> None:
        super().keep(slots, predictions, state)
        if self.has_ilm:
            self._subtract_ilm(slots, predictions)

    def _subtract_ilm(self, slots: Tensor, predictions: Tensor) -> None:
        scores = self.model.internal_lm(predictions).cpu()
        scores[:, self.model.blank_id] = 0.0
        weights = torch.from_numpy(self.ilm_weights)[slots // (SLOTS * self.settings.num_beams), None]
        torch.from_numpy(self.beam.lines).index_add_(0, slots, torch.where(weights != 0, weights * scores, 0.0), alpha=-1)

    def widen(self, models: RowModels, shift: int) -> None:
        beam = self.beam
        beam.lm_states, beam.lm_scores = wider(beam.lm_states + np.int32(shift)), wider(beam.lm_scores)
        self.weights = wider(self.weights)
        if not len(beam.lines):
            beam.lines = np.zeros((self.slots, self.model.vocab_size), dtype=np.float32)
        self.models = models
        self._tell()

    def switch(self, rows: np.ndarray, states: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        beam = self.beam
        beam.lm_scores[rows, :, -1] += scores
        beam.scores[rows] += self.weights[rows, -1:] * scores
        beam.lm_states[rows, :, -1] = states
        self.weights[rows, -1] = weights
        beam.forget(rows)
        self._write_lines(rows)
        if self.has_ilm:
            assert self.predictions is not None
            slots = beam.slots[rows] + rows[:, None] * SLOTS * self.settings.num_beams
            kept = torch.from_numpy(np.unique(slots[beam.scores[rows] > -np.inf]))
            self._subtract_ilm(kept, self.predictions[kept.to(self.predictions.device)])

    def share(self, rows: np.ndarray, shares: np.ndarray) -> None:
        self.beam.shares[rows] = shares

    def run_on(self, frames: Tensor, lengths: np.ndarray, reaches: np.ndarray) -> None:
        self.lengths[:] = self.limits[:] = lengths
        self.reaches[:], self.phases[:] = reaches, 0
        if self.settings.strategy == "aes":
            self.reaches[:] = self.limits[:] = 0  # AES goes frame by frame
        self.trace.clear()
        with self.models.automaton() as automaton:
            if self.laid_out is not None:
                self._run_whole(automaton, frames.contiguous(), self.laid_out)
            else:
                while (logits := self._logits(frames)) is not None:
                    self._step(automaton, logits)

    def _run_whole(self, automaton: Automaton, frames: Tensor, networks: Networks) -> None:
        # A token in every second frame is usual; rows with more continue with more room.
        num_beams, of_networks = self.settings.num_beams, (networks, self._of_slots(), frames, frames.shape[1])
        steps = int(self.lengths.max(initial=0)) * (3 if self.settings.strategy == "aes" else 2) + num_beams + 1
        work = frames.shape[1] * num_beams * networks.outputs
        while NO_ROOM in on_rows(_rows, (automaton, *self._of_search(steps), *of_networks), self.size, work, self._refusal):
            steps = self.trace.room

    def _refusal(self, row: int) -> str:
        return f"an automaton has no state of {self.beam.lm_states[row].tolist()}, row {row}"

    def shift(self, frames: np.ndarray) -> None:
        self.beam.times -= frames[:, None]

    def _logits(self, frames: Tensor) -> Tensor | None:
        """Return the joint network's logits of the hypotheses that must continue; None if there are none."""
        count = _open(
            self.size, self.rules, self.rows, self.native_beam, frames.shape[1], self.lines, self.open_slots, self.open_frames
        )
        if not count:
            return None
        assert self.predictions is not None
        heard = frames.reshape(-1, frames.shape[2]).index_select(0, self.open_frames[:count].to(frames.device))
        predictions = self.predictions.index_select(0, self.open_slots[:count].to(frames.device))
        return self.model.join(heard, predictions).float().cpu().contiguous()

    def _step(self, automaton: Automaton, logits: Tensor) -> None:
        """Extend the hypotheses that go on, and run the prediction network on their new tokens."""
        num_beams = self.settings.num_beams
        arguments = (automaton, *self._of_search(num_beams + 1), logits, self.lines, *self.new)

        def run(first: int, last: int) -> tuple[int, int]:
            return first * num_beams, _step(first, last, *arguments)

        runs = in_threads(run, self.size, logits.shape[1] * num_beams * 8)
        sources, tokens, targets = (torch.cat([part[begin : begin + count] for begin, count in runs]) for part in self.new)
        if len(tokens):
            device = self.state[0].device if self.state else self.like.device
            olds = tuple(part.index_select(0, sources.to(device)) for part in self.state)
            self.keep(targets, *self.model.predict(tokens.to(device), olds))
