"""The best continuations of a row: late pruning needs them among tens of thousands of tokens, at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from . import candidates_cpu


def best_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` best of each row's scores, float32 `[R, C]`, best first, and their tokens int64 `[R, count]`.

    As `torch.topk`, except that on a CPU there are no NaNs among them: -inf is where nothing is left.
    """
    if scores.device.type != "cpu":
        return torch.topk(scores, count) if count > 1 else torch.max(scores, 1, keepdim=True)
    return candidates_cpu.best_tokens(scores, count)
