"""Pipeline classes for Transformers' "automatic-speech-recognition" task."""

from .base import NGramPipeline
from .ctc import CTCNGramPipeline
from .registration import register
from .transducer import TransducerNGramPipeline

__all__ = ["CTCNGramPipeline", "NGramPipeline", "TransducerNGramPipeline", "register"]
