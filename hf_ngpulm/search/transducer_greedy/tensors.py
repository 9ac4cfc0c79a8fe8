"""Label looping with torch's operations in fixed shapes, on any device; on a GPU `gpu` puts kernels in place of its steps.

Nothing is asked of the device within a step, and a step does the same for rows that have ended as for others, so that on a GPU
a block of steps can be a CUDA graph (see `graphs`); the host looks every `STEPS` steps whether all rows have ended.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...engines.devices import current
from ..confidence import frame_confidence
from ..networks.graphs import Repeated, Work, addresses, overwrite, replace_where
from ..networks.model import TransducerModel
from . import tensor_steps
from .rows import GreedySteps, Rows, Rules

STEPS = 8  # between two looks at whether anything is left to do


class Looping:
    """A search in buffers, for batches of up to `size` rows and `longest` frames: `load` one, `run`, see what it `found`.

    Searches that go on when more frames come `read` from where these are, `begin` in some rows, and `run` to the ends of the
    frames, whose number is in `rows.ends`, again and again.
    """

    def __init__(
        self,
        model: TransducerModel,
        frames: Tensor,
        size: int,
        longest: int,
        automaton: AutomatonTensors,
        num_automata: int,
        rules: Rules,
        confidence: str | None,
        engine: str,
        window: int,
        capture: Callable[[Work], Work] | None = None,
    ) -> None:
        self.model, self.automaton, self.rules, self.confidence, self.engine = model, automaton, rules, confidence, engine
        device = self.device = frames.device
        self.frames = frames.new_zeros((size, longest, frames.shape[2]))
        states = torch.zeros((size, num_automata), dtype=torch.int32, device=device)
        lengths = torch.zeros(size, dtype=torch.int64, device=device)
        self.rows = Rows.begin(lengths, states, states.float(), lengths.float())
        self.ahead = torch.arange(window, device=device)
        prediction, state = model.start(size, self.frames)
        self.prediction, self.state = prediction.clone(), tuple(part.clone() for part in state)
        self.internal = self.internal_lm(self.prediction).clone()
        # All that the host looks at after a block, so that it waits once.
        self.told = torch.zeros(3 * STEPS * size * window + 1, dtype=torch.int32, device=device)
        self.tokens, self.moves, confidences = self.told[:-1].view(3, STEPS, size, window)
        self.confidences, self.is_open = confidences.view(torch.float32), self.told[-1:].view(torch.bool)[0]
        self.capture = capture
        self.make_room()

    def make_room(self) -> None:
        """Make what depends on the number of automata, and forget graphs of what there was before."""
        self.block = Repeated(self.steps, self.carries, self.capture)
        self.known = addresses((self.frames, *self.automaton))

    def carries(self) -> list[Tensor]:
        """Return what steps change and begin with."""
        return [*self.rows[1:], self.prediction, *self.state, self.internal]

    def internal_lm(self, prediction: Tensor) -> Tensor:
        if self.rules.has_ilm:
            return self.model.internal_lm(prediction)
        return prediction.new_zeros((len(prediction), 0), dtype=torch.float32)

    def load(self, frames: Tensor, lengths: Tensor, states: Tensor, weights: Tensor, ilm_weights: Tensor) -> None:
        """Take a batch; rows that it doesn't have are empty."""
        self.size, longest = frames.shape[:2]
        self.frames[: self.size, :longest] = frames
        overwrite(
            self.rows,
            Rows.begin(*(_with_rows(part, len(self.rows.numbers)) for part in (lengths, states, weights, ilm_weights))),
        )
        prediction, state = self.model.start(len(self.rows.numbers), self.frames)
        overwrite((self.prediction, *self.state, self.internal), (prediction, *state, self.internal_lm(prediction)))
        self.forget()

    def begin(self, rows: Tensor, states: Tensor, weights: Tensor, ilm_weights: Tensor) -> None:
        """Begin anew in some rows, int64 `[N]`, with automata in states `[N, M]`, their weights `[N, M]` and the internal LM's
        `[N]`.
        """
        new = Rows.begin(torch.zeros_like(rows), states, weights, ilm_weights)
        prediction, state = self.model.start(len(rows), self.frames)
        buffers = (*self.rows[1:], self.prediction, *self.state, self.internal)
        for buffer, value in zip(buffers, (*new[1:], prediction, *state, self.internal_lm(prediction))):
            buffer[rows] = value

    def read(self, frames: Tensor, automaton: AutomatonTensors) -> None:
        """Go on with frames, `[size, T, D]`, and automata that may lie in other tensors than those before."""
        self.frames, self.automaton = frames, automaton
        if addresses((frames, *automaton)) != self.known:
            self.make_room()

    def widen(self, rules: Rules, rows: Rows, automaton: AutomatonTensors) -> None:
        """Go on with rows that follow one automaton more."""
        self.rules, self.rows, self.automaton = rules, rows, automaton
        self.make_room()

    def forget(self) -> None:
        """Forget what the steps so far did."""
        self.heard: list[Tensor] = []

    def steps(self) -> None:
        """Take a block of steps."""
        for number in range(STEPS):
            self.step(number)
        self.look()

    def step(self, number: int) -> None:
        """Take a step, the block's `number`-th: the networks, and the walk between them."""
        rules, rows = self.rules, self.rows
        at = (rows.times[:, None] + self.ahead).clamp(max=self.frames.shape[1] - 1)
        logits = self.model.join(self.frames[rows.numbers[:, None], at], self.prediction[:, None]).float()
        tokens, moves = tensor_steps.walk(self.automaton, rules, rows, logits, self.internal, self.engine)
        emissions = (tokens >= 0) & (tokens != rules.blank)  # at most one a row
        emits, place = emissions.max(1)
        if self.confidence is not None:
            heard = logits[..., : rules.classes].gather(1, place[:, None, None].expand(-1, 1, rules.classes))
            found = frame_confidence(heard, self.confidence)
            self.confidences[number].copy_(torch.where(emissions, found, 0.0))
        self.tokens[number].copy_(tokens)
        self.moves[number].copy_(moves)
        token = torch.where(emits, tokens.gather(1, place[:, None])[:, 0], rules.blank)
        prediction, state = self.model.predict(token, self.state)
        news = (prediction, *state, self.internal_lm(prediction))
        replace_where(emits, (self.prediction, *self.state, self.internal), news)

    def look(self) -> None:
        """Write to `is_open` whether any row goes on."""
        self.is_open.copy_(((self.rows.times < self.rows.ends) & (self.rows.bad_frames < 0)).any())

    def run(self) -> None:
        """Take the rows to the ends of their frames."""
        with current(self.device):
            self.block.prepare(self.device)
            self.run_blocks()

    def run_blocks(self) -> None:
        while True:
            self.block()
            self.heard.append(self.told.to("cpu", copy=True))
            if not self.heard[-1][-1]:
                return

    def all_steps(self) -> tuple[Tensor, ...]:
        """Return class, duration and confidence of all steps, `[S, size, window]` on the CPU; -1 is no class."""
        heard = torch.stack(self.heard)[:, :-1].view(-1, 3, *self.tokens.shape)
        tokens, moves, confidences = heard.transpose(0, 1).flatten(1, 2)
        return tokens, moves, confidences.view(torch.float32)

    def flat_steps(self) -> tuple[Tensor, ...]:
        """Return row, class, duration and confidence of all steps, in order within each row, on the CPU."""
        tokens, *others = self.all_steps()
        taken = tokens >= 0
        return taken.nonzero()[:, 1], *(part[taken] for part in (tokens, *others))

    def found(self) -> GreedySteps:
        tokens, moves, confidences = (part[:, : self.size].transpose(0, 1).flatten(1) for part in self.all_steps())
        taken = tokens >= 0
        counts = taken.sum(1)
        order = (~taken).to(torch.int8).argsort(dim=1, stable=True)[:, : int(counts.max()) if self.size else 0]
        tokens, moves = (part.gather(1, order).clamp(min=0).to(torch.int64) for part in (tokens, moves))
        steps = (part.to(self.device) for part in (counts, tokens, moves, confidences.gather(1, order)))
        counts, tokens, moves, confidences = steps
        rows = self.rows.at(slice(0, self.size))
        return GreedySteps(
            counts, tokens, moves, None if self.confidence is None else confidences,
            rows.acoustic_scores.clone(), rows.lm_scores.clone(), rows.lm_states.clone(), rows.ilm_scores.clone(),
            rows.bad_frames.clone(),
        )  # fmt: skip


def _with_rows(values: Tensor, rows: int) -> Tensor:
    """Return the same with zeros after."""
    out = values.new_zeros((rows, *values.shape[1:]))
    out[: len(values)] = values
    return out
