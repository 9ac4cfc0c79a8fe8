"""Provide models that Transformers lacks: two transducers (a HAT, and a transducer whose prediction network has no state), and
an encoder that consists of a frozen Whisper encoder and trained layers above it.

After `hf_ngpulm` is imported, these models can be loaded with `AutoConfig`, `AutoModel`, `AutoModelForRNNT` (if Transformers
has it) and the speech recognition pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import attributes_of

if TYPE_CHECKING:
    from .configuration import (
        HatConfig,
        StatelessTransducerConfig,
        WhisperTopConfig,
        WhisperTopCTCConfig,
        WhisperTopRNNTConfig,
        WhisperTopTDTConfig,
    )
    from .registration import register
    from .transducers import HatForASR, StatelessTransducerForASR
    from .whisper_top import (
        WhisperTopEncoder,
        WhisperTopFeatureExtractor,
        WhisperTopForCTC,
        WhisperTopForRNNT,
        WhisperTopForTDT,
    )

__all__ = [
    "HatConfig",
    "HatForASR",
    "StatelessTransducerConfig",
    "StatelessTransducerForASR",
    "WhisperTopCTCConfig",
    "WhisperTopConfig",
    "WhisperTopEncoder",
    "WhisperTopFeatureExtractor",
    "WhisperTopForCTC",
    "WhisperTopForRNNT",
    "WhisperTopForTDT",
    "WhisperTopRNNTConfig",
    "WhisperTopTDTConfig",
    "register",
]

# Models are loaded later than their configurations, as in Transformers.
__getattr__ = attributes_of(__name__, __file__)
