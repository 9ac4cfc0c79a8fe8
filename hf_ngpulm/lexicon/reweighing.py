"""Other weights for a composed automaton, without composing it anew."""

from __future__ import annotations

import torch

from ..automaton.tensors import AutomatonTensors
from ..config.word_summary import WordSummary


def reweighed(
    tensors: AutomatonTensors,
    words: WordSummary,
    vocab_size: int,
    scale: float = 1.0,
    word: float = 0.0,
    delimiter: float = 0.0,
    start: int = -1,
) -> AutomatonTensors:
    """Scale the word-level model's log-probabilities, and add something to those of all words, known or not.

    Weights are pushed towards the start of words (see `hf_ngpulm.lexicon.composition`), so what is added to all words of a
    state goes to the arcs that begin a word, and nowhere else: those that leave a state in which none has begun by any token
    but the delimiter.

    Args:
        tensors: of a composed automaton.
        words: what is known of it.
        vocab_size: V.
        scale: what all weights are multiplied with.
        word: natural log, added to each word after scaling.
        delimiter: natural log, added to each delimiter where no word has begun, which says nothing: otherwise a search is full
            of transcripts that are the same but for these.
        start: a state in which it isn't.
    """
    contexts = words.num_contexts
    if (word or delimiter) and not contexts:
        raise ValueError("the language model was saved before it was written down where its words begin; compose it anew")
    weights = scale * tensors.arc_weights
    if word or delimiter:
        starts = tensors.arc_tokens[: int(tensors.arc_offsets[contexts])]
        added = torch.where(starts < vocab_size, word, 0.0)  # </s> is no word
        if words.delimiter is not None:
            added[starts == words.delimiter] = delimiter
            if start >= 0:
                arcs = slice(*tensors.arc_offsets[start : start + 2].tolist())
                added[arcs][starts[arcs] == words.delimiter] = 0.0
        weights[: len(starts)] += added
    return tensors._replace(arc_weights=weights, backoff_weights=scale * tensors.backoff_weights)
