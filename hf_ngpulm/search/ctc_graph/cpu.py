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


class _State(Struct):
    """See `GraphState`."""

    name = "NgpulmGraphState"
    members = """
        double* scores;
        int32_t* last_tokens;
        int32_t* lm_states;
        double* fused;
        double* lm_scores;
        int64_t max_active;
        int64_t num_automata;
    """


class _Rules(Struct):
    """See `hf_ngpulm.search.ctc_graph.graph_search`."""

    name = "NgpulmGraphRules"
    members = """
        const float* weights;
        const float* bonuses;
        double threshold;
        double skip;
    """


_search = Function(
    "int64_t ngpulm_ctc_graph(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmFrames* frames,"
    " const NgpulmGraphRules* rules, const NgpulmGraphState* state, int32_t* links, int32_t* labels, int32_t* bad_frames,"
    " int64_t width)",
    Automaton, Frames, _Rules, _State,
)  # fmt: skip


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
        rules = _Rules(weights=weights.contiguous(), bonuses=bonuses.contiguous(), threshold=threshold, skip=skip)
        of_state = _State(**state._asdict(), max_active=max_active, num_automata=num_automata)
        arguments = (
            Automaton.of(automaton, vocab_size), Frames.of(logits, lengths, blank), rules, of_state, links, labels, bad_frames,
            frames,
        )  # fmt: skip
        work = frames * (classes + 64 * max_active)
        for bad_row in in_threads(lambda first, last: _search(first, last, *arguments), batch_size, work):
            if bad_row >= 0:
                raise IndexError(f"hypotheses of row {bad_row} name states or tokens that there aren't")
    return state, GraphFrames(links, labels, bad_frames)
