"""Pipeline classes for Transformers' "automatic-speech-recognition" task."""

from .base import NGramPipeline
from .ctc import CTCNGramPipeline
from .registration import register
from .seq2seq import Seq2SeqNGramPipeline
from .transducer import TransducerNGramPipeline

__all__ = ["CTCNGramPipeline", "NGramPipeline", "Seq2SeqNGramPipeline", "TransducerNGramPipeline", "register"]

# Imported here, and not when Transformers' pipelines are loaded, since importing this package may load those.
register()
