"""Pipeline classes for Transformers' "automatic-speech-recognition" task."""

from .ctc import CTCNGramPipeline
from .registration import register

__all__ = ["CTCNGramPipeline", "register"]
