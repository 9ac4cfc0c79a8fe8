"""Compute error rates of words, characters and entities with confidence intervals, evaluate recognisers, and tune weights.

The functions need `jiwer`. The metrics WER, CER and EntityWER also need `evaluate`. `pip install 'hf-ngpulm[eval]'` installs
both packages. This package imports `jiwer` and `evaluate` on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.cluster import Actors
from ..common.lazy import attributes_of
from .counts import ErrorCounts, character_errors, word_errors
from .entities import EntityErrors, EntityMatches, entity_errors
from .recording_sources import read_recordings
from .recordings import Recording, Recordings, load_audio
from .significance import Comparison, Interval, bootstrap, paired_significance

if TYPE_CHECKING:
    from .confidences import ConfidenceBin, ConfidenceTuning, tune_confidence
    from .evaluating import evaluate
    from .grammars import GrammarTuning, OperatingPoint, tune_grammar
    from .metrics import CER, WER, EntityWER
    from .parts import SettingsMismatchError
    from .phrases import LookPoint, PhraseTuning, tune_phrases
    from .results import Clock, Compared, Evaluation, Scores, Utterance, read_results
    from .transcribing import Transcriber, TranscriptionStep, transcribe_into
    from .tuning import Grids, TuningPoint, TuningResult, tune_weights

__all__ = [
    "CER",
    "WER",
    "Actors",
    "Clock",
    "Compared",
    "Comparison",
    "ConfidenceBin",
    "ConfidenceTuning",
    "EntityErrors",
    "EntityMatches",
    "EntityWER",
    "ErrorCounts",
    "Evaluation",
    "GrammarTuning",
    "Grids",
    "Interval",
    "LookPoint",
    "OperatingPoint",
    "PhraseTuning",
    "Recording",
    "Recordings",
    "Scores",
    "SettingsMismatchError",
    "Transcriber",
    "TranscriptionStep",
    "TuningPoint",
    "TuningResult",
    "Utterance",
    "bootstrap",
    "character_errors",
    "entity_errors",
    "evaluate",
    "load_audio",
    "paired_significance",
    "read_recordings",
    "read_results",
    "transcribe_into",
    "tune_confidence",
    "tune_grammar",
    "tune_phrases",
    "tune_weights",
    "word_errors",
]


__getattr__ = attributes_of(__name__, __file__)  # the names above under TYPE_CHECKING need more than numpy and jiwer
