"""Unknown words that cost more the longer they get, until they end and cost what they cost.

A composed automaton charges all of an unknown word at once, when the trie of known words loses it, and goes on for free. In a
search that is too much for short ones, which lose to known words before these have shown how badly they fit, and too little for
long ones, which swallow the words that follow. Here the state of unknown words becomes one for each length: what a word of n
characters has been charged is a function of n, and where it ends the rest is added, or given back. Whole texts score as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..automaton.tensors import AutomatonTensors
from ..config.word_summary import WordSummary


class _Arrays(NamedTuple):
    """The tensors of an automaton, as arrays."""

    arc_offsets: np.ndarray
    arc_tokens: np.ndarray
    arc_weights: np.ndarray
    arc_targets: np.ndarray
    backoff_states: np.ndarray
    backoff_weights: np.ndarray


def grade_unknown_words(
    tensors: AutomatonTensors,
    words: WordSummary,
    piece_lengths: Sequence[int],
    scored: float,
    charged: Sequence[float],
    whole: float,
) -> AutomatonTensors:
    """Replace the state of unknown words by one for each length.

    Args:
        tensors: of a composed automaton in which unknown words cost nothing for each token.
        words: what is known of it.
        piece_lengths: characters of each token, `[V]`.
        scored: natural log, what an unknown word scores in it.
        charged: natural log, what an unknown word of 0, 1, ... characters scores until it ends; longer ones score the last.
        whole: what it scores when it has ended, in place of `scored`.
    """
    t = _Arrays(*(tensor.cpu().numpy() for tensor in tensors))
    unknown, most = words.num_contexts, len(charged) - 1
    if not unknown or words.unk_token_cost:
        raise ValueError("the language model should be composed with unk_token_cost=0, by this version")
    lengths, grades = np.asarray(piece_lengths), np.asarray(charged, dtype=np.float64)
    root, own = (slice(*t.arc_offsets[state : state + 2].tolist()) for state in (0, unknown))
    size = own.stop - own.start

    # A word of n characters is in state `unknown + n`; the states of prefixes, which back off to these, move up.
    def moved(states: np.ndarray) -> np.ndarray:
        return np.where(states > unknown, states + most, states)

    weights, targets = t.arc_weights.astype(np.float64), moved(t.arc_targets)
    backoffs, backoff_weights = moved(t.backoff_states), t.backoff_weights.astype(np.float64)
    begins = np.flatnonzero(t.arc_targets[root] == unknown)
    reached = np.minimum(lengths[t.arc_tokens[begins]], most)
    weights[begins] += grades[reached] - scored
    targets[begins] += reached
    lost = np.flatnonzero(t.backoff_states == unknown)
    reached = np.minimum(_characters(t, unknown, lengths)[lost], most)
    backoff_weights[lost] += grades[reached] - scored
    backoffs[lost] += reached

    # Each length has the arcs of the one state that there was.
    tokens = t.arc_tokens[own]
    goes_on = t.arc_targets[own] == unknown
    longer = np.minimum(np.arange(most + 1)[:, None] + np.where(goes_on, lengths[tokens % len(lengths)], 0), most)
    end = (whole - grades)[:, None]
    of_lengths = np.where(goes_on, grades[longer] - grades[:, None], end + weights[own])
    to = np.where(goes_on, unknown + longer, targets[own])
    ends = np.concatenate([t.arc_offsets[: unknown + 1], own.start + size * np.arange(1, most + 2)])
    ends = np.concatenate([ends, t.arc_offsets[unknown + 2 :] + size * most])
    state = slice(unknown, unknown + 1)
    parts = [
        (t.arc_tokens, np.tile(tokens, most + 1), own),
        (weights, of_lengths.ravel(), own),
        (targets, to.ravel(), own),
        (backoffs, np.repeat(t.backoff_states[state], most + 1), state),
        (backoff_weights, t.backoff_weights[unknown] + end.ravel(), state),
    ]
    joined = [ends, *(np.concatenate([old[: place.start], new, old[place.stop :]]) for old, new, place in parts)]
    made = (torch.from_numpy(array).to(like) for array, like in zip(joined, tensors, strict=True))
    return AutomatonTensors(*made)


def _characters(t: _Arrays, unknown: int, lengths: np.ndarray) -> np.ndarray:
    """Return characters of the beginnings of words in the states under the root, int64 `[S]`."""
    found = np.zeros(len(t.backoff_states), dtype=np.int64)
    states = np.zeros(1, dtype=np.int64)
    while len(states):
        counts = t.arc_offsets[states + 1] - t.arc_offsets[states]
        sources = np.repeat(states, counts)
        arcs = (
            np.arange(len(sources)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(t.arc_offsets[states], counts)
        )
        inside = (t.arc_targets[arcs] > unknown) & (t.arc_tokens[arcs] < len(lengths))  # </s> is no part of a word
        states = t.arc_targets[arcs[inside]].astype(np.int64)
        found[states] = found[sources[inside]] + lengths[t.arc_tokens[arcs[inside]]]
    return found
