"""Decoding of CTC models in a graph: the CTC topology and a language model's automaton, whose arcs can be biased."""
