"""Change the weights of a composed automaton without composing it again.

A composed automaton charges the whole cost of an unknown word at once, when the word leaves the trie of known words. In a
search, this charge is too high for short unknown words: they are pruned before the search notices that the competing known
words fit badly. For long unknown words the charge is too low, so that such a word absorbs the words that follow.
`grade_unknown_words` replaces the state of unknown words by one state per length. The charge after n characters is a function
of n. At the end of the word, the difference from the full charge is added. The scores of whole texts stay the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..automaton.tensors import AutomatonTensors
from ..config.word_summary import WordSummary


class Grades(NamedTuple):
    """The costs of unknown words by their length."""

    piece_lengths: tuple[int, ...]  # number of characters of each token, [V]
    scored: float  # natural log, score of an unknown word in an automaton that charges the word at once
    # natural log, score of an unfinished unknown word of 0, 1, ... characters; the last value also holds for longer words.
    charged: tuple[float, ...]
    whole: float  # natural log, score of a finished unknown word, which replaces `scored`


def reweighed(
    tensors: AutomatonTensors,
    words: WordSummary,
    vocab_size: int,
    scale: float = 1.0,
    word: float = 0.0,
    delimiter: float = 0.0,
    start: int = -1,
) -> AutomatonTensors:
    """Scale the word-level model's log-probabilities, and add a bonus for each word, known or unknown.

    Weights are pushed towards the start of words (see `hf_ngpulm.lexicon.composition`), so the bonus goes to the arcs that
    begin a word. These arcs leave a state between words and aren't arcs of the delimiter.

    Args:
        tensors: the tensors of a composed automaton.
        words: the summary of the word-level model.
        vocab_size: V.
        scale: factor of all weights.
        word: natural log, added for each word after scaling.
        delimiter: natural log, added for each delimiter between words. Such delimiters are redundant. Without a penalty, the
            beam of a search fills up with transcripts that differ only in delimiters.
        start: a state in which the bonus of delimiters isn't added.
    """
    contexts = words.num_contexts
    if (word or delimiter) and not contexts:
        raise ValueError("the language model was saved by a version that didn't store where its words begin; compose it anew")
    weights = scale * tensors.arc_weights
    if word or delimiter:
        starts = tensors.arc_tokens[: int(tensors.arc_offsets[contexts])]
        added = torch.where(starts < vocab_size, word, 0.0)  # </s> isn't a word
        if words.delimiter is not None:
            added[starts == words.delimiter] = delimiter
            if start >= 0:
                arcs = slice(*tensors.arc_offsets[start : start + 2].tolist())
                added[arcs][starts[arcs] == words.delimiter] = 0.0
        weights[: len(starts)] += added
    return tensors._replace(arc_weights=weights, backoff_weights=scale * tensors.backoff_weights)


def grade_unknown_words(tensors: AutomatonTensors, unknown: int, grades: Grades) -> AutomatonTensors:
    """Replace the state of unknown words by one state per length. `tensors`: the tensors of a composed automaton whose unknown
    words have no cost per token. `unknown`: the state of unknown words.
    """
    t: Any = AutomatonTensors(*(tensor.cpu().numpy() for tensor in tensors))  # type: ignore[arg-type]
    most, scored, whole = len(grades.charged) - 1, grades.scored, grades.whole
    lengths, charged = np.asarray(grades.piece_lengths), np.asarray(grades.charged, dtype=np.float64)
    root, own = (slice(*t.arc_offsets[state : state + 2].tolist()) for state in (0, unknown))
    size = own.stop - own.start

    # An unknown word of n characters is in state `unknown + n`; the numbers of prefix states, which follow, increase.
    def moved(states: np.ndarray) -> np.ndarray:
        return np.where(states > unknown, states + most, states)

    weights, targets = t.arc_weights.astype(np.float64), moved(t.arc_targets)
    backoffs, backoff_weights = moved(t.backoff_states), t.backoff_weights.astype(np.float64)
    begins = np.flatnonzero(t.arc_targets[root] == unknown)
    reached = np.minimum(lengths[t.arc_tokens[begins]], most)
    weights[begins] += charged[reached] - scored
    targets[begins] += reached
    lost = np.flatnonzero(t.backoff_states == unknown)
    reached = np.minimum(_characters(t, unknown, lengths)[lost], most)
    backoff_weights[lost] += charged[reached] - scored
    backoffs[lost] += reached

    # Each length gets the arcs of the former single state.
    tokens = t.arc_tokens[own]
    goes_on = t.arc_targets[own] == unknown
    longer = np.minimum(np.arange(most + 1)[:, None] + np.where(goes_on, lengths[tokens % len(lengths)], 0), most)
    end = (whole - charged)[:, None]
    of_lengths = np.where(goes_on, charged[longer] - charged[:, None], end + weights[own])
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


def _characters(t: Any, unknown: int, lengths: np.ndarray) -> np.ndarray:
    """Return the number of characters in the word prefix of each state under the root, int64 `[S]`. `lengths`: the number of
    characters in each token.
    """
    characters = np.zeros(len(t.backoff_states), dtype=np.int64)
    states = np.zeros(1, dtype=np.int64)
    while len(states):
        counts = t.arc_offsets[states + 1] - t.arc_offsets[states]
        sources = np.repeat(states, counts)
        arcs = (
            np.arange(len(sources)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(t.arc_offsets[states], counts)
        )
        inside = (t.arc_targets[arcs] > unknown) & (t.arc_tokens[arcs] < len(lengths))  # </s> isn't part of a word
        states = t.arc_targets[arcs[inside]].astype(np.int64)
        characters[states] = characters[sources[inside]] + lengths[t.arc_tokens[arcs[inside]]]
    return characters
