"""Find the best tokens of each row. A beam search does this at every step, over tens of thousands of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.cpu import CPU
from ...engines.native import Function
from ...engines.threads import in_threads

_best_of_rows = Function("ngpulm_best_tokens")


def best_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best scores of each row, float32 `[R, count]`, the best score first. Also return the tokens with these scores,
    int64 `[R, count]`.

    The result equals the result of `torch.topk`, but the CPU engine skips NaN. If too few tokens remain in a row, the missing
    entries have the score -inf.

    Args:
        scores: float32 `[R, C]`.
        count: number of tokens to return for each row.
    """
    if scores.device.type != "cpu":
        return torch.topk(scores, count) if count > 1 else torch.max(scores, 1, keepdim=True)
    values = torch.empty((len(scores), count), dtype=torch.float32, device=CPU)
    tokens = torch.empty((len(scores), count), dtype=torch.int64, device=CPU)
    arguments = scores.contiguous(), scores.shape[1], count, values, tokens
    in_threads(lambda first, last: _best_of_rows(first, last, *arguments), *scores.shape)
    return values, tokens
