"""Run token passing on the CPU, with the native core (`csrc/ctc_graph.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from ..ctc_rows import Frames
from . import GraphFrames, GraphRules, GraphState


class NgpulmGraphState(Struct):
    """`GraphState` for the native core."""


class NgpulmGraphRules(Struct):
    """`GraphRules` for the native core."""


_search = Function("ngpulm_ctc_graph")


def graph_search(
    automaton: AutomatonTensors, state: GraphState, logits: Tensor, lengths: Tensor, rules: GraphRules
) -> tuple[GraphState, GraphFrames]:
    batch_size, frames, classes = logits.shape
    max_active, num_automata = state.lm_states.shape[1:]
    state = GraphState(*(part.clone(memory_format=torch.contiguous_format) for part in state))
    happened = GraphFrames.still(batch_size, frames, max_active)
    if frames and classes:
        of_rules = NgpulmGraphRules(
            weights=rules.weights.contiguous(), bonuses=rules.bonuses.contiguous(), threshold=rules.threshold, skip=rules.skip
        )
        of_state = NgpulmGraphState(**state._asdict(), max_active=max_active, num_automata=num_automata)
        of_frames = Frames.of(logits, lengths, rules.blank)
        arguments = (Automaton.of(automaton, rules.vocab_size), of_frames, of_rules, of_state, *happened, frames)
        on_rows(
            _search, arguments, batch_size, frames * (classes + 64 * max_active),
            "hypotheses of row {} name states or tokens that don't exist".format,
        )  # fmt: skip
    return state, happened
