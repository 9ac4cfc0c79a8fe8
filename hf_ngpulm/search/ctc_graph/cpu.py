"""Token passing on the CPU, by the native core (`csrc/ctc_graph.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import in_threads
from ..frames import Frames
from . import BLANK, GraphFrames, GraphState


class _GraphState(Struct):
    """See `GraphState`."""


class _GraphRules(Struct):
    """See `hf_ngpulm.search.ctc_graph.graph_search`."""


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
    labels = torch.full((batch_size, frames, max_active), BLANK, dtype=torch.int32)
    links = torch.arange(max_active, dtype=torch.int32).expand(labels.shape).contiguous()
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32)
    if frames and classes:
        rules = _GraphRules(weights=weights.contiguous(), bonuses=bonuses.contiguous(), threshold=threshold, skip=skip)
        of_state = _GraphState(**state._asdict(), max_active=max_active, num_automata=num_automata)
        arguments = (
            Automaton.of(automaton, vocab_size), Frames.of(logits, lengths, blank), rules, of_state, links, labels, bad_frames,
            frames,
        )  # fmt: skip
        work = frames * (classes + 64 * max_active)
        for bad_row in in_threads(lambda first, last: _search(first, last, *arguments), batch_size, work):
            if bad_row >= 0:
                raise IndexError(f"hypotheses of row {bad_row} name states or tokens that there aren't")
    return state, GraphFrames(links, labels, bad_frames)
