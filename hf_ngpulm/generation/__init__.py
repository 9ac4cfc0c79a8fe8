"""Language models in `generate`: a logits processor for decoders, a `custom_generate` strategy for transducers."""

from .logits_processor import NGramLogitsProcessor
from .transducer import transducer_generate

__all__ = ["NGramLogitsProcessor", "transducer_generate"]
