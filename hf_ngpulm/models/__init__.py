"""Transducers that Transformers doesn't have: HAT, and one whose prediction network has no state.

`AutoConfig`, `AutoModel`, `AutoModelForRNNT` (where Transformers has it) and the speech recognition pipeline know them once
`hf_ngpulm` is imported.
"""

from .configuration import HatConfig, StatelessTransducerConfig
from .registration import register
from .transducers import HatForASR, StatelessTransducerForASR

__all__ = ["HatConfig", "HatForASR", "StatelessTransducerConfig", "StatelessTransducerForASR", "register"]
