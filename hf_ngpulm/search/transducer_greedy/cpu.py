"""Label looping by the native core (`csrc/transducer_greedy.cpp`): all of it, or what happens between two runs of networks that
are others'.

Nothing that is made of the model's weights outlives a call, since they may change between two; but for searches that go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import CPU, Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from ..confidence import confidence_of_sums
from ..networks.cpu import Classes, Networks, Slots
from ..networks.model import TransducerModel
from ..networks.networks import TransducerNetworks
from .rows import Rows, Rules

WINDOW = 2  # frames of a row that are looked at in one go
LINES = 4  # frames of all rows that products take at once, at least


class GreedyRules(Struct):
    """See `Rules`."""


class GreedyRows(Struct):
    """See `Rows`."""


class GreedySteps(Struct):
    """Steps of each row, as many as its `counts` says; there is `room` for more."""


_window = Function("ngpulm_greedy_window")
_rows = Function("ngpulm_greedy_rows")


class Carried:
    """Hold what the networks know of rows that go on when more frames come; the search reads and writes it. It iterates over
    its tensors.

    Attributes:
        begun: bool `[R]`; what the rest holds for a row that hasn't begun means nothing.
        states: float32 `[P, R, H]`: hidden states of all layers and then cells, or embeddings of the tokens before the last.
        predictions: float32 `[R, D]`.
        laid_out: the weights, as they were when a row began last.
        slots: of the states and predictions, for the core.
        structs: of what the search was told last, which is the same from step to step of streams.
    """

    def __init__(self, begun: Tensor, states: Tensor, predictions: Tensor) -> None:
        self.begun, self.states, self.predictions = begun, states, predictions
        self.slots = Slots.of(states, predictions)
        self.laid_out: Networks | None = None
        self.structs: tuple[Rules, Rows, str | None, tuple[Any, ...]] | None = None

    def structs_of(self, rules: Rules, rows: Rows, confidence: str | None) -> tuple[Any, ...]:
        known = self.structs
        if known is None or known[0] is not rules or known[1] is not rows or known[2] != confidence:
            known = self.structs = rules, rows, confidence, _structs(rules, rows, confidence)
        return known[3]

    @classmethod
    def room(cls, networks: TransducerNetworks, rows: int) -> Carried:
        """Make room for so many rows, none of which has begun."""
        projection = networks.projection
        return cls(
            torch.zeros(rows, dtype=torch.bool, device=CPU),
            projection.new_zeros((networks.num_parts, rows, projection.shape[1])),
            projection.new_zeros((rows, projection.shape[0])),
        )

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.begun, self.states, self.predictions))


def loop(
    networks: TransducerNetworks,
    frames: Tensor,
    automaton: AutomatonTensors,
    rules: Rules,
    rows: Rows,
    confidence: str | None,
    window: int | None = None,
    carried: Carried | None = None,
) -> list[np.ndarray]:
    """Take the rows to their ends; the result is all steps: row, class, duration and confidence, in order within each row.

    With something `carried` they can go on from there.
    """
    counts, *tables = (
        table.numpy() for table in tables_of_steps(networks, frames, automaton, rules, rows, confidence, window, carried)
    )
    taken = np.arange(tables[0].shape[1]) < counts[:, None]
    return [taken.nonzero()[0], *(table[taken] for table in tables)]


def tables_of_steps(
    networks: TransducerNetworks,
    frames: Tensor,
    automaton: AutomatonTensors,
    rules: Rules,
    rows: Rows,
    confidence: str | None,
    window: int | None = None,
    carried: Carried | None = None,
    composing: Struct | None = None,
) -> tuple[Tensor, ...]:
    """Return the same, by row: the number of its steps, int64 `[R]`, and their classes, durations and confidences `[R, S]`.

    See `Automaton.of` for what composes states meanwhile.
    """
    count, longest = frames.shape[:2]
    carried = Carried.room(networks, count) if carried is None else carried
    if carried.laid_out is None or bool((~carried.begun & (rows.times < rows.ends)).any()):
        carried.laid_out = Networks.of(networks)
    window = window or max(WINDOW, LINES // max(count, 1))
    frames = frames.contiguous()
    structs = (Automaton.lent(automaton, rules.vocab_size, composing), *carried.structs_of(rules, rows, confidence))
    of_networks = (carried.laid_out, carried.slots, carried.begun, frames, longest, window)
    steps = _Steps(count, longest + longest // 2 + window)  # a token for every second frame is much
    while True:
        arguments = (*structs, steps.native(), *of_networks)
        on_rows(_rows, arguments, count, longest * networks.head.numel() // 16, _refusal(rows))
        if not bool(((rows.times < rows.ends) & (rows.bad_frames < 0)).any()):
            return steps.found(rules, confidence)
        steps.grow()


def tables_by_turns(
    model: TransducerModel,
    frames: Tensor,
    automaton: AutomatonTensors,
    rules: Rules,
    rows: Rows,
    confidence: str | None,
    window: int,
    composing: Struct | None = None,
) -> tuple[Tensor, ...]:
    """Return the same, by networks of any kind: these run on the rows that go on, the core takes the steps between."""
    structs = (Automaton.of(automaton, rules.vocab_size, composing), *_structs(rules, rows, confidence))
    steps = _Steps(len(frames), frames.shape[1] + window)
    places = torch.arange(window, device=CPU)
    prediction, state = model.start(len(frames), frames)
    internal = model.internal_lm(prediction).contiguous() if rules.has_ilm else None
    while True:
        going = torch.nonzero((rows.times < rows.ends) & (rows.bad_frames < 0))[:, 0]
        if not len(going):
            return steps.found(rules, confidence)
        if int(steps.counts.max()) + window > steps.room:
            steps.grow()
        ahead = (rows.times[going, None] + places).clamp(max=frames.shape[1] - 1)
        logits = model.join(frames[going[:, None], ahead], prediction[going, None]).float().contiguous()
        tokens = torch.empty_like(going)
        arguments = (*structs, steps.native(), going, logits, internal, window, tokens)
        on_rows(_window, arguments, len(going), logits[0].numel(), _refusal(rows))
        emits, tokens = going[tokens >= 0], tokens[tokens >= 0]
        if len(emits):
            new_prediction, new_state = model.predict(tokens, tuple(part[emits] for part in state))
            prediction = prediction.index_copy(0, emits, new_prediction)
            state = tuple(part.index_copy(0, emits, new) for part, new in zip(state, new_state))
            if internal is not None:
                internal[emits] = model.internal_lm(new_prediction)


class _Steps:
    """Steps of `R` rows, as many as its `counts` says; what the confidence in each is made of in `sums`."""

    def __init__(self, rows: int, room: int) -> None:
        self.room, self.counts = room, torch.zeros(rows, dtype=torch.int64, device=CPU)
        dtypes = {"tokens": torch.int64, "moves": torch.int64, "sums": torch.float32}
        self.tables = {name: torch.zeros((rows, room), dtype=dtype, device=CPU) for name, dtype in dtypes.items()}

    def native(self) -> GreedySteps:
        return GreedySteps(counts=self.counts, **self.tables, room=self.room)

    def grow(self) -> None:
        self.tables = {name: torch.nn.functional.pad(table, (0, self.room)) for name, table in self.tables.items()}
        self.room *= 2

    def found(self, rules: Rules, confidence: str | None) -> tuple[Tensor, ...]:
        longest = int(self.counts.max()) if len(self.counts) else 0
        tokens, moves, sums = (table[:, :longest] for table in self.tables.values())
        if confidence is not None:
            is_token = (tokens != rules.blank) & (torch.arange(longest, device=CPU) < self.counts[:, None])
            sums = torch.where(is_token, confidence_of_sums(sums, confidence, rules.classes), 0.0)
        return self.counts, tokens, moves, sums


def _structs(rules: Rules, rows: Rows, confidence: str | None) -> tuple[Classes, GreedyRules, GreedyRows]:
    of_rows = rows._asdict()
    del of_rows["numbers"]
    return (
        Classes.of(rules.classes, rules.blank, rules.durations, confidence),
        GreedyRules(vocab_size=rules.vocab_size, max_symbols=rules.max_symbols, has_ilm=rules.has_ilm),
        GreedyRows(**of_rows, num_automata=rows.lm_states.shape[1]),
    )


def _refusal(rows: Rows) -> Callable[[int], str]:
    return lambda row: f"an automaton has no state of {rows.lm_states[row].tolist()}, row {row}"
