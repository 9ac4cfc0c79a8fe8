"""Define pipeline classes for Transformers' "automatic-speech-recognition" task."""

from .base import NGramPipeline
from .ctc import CTCNGramPipeline
from .registration import register
from .seq2seq import Seq2SeqNGramPipeline
from .transducer import TransducerNGramPipeline

__all__ = ["CTCNGramPipeline", "NGramPipeline", "Seq2SeqNGramPipeline", "TransducerNGramPipeline", "register"]

# Called here, because importing this package may itself load Transformers' pipelines.
register()
