"""Run label looping on the CPU, with the native core (`csrc/transducer_greedy.cpp`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from ...fusion.rows import RowModels
from ..networks.cpu import CoreSearch, Networks, NgpulmSlots, on_the_cpu, wider
from ..networks.model import TransducerModel
from ..networks.search import SearchSettings
from .rows import GreedyBeam, LoopingRows

WINDOW = 2  # number of frames per row and step if the core runs the networks, as its steps are cheap
WINDOW_OF_OTHERS = 4  # number of frames per row and step if PyTorch runs the networks
LINES = 4  # minimum number of frames of all rows in a product of matrices


class GreedyRules(Struct):
    """Settings that all rows share, for the native core."""


class GreedyRows(Struct):
    """`LoopingRows` for the native core."""


_window = Function("ngpulm_greedy_window")
_rows = Function("ngpulm_greedy_rows")


class Search(CoreSearch):
    """Label looping whose state is in arrays.

    Attributes:
        window: number of frames per row and step.
    """

    def __init__(self, model: TransducerModel, like: Tensor, size: int, models: RowModels, settings: SearchSettings) -> None:
        super().__init__(model, like, size, models, settings, size)
        self.rows = LoopingRows.room(size, models.states.shape[1])
        self.internal: Tensor | None = None  # `[B, V]`, if PyTorch runs the networks
        self.window = WINDOW_OF_OTHERS
        if self.predictions is not None:
            self.window, self.begun = max(WINDOW, LINES // max(size, 1)), np.zeros(size, dtype=np.bool_)
            self.native_slots = NgpulmSlots.of(self.state[0], self.predictions)
        self._tell()

    def _tell(self) -> None:
        """Pass the addresses of all arrays to the core."""
        self.beam = GreedyBeam(self.rows)
        self.rules = GreedyRules(vocab_size=self.models.vocab_size, max_symbols=self.settings.max_symbols, has_ilm=self.has_ilm)
        self.native_rows = GreedyRows(**self.rows._asdict(), num_automata=self.rows.lm_states.shape[1])
        self.use(self.models)

    def begin(self, rows: np.ndarray, models: RowModels) -> None:
        self.rows.begin(rows, on_the_cpu(models))
        if self.networks is not None:
            self.laid_out = Networks.of(self.networks)
            self.begun[rows] = False
            return
        if self.internal is None and self.has_ilm:
            self.internal = torch.zeros((self.size, self.model.vocab_size))
        self.keep_start(torch.from_numpy(rows))

    def keep(self, slots: Tensor, predictions: Tensor, state: tuple[Tensor, ...]) -> None:
        super().keep(slots, predictions, state)
        if self.internal is not None:
            self.internal[slots] = self.model.internal_lm(predictions).cpu()

    def run_on(self, frames: Tensor, lengths: np.ndarray, reaches: np.ndarray) -> None:
        self.rows.ends[:] = lengths
        self.trace.clear()
        room = 2 * frames.shape[1] + self.window  # a token per frame is many; a row with more continues with more room
        with self.models.automaton() as automaton:
            if self.laid_out is None:
                self._run_by_turns(automaton, frames, room)
            else:
                self._run_whole(automaton, frames.contiguous(), room, self.laid_out)

    def _run_whole(self, automaton: Automaton, frames: Tensor, room: int, networks: Networks) -> None:
        longest, work = frames.shape[1], frames.shape[1] * networks.outputs * networks.width // 16
        while True:
            structs = (automaton, self.classes, self.rules, self.native_rows, self.trace.native(room))
            of_networks = (networks, self.native_slots, self.begun, frames, longest, self.window)
            on_rows(_rows, (*structs, *of_networks), self.size, work, self._refusal)
            if not self._going().any():
                return
            room = self.trace.room

    def _going(self) -> np.ndarray:
        return (self.rows.times < self.rows.ends) & (self.rows.bad_frames < 0)

    def _run_by_turns(self, automaton: Automaton, frames: Tensor, room: int) -> None:
        """Repeat until no row goes on: run the networks in PyTorch on the rows that go on, then take a step in the core. `room`
        is the number of steps that fit into the trace at the beginning.
        """
        window, places, device = self.window, np.arange(self.window), frames.device
        steps = self.trace.native(room)
        while len(going := np.flatnonzero(self._going())):
            assert self.predictions is not None
            if int(self.trace.used.max()) + window > self.trace.room:
                steps = self.trace.native(self.trace.room)
            ahead = (self.rows.times[going, None] + places).clip(max=frames.shape[1] - 1)
            which = torch.from_numpy(going).to(device)
            heard = frames[which[:, None], torch.from_numpy(ahead).to(device)]
            logits = self.model.join(heard, self.predictions[which, None]).float().cpu().contiguous()
            tokens = np.empty_like(going)
            structs = (automaton, self.classes, self.rules, self.native_rows, steps)
            arguments = (*structs, going, logits, self.internal, window, tokens)
            on_rows(_window, arguments, len(going), logits[0].numel(), self._refusal)
            emits = torch.from_numpy(going[tokens >= 0])
            if len(emits):
                which = emits.to(device)
                new = torch.from_numpy(tokens[tokens >= 0]).to(device)
                self.keep(emits, *self.model.predict(new, tuple(part[which] for part in self.state)))

    def _refusal(self, row: int) -> str:
        return f"an automaton has no state of {self.rows.lm_states[row].tolist()}, row {row}"

    def shift(self, frames: np.ndarray) -> None:
        self.rows.times[:] -= frames

    def widen(self, models: RowModels, shift: int) -> None:
        rows = self.rows
        self.rows = rows._replace(
            lm_states=wider(rows.lm_states + np.int32(shift)), lm_scores=wider(rows.lm_scores), weights=wider(rows.weights)
        )
        self.models = models
        self._tell()

    def switch(self, rows: np.ndarray, states: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        self.rows.switch(rows, states, scores, weights)
