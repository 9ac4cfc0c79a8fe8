"""Fast n-gram language models for every speech recogniser in Hugging Face Transformers.

Importing the package registers its pipeline classes: `pipeline("automatic-speech-recognition", model=..., lm=...)`.
"""

from .boosting import ArcBooster, PhraseBooster
from .ctc import CTCDecoder
from .errors import InvalidLogitsError, NGramFormatError, StreamError, TokenizerMismatchError
from .generation import NGramLogitsProcessor
from .graph import GraphDecoder
from .hypotheses import Hypothesis
from .language_model import NGramLM
from .log_linear import LogLinear
from .pipelines import CTCNGramPipeline, Seq2SeqNGramPipeline, TransducerNGramPipeline, register
from .streaming import Partial, StreamingDecoder
from .transducer import TransducerDecoder

register()

__all__ = [
    "ArcBooster",
    "CTCDecoder",
    "CTCNGramPipeline",
    "GraphDecoder",
    "Hypothesis",
    "InvalidLogitsError",
    "LogLinear",
    "NGramFormatError",
    "NGramLM",
    "NGramLogitsProcessor",
    "Partial",
    "PhraseBooster",
    "Seq2SeqNGramPipeline",
    "StreamError",
    "StreamingDecoder",
    "TokenizerMismatchError",
    "TransducerDecoder",
    "TransducerNGramPipeline",
]
