"""Transducers that Transformers doesn't have: HAT, and one whose prediction network has no state."""

from .configuration import HatConfig, StatelessTransducerConfig
from .transducers import HatForASR, StatelessTransducerForASR

__all__ = ["HatConfig", "HatForASR", "StatelessTransducerConfig", "StatelessTransducerForASR"]
