"""Greedy CTC search with language models on the CPU, by the native core (`csrc/ctc_greedy.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from ..frames import Frames
from . import RULES, GreedyLabels


class _GreedyLabels(Struct):
    """See `GreedyLabels`."""


_search = Function("ngpulm_ctc_greedy")


def ctc_greedy(
    automaton: AutomatonTensors,
    logits: Tensor,
    lengths: Tensor,
    states: Tensor,
    weights: Tensor,
    stay_costs: Tensor,
    before: Tensor,
    blank: int,
    vocab_size: int,
    rule: str,
    composing: Struct | None = None,
) -> GreedyLabels:
    """See `hf_ngpulm.search.ctc_greedy.ctc_greedy`, and `Automaton.of` for what composes states meanwhile."""
    batch_size, frames, classes = logits.shape
    found = GreedyLabels(
        labels=torch.full((batch_size, frames), blank, dtype=torch.int32),
        acoustic_scores=torch.zeros(batch_size),
        lm_scores=torch.zeros(states.shape),
        states=states.to(torch.int32).clone(memory_format=torch.contiguous_format),
        bad_frames=torch.full((batch_size,), -1, dtype=torch.int32),
        before=before.to(torch.int32).clone(memory_format=torch.contiguous_format),
    )
    if frames and classes:
        arguments = (
            Automaton.lent(automaton, vocab_size, composing), Frames.of(logits, lengths, blank), weights.contiguous(),
            stay_costs.contiguous(), states.shape[1], RULES.index(rule), frames, _GreedyLabels(**found._asdict()),
        )  # fmt: skip
        on_rows(
            _search, arguments, batch_size, frames * classes,
            lambda row: f"states {states[row].tolist()} in row {row} should lie in 0..{automaton.num_states - 1}",
        )  # fmt: skip
    return found
