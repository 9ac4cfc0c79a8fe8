"""Combine several language models log-linearly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..common.checks import WEIGHT, check
from .model import NGramLM


@dataclass(frozen=True, init=False)
class LogLinear:
    """Combine several language models with weights. Decoders add the models' weighted log-probabilities. The models may be, for
    example, a word-level and a token-level model.

        decoder = CTCDecoder(tokenizer, lm=LogLinear([words, tokens], [0.6, 0.4]), lm_weight=0.8, num_beams=16)

    The decoder's `lm_weight` multiplies these weights. A hypothesis's `lm_score` is the unweighted sum of the models'
    log-probabilities. A decoder also accepts a list with a `LogLinear` or a model for each row of a batch.

    Args:
        models: language models over the same token ids.
        weights: one weight per model.

    Raises:
        ValueError: there are no models, the number of weights differs, or a weight isn't a finite number.
        TypeError: a model isn't an `NGramLM`.
    """

    models: tuple[Any, ...]
    weights: tuple[float, ...]

    def __init__(self, models: Sequence[Any], weights: Sequence[float]) -> None:
        if not models or len(models) != len(weights):
            raise ValueError(f"LogLinear takes language models and a weight for each, got {len(models)} and {len(weights)}")
        for model in models:
            if not isinstance(model, NGramLM):
                raise TypeError(f"LogLinear takes NGramLMs (see hf_ngpulm.NGramLM.from_pretrained), got {type(model).__name__}")
        object.__setattr__(self, "models", tuple(models))
        object.__setattr__(self, "weights", tuple(check("a weight of LogLinear", weight, WEIGHT) for weight in weights))


def parts_of(lm: Any) -> tuple[tuple[Any, float], ...]:
    """Return pairs of a language model and its weight. The row's LM weight multiplies this weight. If `lm` is None, return no
    pairs.
    """
    if lm is None:
        return ()
    return tuple(zip(lm.models, lm.weights)) if isinstance(lm, LogLinear) else ((lm, 1.0),)
