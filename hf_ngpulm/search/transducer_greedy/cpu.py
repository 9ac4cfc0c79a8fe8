"""Label looping by the native core (`csrc/transducer_greedy.cpp`): all of it, or what happens between two runs of networks that
are others'.

Nothing that is made of the model's weights outlives a call, since they may change between two; but for searches that go on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...automaton.cpu import CPU, Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import in_threads
from ..confidence import confidence_of_sums
from ..networks.cpu import Classes, Networks, Slots
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
    """What the networks know of rows that go on when more frames come; the search reads and writes it. It iterates over its
    tensors.

    Attributes:
        begun: bool `[R]`; what the rest holds for a row that hasn't begun means nothing.
        states: float32 `[P, R, H]`: hidden states of all layers and then cells, or embeddings of the tokens before the last.
        predictions: float32 `[R, D]`.
        laid_out: the weights, as they were when a row began last.
    """

    def __init__(self, begun: Tensor, states: Tensor, predictions: Tensor) -> None:
        self.begun, self.states, self.predictions = begun, states, predictions
        self.laid_out: Networks | None = None

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


def walk(automaton: AutomatonTensors, rules: Rules, rows: Rows, logits: Tensor, internal: Tensor) -> tuple[Tensor, Tensor]:
    """See `hf_ngpulm.search.transducer_greedy.tensor_steps.walk`."""
    tokens = torch.full(logits.shape[:2], -1, dtype=torch.int64, device=CPU)
    moves = torch.zeros_like(tokens)
    arguments = (
        *_structs(automaton, rules, rows, None), logits.contiguous(), internal.contiguous() if rules.ilm_weight else None,
        logits.shape[1], tokens, moves,
    )  # fmt: skip
    _check(in_threads(lambda first, last: _window(first, last, *arguments), len(logits), logits[0].numel()), rows)
    return tokens, moves


def loop(
    networks: TransducerNetworks,
    frames: Tensor,
    automaton: AutomatonTensors,
    rules: Rules,
    rows: Rows,
    confidence: str | None,
    window: int | None = None,
    carried: Carried | None = None,
) -> list[tuple[Tensor, ...]]:
    """Take the rows to their ends; the result is all steps: row, class, duration and confidence, in order within each row.

    With something `carried` they can go on from there.
    """
    counts, *tables = tables_of_steps(networks, frames, automaton, rules, rows, confidence, window, carried)
    taken = torch.arange(tables[0].shape[1], device=CPU) < counts[:, None]
    return [(taken.nonzero()[:, 0], *(table[taken] for table in tables))]


def tables_of_steps(
    networks: TransducerNetworks,
    frames: Tensor,
    automaton: AutomatonTensors,
    rules: Rules,
    rows: Rows,
    confidence: str | None,
    window: int | None = None,
    carried: Carried | None = None,
) -> tuple[Tensor, ...]:
    """Return the same, by row: the number of its steps, int64 `[R]`, and their classes, durations and confidences `[R, S]`."""
    count, longest = frames.shape[:2]
    carried = Carried.room(networks, count) if carried is None else carried
    if carried.laid_out is None or bool((~carried.begun & (rows.times < rows.ends)).any()):
        carried.laid_out = Networks.of(networks)
    window = window or max(WINDOW, LINES // max(count, 1))
    frames = frames.contiguous()
    structs = _structs(automaton, rules, rows, confidence)
    of_networks = (carried.laid_out, Slots.of(carried.states, carried.predictions), carried.begun, frames, longest, window)
    counts = torch.zeros(count, dtype=torch.int64, device=CPU)
    room = longest + longest // 2 + window  # a token for every second frame is much
    tables = [torch.zeros((count, room), dtype=dtype, device=CPU) for dtype in (torch.int64, torch.int64, torch.float32)]
    while True:
        steps = GreedySteps(counts=counts, **dict(zip(("tokens", "moves", "sums"), tables)), room=room)
        run = functools.partial(_run, (*structs, steps, *of_networks))
        _check(in_threads(run, count, longest * networks.head.numel() // 16), rows)
        if not bool(((rows.times < rows.ends) & (rows.bad_frames < 0)).any()):
            break
        tables = [torch.nn.functional.pad(table, (0, room)) for table in tables]
        room *= 2
    tokens, moves, sums = (table[:, : int(counts.max()) if count else 0] for table in tables)
    if confidence is not None:
        is_token = (tokens != rules.blank) & (torch.arange(tokens.shape[1], device=CPU) < counts[:, None])
        sums = torch.where(is_token, confidence_of_sums(sums, confidence, rules.classes), 0.0)
    return counts, tokens, moves, sums


def _run(arguments: tuple[Any, ...], first: int, last: int) -> int:
    return _rows(first, last, *arguments)


def _structs(
    automaton: AutomatonTensors, rules: Rules, rows: Rows, confidence: str | None
) -> tuple[Automaton, Classes, GreedyRules, GreedyRows]:
    of_rows = rows._asdict()
    del of_rows["numbers"]
    return (
        Automaton.of(automaton, rules.vocab_size),
        Classes.of(rules.classes, rules.blank, rules.durations, confidence),
        GreedyRules(vocab_size=rules.vocab_size, max_symbols=rules.max_symbols, ilm_weight=rules.ilm_weight),
        GreedyRows(**of_rows, num_automata=rows.lm_states.shape[1]),
    )


def _check(found: list[int], rows: Rows) -> None:
    for row in found:
        if row >= 0:
            raise IndexError(f"an automaton has no state of {rows.lm_states[row].tolist()}, row {row}")
