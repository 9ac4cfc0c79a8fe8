"""Language models in `generate`: a logits processor, and `custom_generate` strategies for decoders and for transducers."""

from .dispatch import generate
from .logits_processor import NGramLogitsProcessor
from .seq2seq import seq2seq_generate
from .transducer import transducer_generate

__all__ = ["NGramLogitsProcessor", "generate", "seq2seq_generate", "transducer_generate"]
