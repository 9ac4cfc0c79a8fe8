"""Compute defaults of CTC decoders: the blank, and the bonus per token (`beta`)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..fusion.rows import RowModels, weights_of

# The default `beta` for an LM weight of 1. An average token costs about log(V) in a unigram model; with a smaller bonus the
# search leaves words out where the recogniser hears badly (`benchmarks/sweep.py joined`). Short utterances need a smaller bonus
# at weights above `MOST_SHARED`. There the bonus stays constant until an average token costs more in the weighted LM.
BETA_SHARE, MOST_SHARED, BETA_PER_WEIGHT = 0.85, 0.8, 3.0
# In a grammar, a token costs nothing, but a CTC model prefers short sentences there, too. Where many tokens may follow, a bonus
# for each token would add words that nobody said. So the logarithm of the number of these tokens is subtracted, because a token
# would cost this logarithm if all these tokens were equally probable.
GRAMMAR_SHARE = 0.77


def bonuses_of(beta: float | Tensor | None, models: RowModels) -> Tensor:
    """Return the bonus per token, float32 `[B]`. Raises ValueError if `beta` is a tensor for another number of rows."""
    lm_weights = models.lm_weights
    if beta is not None:
        return weights_of(beta, "beta", len(lm_weights), lm_weights.device)
    cost = math.log(max(models.vocab_size, 1))
    bonuses = (BETA_SHARE * cost * lm_weights.clamp(max=MOST_SHARED)).maximum(BETA_PER_WEIGHT * lm_weights)
    if models.grammars is None:
        return bonuses
    of_grammars = [GRAMMAR_SHARE * cost - grammar.branching for grammar in models.grammars]
    return bonuses.maximum(torch.tensor(of_grammars, dtype=bonuses.dtype, device=bonuses.device))


def blank_of(tokenizer: Any, blank_id: int | None, model: Any = None) -> int:
    """Return `blank_id`, by default the blank in the config of `model`, or else the tokenizer's padding token."""
    if blank_id is None:
        blank_id = getattr(getattr(model, "config", None), "blank_token_id", None)
    if blank_id is None:
        blank_id = getattr(tokenizer, "pad_token_id", None)
    if blank_id is None or blank_id < 0:
        raise ValueError(f"the tokenizer has no padding token to be the blank; pass blank_id=... (got {blank_id})")
    return blank_id
