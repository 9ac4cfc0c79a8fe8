"""Represent every model as one data structure, a backoff automaton in tensors, which several engines can query."""

from .automaton import BackoffAutomaton
from .convert import LMParts, automaton_from_table, table_from_automaton

__all__ = ["BackoffAutomaton", "LMParts", "automaton_from_table", "table_from_automaton"]
