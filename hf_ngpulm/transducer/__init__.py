"""Decoding of transducers: RNN-T and TDT."""

from .decoder import TransducerDecoder
from .model import TransducerModel, TransformersTransducer, transducer_of
from .search import TransducerSearch

__all__ = [
    "TransducerDecoder",
    "TransducerModel",
    "TransducerSearch",
    "TransformersTransducer",
    "transducer_of",
]
