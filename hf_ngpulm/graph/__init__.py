"""Decoding of CTC models in a graph: the CTC topology and a language model's automaton, whose arcs can be biased."""

from .arcs import PhraseArcs
from .decoder import GraphDecoder
from .stream import GraphStream

__all__ = ["GraphDecoder", "GraphStream", "PhraseArcs"]
