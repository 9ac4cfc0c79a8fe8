"""Compute the weights of a transducer's internal LM (the joint network without encoder input; Meng et al., SLT 2021)."""

from __future__ import annotations

from torch import Tensor

from ..fusion.fusion import Fusion
from ..fusion.rows import RowModels, weights_of

ILM_SHARE = 0.7  # default weight, relative to the LM's


def ilm_weights_of(weight: float | Tensor | None, fusion: Fusion, models: RowModels) -> Tensor | None:
    """Return the weight of the internal LM in each row, float32 `[B]`; None if no row has an internal LM to subtract.

    Args:
        weight: the decoder's option `ilm_weight`.
        fusion, models: the decoder's language models, and the rows' language models.

    Raises:
        ValueError: `weight` is a tensor for another number of rows.
    """
    lm_weights = models.lm_weights
    if weight is None:
        return (ILM_SHARE * lm_weights).clamp(min=0) if fusion.lms and fusion.source is None else None
    if not isinstance(weight, Tensor) and weight == 0:
        return None
    weights = weights_of(weight, "ilm_weight", len(lm_weights), lm_weights.device)
    return weights if models.silent is None else weights.masked_fill(models.silent, 0.0)
