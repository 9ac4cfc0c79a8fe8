"""The arrays of an automaton that is composed as far as searches have come."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engines.native import Struct

# What `counts` counts.
STATES, ARCS, READ, FORMS, COMPOSED = range(5)


class Grown(NamedTuple):
    """What there is so far. `K` states, the k-th of which has the number `2 * k`, so that its arcs may lie anywhere."""

    # Of the LM's states: their numbers among those that have been read, and their states of the empty prefix, more by one.
    read: np.ndarray
    own_state: np.ndarray
    # Of those that have been read, their forms.
    word_offsets: np.ndarray
    forms: np.ndarray
    log_probs: np.ndarray
    targets: np.ndarray
    probs: np.ndarray
    lower_probs: np.ndarray  # in the state that they back off to
    # Of each state: the LM's, the node, the log of its mass, its first form, and the state of the same node further down.
    of_lm: np.ndarray
    nodes: np.ndarray
    mass: np.ndarray
    first_word_arc: np.ndarray
    lower: np.ndarray
    composed: np.ndarray  # states in the order in which they have been composed
    unfinished: np.ndarray  # uint8, by number: those that have no arcs yet, or back off to such
    # The automaton.
    arc_offsets: np.ndarray
    arc_tokens: np.ndarray
    arc_weights: np.ndarray
    arc_targets: np.ndarray
    backoff_states: np.ndarray
    backoff_weights: np.ndarray


OF_WORDS, OF_STATES, OF_ARCS = slice(3, 8), slice(8, 14), slice(16, 19)  # fields of `Grown` of one length
OF_STATE = (np.int32, np.int32, np.float64, np.int64, np.int32, np.int32)


class NgpulmLazyAutomaton(Struct):
    """`Grown` as the core reads and writes it.

    Members:
        counts: `[5]`, how many states, arcs, states of the LM that have been read, their forms, and states that have been
            composed there are.
        delimiter: -1 for none.
        start: the LM's state that sentences begin in.
        longest_chain: states of the LM in a row of backoffs, at most.
        begin: the LM's state whose delimiters get no bonus, -1 for none.
    """
