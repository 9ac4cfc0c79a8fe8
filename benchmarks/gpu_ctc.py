"""Searches of random CTC logits with a language model on a GPU, as kernels are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import measure
import torch

from hf_ngpulm import NGramLM
from hf_ngpulm.search import ctc_beam as beam
from hf_ngpulm.search import ctc_greedy as greedy

LM_WEIGHT, BETA, BEAM_THRESHOLD = 0.5, 1.5, 20.0
Search = Callable[[], Any]


def greedy_search(lm: NGramLM, logits: torch.Tensor, lengths: torch.Tensor) -> Search:
    batch_size, blank = len(logits), lm.vocab_size
    weights = torch.full((batch_size, 1), LM_WEIGHT, device=measure.GPU)
    before = torch.full((batch_size, 2), blank, dtype=torch.int32, device=measure.GPU)
    states = lm.initial_states(batch_size)[:, None].contiguous()
    rules = greedy.LabelRules(weights, 3 * weights[:, 0], blank, lm.vocab_size, "stay")
    return partial(greedy.ctc_greedy, list(lm.tensors), logits, lengths, states, before, rules)


def beam_search(lm: NGramLM, logits: torch.Tensor, lengths: torch.Tensor, num_beams: int, skip: float) -> Search:
    batch_size, blank = len(logits), lm.vocab_size
    weights = torch.full((batch_size, 1), LM_WEIGHT, device=measure.GPU)
    bonuses = torch.full((batch_size,), BETA, device=measure.GPU)
    state = beam.initial_state(num_beams, lm.initial_states(batch_size)[:, None].contiguous())
    rules = beam.BeamRules(weights, bonuses, -3 * weights[:, 0], blank, lm.vocab_size, BEAM_THRESHOLD, skip, None)
    return partial(beam.ctc_beam, list(lm.tensors), state, logits, lengths, rules)
