"""Decoding of transducers: RNN-T and TDT."""

from .decoder import TransducerDecoder
from .model import TransducerModel, TransformersTransducer

__all__ = ["TransducerDecoder", "TransducerModel", "TransformersTransducer"]
