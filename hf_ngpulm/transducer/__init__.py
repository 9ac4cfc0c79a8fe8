"""Decoding of transducers: RNN-T and TDT."""

from .decoder import TransducerDecoder
from .model import TransducerModel, TransformersTransducer
from .search import TransducerSearch

__all__ = ["TransducerDecoder", "TransducerModel", "TransducerSearch", "TransformersTransducer"]
