"""The same on the CPU, by the native core (`csrc/attention_step.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.cpu import CPU
from ...engines.native import Function
from ...engines.threads import in_threads

_best_of_rows = Function("ngpulm_best_tokens")


def best_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values = torch.empty((len(scores), count), dtype=torch.float32, device=CPU)
    tokens = torch.empty((len(scores), count), dtype=torch.int64, device=CPU)
    scores = scores.contiguous()
    arguments = scores, scores.shape[1], count, values, tokens
    in_threads(lambda first, last: _best_of_rows(first, last, *arguments), *scores.shape)
    return values, tokens
