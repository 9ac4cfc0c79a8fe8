"""The automaton that a graph decoder follows beside its language model for phrases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..language_model.model import NGramLM
from ..text.spelling import speller_of
from .automaton import Spellings, phrase_automaton
from .booster import SMALL_VOCABULARY
from .phrases import Booster, Written, write


class GraphBooster(Booster):
    """Phrases that shall be recognised beside a language model, which may never have seen them.

    As in a `PhraseBooster` each token earns the phrase's discount as soon as it is read, and all is taken back where the phrase
    isn't completed. And as somebody has named the phrase, it isn't held against it how little the language model has: a token
    of V ones costs ln(V) at most, as if all were equally likely. What the model charges beyond that, it earns besides, at the
    very token: so nothing is paid in advance for what the model doesn't charge.

    Args:
        phrases: a dictionary from texts to discounts.
        tokenizer: the ASR model's.
        lm: the language model; None for none.
        lm_weight: its weight in the search.
    """

    def __init__(self, phrases: Mapping[str, float], tokenizer: Any, lm: NGramLM | None, lm_weight: float) -> None:
        speller = speller_of(tokenizer, None if lm is None else lm.vocab_size)
        whole_words = speller.has_words and speller.vocabulary.size <= SMALL_VOCABULARY
        written = write(phrases, 0.0, speller, whole_words, "auto", 1, None, False)
        built = phrase_automaton(
            _with_payments(written, lm, max(lm_weight, 0.0)),
            speller.vocabulary.size,
            np.array(speller.begins_word, dtype=bool),
            speller.delimiter if whole_words else None,
        )
        super().__init__(built, written, speller.vocabulary, "auto")


def _with_payments(written: Written, lm: NGramLM | None, lm_weight: float) -> Spellings:
    """Return what each token of each spelling earns: of the discount as much as the tokenizer's own spelling of the phrase."""
    spellings, discounts = written.spellings, list(written.phrases.values())
    lengths = np.array([len(spelling.tokens) for spelling in spellings], dtype=np.int64)
    inside = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
    tokens = np.zeros(inside.shape, dtype=np.int64)
    tokens[inside] = [token for spelling in spellings for token in spelling.tokens]
    free, initial, bounded = (np.array([getattr(s, name) for s in spellings]) for name in ("free", "initial", "bounded"))
    earned = np.array([discounts[s.phrase] * s.length / (len(s.tokens) - s.free) for s in spellings])
    payments = np.repeat(earned[:, None], inside.shape[1], axis=1)
    if lm is not None and len(spellings):
        payments += lm_weight * np.maximum(-math.log(lm.vocab_size) - _scores(lm, tokens, initial.astype(bool)), 0.0)
    payments[np.arange(inside.shape[1]) < free.reshape(-1, 1)] = 0.0
    payments = payments.cumsum(1)
    bonuses = payments[np.arange(len(spellings)), lengths - 1] if len(spellings) else np.zeros(0)
    return Spellings(tokens[inside], lengths, payments[inside], bonuses, bounded.astype(bool), initial.astype(bool))


def _scores(lm: NGramLM, tokens: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """Return what the LM gives each token `[N, L]` after those before it, from the empty context, or from the start if
    `initial`."""
    columns = torch.from_numpy(tokens).to(lm.device)
    states = torch.where(torch.from_numpy(initial).to(lm.device), lm.starts[0], lm.roots[0]).contiguous()
    scores = []
    for column in columns.T:
        score, states = lm.step(states, column.contiguous())
        scores.append(score)
    return torch.stack(scores, 1).double().cpu().numpy()
