"""Answer queries on the CPU with the native core (`csrc/automaton.cpp`).

Rows are independent. So large batches are cut into ranges of rows, and several threads process the ranges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..engines.native import Function, Struct
from ..engines.threads import on_rows
from .checks import deferred
from .tensors import AutomatonTensors

CPU = torch.device("cpu")  # passed explicitly, because the default device may be another


class Automaton(Struct):
    """An automaton in the form that the native core reads."""

    @classmethod
    def of(cls, tensors: AutomatonTensors, vocab_size: int, composing: Struct | None = None) -> Automaton:
        """Return a struct with pointers to the tensors. For queries of `</s>`, pass a `vocab_size` one larger than the
        vocabulary.

        If `composing` is given (see `hf_ngpulm.lexicon.lazy_search.NgpulmComposing`), a state is composed when a search reaches
        it.
        """
        return cls(
            **tensors._asdict(), num_states=tensors.num_states, vocab_size=vocab_size,
            token_bytes=tensors.arc_tokens.element_size(), composing=composing,
            checks=None if (left := deferred(tensors)) is None else left.struct,
        )  # fmt: skip

    @classmethod
    def lent(cls, tensors: AutomatonTensors, vocab_size: int) -> Automaton:
        """Return the same as `of`, but cached. Pass the struct only to a call that follows immediately; see `Struct.kept`."""
        key = (vocab_size, tensors.arc_offsets.shape[0], deferred(tensors) is None, *[tensor.data_ptr() for tensor in tensors])
        return cls.kept(tensors.arc_weights, key, lambda: cls.of(tensors, vocab_size))


_scores = Function("ngpulm_scores")
_step = Function("ngpulm_step")
_walk = Function("ngpulm_walk")
_states_after = Function("ngpulm_states_after")


def scores(automaton: AutomatonTensors, states: Tensor, vocab_size: int) -> Tensor:
    out = torch.empty((states.shape[0], vocab_size), dtype=torch.float32, device=CPU)
    _on_rows(_scores, vocab_size, Automaton.lent(automaton, vocab_size), states, out, None)
    return out


def advance(automaton: AutomatonTensors, states: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    out = torch.empty((states.shape[0], vocab_size), dtype=torch.float32, device=CPU)
    targets = torch.empty((states.shape[0], vocab_size), dtype=torch.int32, device=CPU)
    _on_rows(_scores, 2 * vocab_size, Automaton.lent(automaton, vocab_size), states, out, targets)
    return out, targets


def step(automaton: AutomatonTensors, states: Tensor, tokens: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    out = torch.empty(states.shape, dtype=torch.float32, device=CPU)
    targets = torch.empty(states.shape, dtype=torch.int32, device=CPU)
    _on_rows(_step, 64, Automaton.lent(automaton, vocab_size), states, int32(tokens), out, targets)
    return out, targets


def walk(
    automaton: AutomatonTensors, states: Tensor, token_ids: Tensor, lengths: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    out = torch.zeros(token_ids.shape, dtype=torch.float32, device=CPU)
    last = torch.empty(states.shape, dtype=torch.int32, device=CPU)
    length = token_ids.shape[1]
    arguments = (states, int32(token_ids), int32(lengths), length, out, last)
    _on_rows(_walk, 64 * length, Automaton.lent(automaton, vocab_size), *arguments)
    return out, last


def states_after(
    automaton: AutomatonTensors,
    starts: Tensor,
    roots: Tensor,
    token_ids: Tensor,
    lengths: Tensor,
    context_length: int,
    vocab_size: int,
) -> Tensor:
    last = torch.empty(starts.shape, dtype=torch.int32, device=CPU)
    length = token_ids.shape[1]
    _on_rows(
        _states_after, 64 * min(context_length, length), Automaton.lent(automaton, vocab_size),
        starts, int32(roots), int32(token_ids), int32(lengths), length, context_length, last,
    )  # fmt: skip
    return last


def _on_rows(function: Function, elements_per_row: int, automaton: Automaton, states: Tensor, *arguments: Any) -> None:
    states = int32(states)

    def refusal(row: int) -> str:
        return f"state {int(states[row])} in row {row} is outside 0..{automaton.num_states - 1}"

    on_rows(function, (automaton, states, *arguments), states.shape[0], elements_per_row, refusal)


def int32(values: Tensor) -> Tensor:
    return values.to(torch.int32).contiguous()
