"""Fast n-gram language models for every speech recogniser in Hugging Face Transformers.

Importing the package registers its pipeline classes: `pipeline("automatic-speech-recognition", model=..., lm=...)`. The names
in this package are imported on first access. The pipeline classes are imported together with Transformers' pipelines.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from .common.after_import import after_import
from .common.lazy import attributes_of

if TYPE_CHECKING:
    from .audio import StreamingRecognizer
    from .common.bundled import demo_lm, demo_model, demo_recording
    from .corrections import CorrectionLog
    from .decoding.ctc import CTCDecoder
    from .decoding.graph import GraphDecoder
    from .decoding.hypotheses import Hypothesis
    from .decoding.partials import Partial
    from .decoding.second_look import PhraseDecoder
    from .decoding.streaming import StreamingDecoder
    from .decoding.transducer import TransducerDecoder
    from .decoding.understanding import GrammarDecoder
    from .errors import InvalidLogitsError, NGramFormatError, StreamError, TokenizerMismatchError
    from .generation import NGramLogitsProcessor
    from .grammar.grammar import Grammar
    from .language_model.log_linear import LogLinear
    from .language_model.model import NGramLM
    from .phrases import ArcBooster, Phrase, PhraseBooster
    from .pipelines import CTCNGramPipeline, Seq2SeqNGramPipeline, TransducerNGramPipeline, register
    from .rescoring import Rescorer
    from .search.networks.model import TransducerModel

__all__ = [
    "ArcBooster",
    "CTCDecoder",
    "CTCNGramPipeline",
    "CorrectionLog",
    "Grammar",
    "GrammarDecoder",
    "GraphDecoder",
    "Hypothesis",
    "InvalidLogitsError",
    "LogLinear",
    "NGramFormatError",
    "NGramLM",
    "NGramLogitsProcessor",
    "Partial",
    "Phrase",
    "PhraseBooster",
    "PhraseDecoder",
    "Rescorer",
    "Seq2SeqNGramPipeline",
    "StreamError",
    "StreamingDecoder",
    "StreamingRecognizer",
    "TokenizerMismatchError",
    "TransducerDecoder",
    "TransducerModel",
    "TransducerNGramPipeline",
    "demo_lm",
    "demo_model",
    "demo_recording",
    "register",
]

__getattr__ = attributes_of(__name__, __file__)


def __dir__() -> list[str]:
    return sorted(__all__)


def _registering(kind: str) -> Callable[[], None]:
    return lambda: getattr(importlib.import_module(".models.registration", __name__), f"register_{kind}")()


def _register_pipelines() -> None:
    importlib.import_module(".pipelines", __name__)


# Each when its part of Transformers has been loaded: these parts import one another.
after_import("transformers.models.auto.configuration_auto", _registering("configurations"))
after_import("transformers.models.auto.modeling_auto", _registering("models"))
after_import("transformers.models.auto.feature_extraction_auto", _registering("feature_extractors"))
after_import("transformers.models.auto.tokenization_auto", _registering("tokenizers"))
after_import("transformers.pipelines", _register_pipelines)
