"""Provide transducers that Transformers lacks: HAT, and a transducer whose prediction network has no state.

After `hf_ngpulm` is imported, these models can be loaded with `AutoConfig`, `AutoModel`, `AutoModelForRNNT` (if Transformers
has it) and the speech recognition pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import attributes_of

if TYPE_CHECKING:
    from .configuration import HatConfig, StatelessTransducerConfig
    from .registration import register
    from .transducers import HatForASR, StatelessTransducerForASR

__all__ = ["HatConfig", "HatForASR", "StatelessTransducerConfig", "StatelessTransducerForASR", "register"]

# Models are loaded later than their configurations, as in Transformers.
__getattr__ = attributes_of(
    __name__,
    {
        "HatConfig": "configuration",
        "HatForASR": "transducers",
        "StatelessTransducerConfig": "configuration",
        "StatelessTransducerForASR": "transducers",
        "register": "registration",
    },
)
