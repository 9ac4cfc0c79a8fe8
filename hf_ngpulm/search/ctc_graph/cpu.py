"""Run token passing on the CPU, with the native core (`csrc/ctc_graph.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from ..frames import Frames
from . import GraphFrames, GraphState


class _GraphState(Struct):
    """`GraphState` for the native core."""


class _GraphRules(Struct):
    """Weights, bonuses and pruning of `hf_ngpulm.search.ctc_graph.graph_search`, for the native core."""


_search = Function("ngpulm_ctc_graph")


def graph_search(
    automaton: AutomatonTensors,
    state: GraphState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    blank: int,
    vocab_size: int,
    threshold: float,
    skip: float,
) -> tuple[GraphState, GraphFrames]:
    batch_size, frames, classes = logits.shape
    max_active, num_automata = state.lm_states.shape[1:]
    state = GraphState(*(part.clone(memory_format=torch.contiguous_format) for part in state))
    happened = GraphFrames.still(batch_size, frames, max_active)
    if frames and classes:
        rules = _GraphRules(weights=weights.contiguous(), bonuses=bonuses.contiguous(), threshold=threshold, skip=skip)
        of_state = _GraphState(**state._asdict(), max_active=max_active, num_automata=num_automata)
        arguments = (
            Automaton.of(automaton, vocab_size), Frames.of(logits, lengths, blank), rules, of_state, *happened, frames,
        )  # fmt: skip
        on_rows(
            _search, arguments, batch_size, frames * (classes + 64 * max_active),
            "hypotheses of row {} name states or tokens that don't exist".format,
        )  # fmt: skip
    return state, happened
