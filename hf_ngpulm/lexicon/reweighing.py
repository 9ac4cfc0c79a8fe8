"""Other weights for a composed automaton, without composing it anew."""

from __future__ import annotations

import torch
from torch import Tensor

from ..automaton.tensors import AutomatonTensors
from ..word_summary import WordSummary


def reweighed(
    tensors: AutomatonTensors,
    words: WordSummary,
    vocab_size: int,
    scale: float = 1.0,
    word: float = 0.0,
    unknown: float = 0.0,
    unknown_at_end: float = 0.0,
) -> AutomatonTensors:
    """Scale the word-level model's log-probabilities, and add something to those of all words, or of unknown ones.

    Weights are pushed towards the start of words (see `hf_ngpulm.lexicon.composition`), so what is added to all words of a
    state goes to the arcs that begin a word, and nowhere else: those that leave a state in which none has begun by any token
    but the delimiter. Whether a word is unknown shows at once, at the root, or when the trie loses it and backs off.

    Args:
        tensors: of a composed automaton.
        words: what is known of it.
        vocab_size: V.
        scale: what all weights are multiplied with.
        word: natural log, added to each word after scaling.
        unknown: natural log, added to each unknown word besides.
        unknown_at_end: natural log, the part of what an unknown word scores that counts only when it has ended.
    """
    contexts = words.num_contexts
    if (word or unknown or unknown_at_end) and not contexts:
        raise ValueError("the language model was saved before it was written down where its words begin; compose it anew")
    weights, backoffs = scale * tensors.arc_weights, scale * tensors.backoff_weights
    if word:
        starts = tensors.arc_tokens[: int(tensors.arc_offsets[contexts])]
        weights[: len(starts)] += torch.where(_begin_words(starts, words.delimiter, vocab_size), word, 0.0)
    if unknown or unknown_at_end:
        # The state behind the contexts is that of all unknown words, and backs off to one of them itself.
        root, behind = (slice(*tensors.arc_offsets[state : state + 2].tolist()) for state in (0, contexts))
        at_once = unknown - unknown_at_end
        weights[root] += torch.where(tensors.arc_targets[root] == contexts, at_once, 0.0)
        backoffs += torch.where(tensors.backoff_states == contexts, at_once, 0.0)
        weights[behind] += torch.where(
            _begin_words(tensors.arc_tokens[behind], words.delimiter, vocab_size), 0.0, unknown_at_end
        )
        backoffs[contexts] += unknown_at_end
    return tensors._replace(arc_weights=weights, backoff_weights=backoffs)


def _begin_words(tokens: Tensor, delimiter: int | None, vocab_size: int) -> Tensor:
    begins = tokens < vocab_size  # </s> is no word
    return begins if delimiter is None else begins & (tokens != delimiter)
