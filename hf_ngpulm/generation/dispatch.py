"""What a Hub repo's `custom_generate/generate.py` hands to `generate`."""

from __future__ import annotations

from typing import Any

from transformers import GenerationMixin

from .seq2seq import seq2seq_generate
from .transducer import transducer_generate


def generate(model: Any, **kwargs: Any) -> Any:
    """Return `generate` with the strategy for a model's family: transducers, or decoders with attention.

    Raises:
        ValueError: arguments that the strategy doesn't take.
    """
    if hasattr(model, "joint"):
        given = {name: value for name, value in kwargs.items() if value is not None}
        return GenerationMixin.generate(model, custom_generate=transducer_generate, **given)
    return GenerationMixin.generate(model, custom_generate=seq2seq_generate, **kwargs)
