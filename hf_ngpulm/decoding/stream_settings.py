"""Check the settings of streams."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..common.checks import check, refuse_idle, whole
from ..fusion.fusion import Fusion
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM

DECODERS_LM: Any = object()  # defaults, where None means no model or no phrases
DECODERS_PHRASES: Any = object()


def lm_and_weight(
    fusion: Fusion, lm: NGramLM | LogLinear | None, lm_weight: float | None
) -> tuple[NGramLM | LogLinear | None, float]:
    """Return the language model and the LM weight of a stream. The defaults are the decoder's. Raises ValueError if the decoder
    doesn't have the model, or if the decoder has a list of models and `lm` isn't given.
    """
    if not fusion.lms:
        if lm is not DECODERS_LM and lm is not None:
            raise ValueError("the decoder has no language model; pass lm=... when you make the decoder")
        refuse_idle({"lm_weight": lm_weight}, "without a language model to act on: the decoder has none")
        return None, 0.0
    if lm is DECODERS_LM:
        if fusion.per_row is not None:
            raise ValueError(
                f"the decoder has {len(fusion.lms)} language models in a list; name this stream's: open(lm=...), None for none"
            )
        lm = fusion.of_all
    if lm_weight is None:
        if isinstance(fusion.weight, Tensor):
            raise ValueError(
                "the decoder has one lm_weight per row of a batch, but streams have no rows; pass open(lm_weight=...)"
            )
        lm_weight = fusion.weight
    return lm, 0.0 if lm is None else lm_weight


def endpoint_of(frames: int | None, seconds: float | None, frame_seconds: float | None) -> int | None:
    """Return the pause that counts as an endpoint, in frames; None for no endpoints.

    Raises:
        ValueError: both `frames` and `seconds` are given, or a value is out of range.
    """
    if frames is not None and seconds is not None:
        raise ValueError("endpoint_frames and endpoint_seconds set the same rule; pass one of them")
    if frames is not None:
        return check("endpoint_frames", frames, whole())
    if seconds is None:
        return None
    if not 0 < seconds < float("inf"):
        raise ValueError(f"endpoint_seconds should be above 0, got {seconds!r}")
    if frame_seconds is None:
        raise ValueError("endpoint_seconds needs the duration of a frame; pass frame_seconds= to the decoder")
    return max(1, math.ceil(seconds / frame_seconds - 1e-6))
