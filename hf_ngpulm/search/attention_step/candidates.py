"""The best continuations of a row: late pruning needs them among tens of thousands of tokens, at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.cpu import CPU
from ...engines.native import Function
from ...engines.threads import in_threads

_best_of_rows = Function("ngpulm_best_tokens")


def best_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` best of each row's scores, float32 `[R, C]`, best first, and their tokens int64 `[R, count]`.

    As `torch.topk`, except that on a CPU there are no NaNs among them: -inf is where nothing is left.
    """
    if scores.device.type != "cpu":
        return torch.topk(scores, count) if count > 1 else torch.max(scores, 1, keepdim=True)
    values = torch.empty((len(scores), count), dtype=torch.float32, device=CPU)
    tokens = torch.empty((len(scores), count), dtype=torch.int64, device=CPU)
    arguments = scores.contiguous(), scores.shape[1], count, values, tokens
    in_threads(lambda first, last: _best_of_rows(first, last, *arguments), *scores.shape)
    return values, tokens
