"""Use language models in `generate`: a logits processor, and `custom_generate` strategies for decoders and transducers."""

from typing import Any

from transformers import GenerationMixin

from .logits_processor import NGramLogitsProcessor
from .seq2seq import seq2seq_generate
from .transducer import transducer_generate

__all__ = ["NGramLogitsProcessor", "generate", "seq2seq_generate", "transducer_generate"]


def generate(model: Any, **kwargs: Any) -> Any:
    """Call `generate` with the strategy for the model's family. A Hub repo's `custom_generate/generate.py` imports this
    function.

    Raises:
        ValueError: an argument isn't supported by the strategy.
    """
    if hasattr(model, "joint"):
        arguments = {name: value for name, value in kwargs.items() if value is not None}
        return GenerationMixin.generate(model, custom_generate=transducer_generate, **arguments)
    return GenerationMixin.generate(model, custom_generate=seq2seq_generate, **kwargs)
