"""Boost phrases (hotwords, keyterms, custom vocabulary) with an automaton, which decoders query in addition to the LM's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from ..automaton import BackoffAutomaton
from ..common.checks import AT_LEAST_0, check, one_of, whole
from ..language_model.model import NGramLM
from ..text.spelling import CASES, Speller, speller_of
from .automaton import Spellings, phrase_automaton
from .phrase import NEVER, Forms
from .phrases import MOST_TOKENIZATIONS, Booster, Phrases, Written, write

# In vocabularies up to this size, pieces are so short that a phrase is often the beginning of another word.
SMALL_VOCABULARY = 8192
# The bonus of a phrase that is never written (natural log). It outweighs any other score, and its sums are exact enough in
# float32.
NEVER_BONUS = -1e4


class PhraseBooster(Booster):
    """Boost phrases (hotwords, keyterms, custom vocabulary). Each phrase in a transcript earns a bonus.

        booster = PhraseBooster(["ryanair one sierra golf", ("NVIDIA", 2.0)], tokenizer=processor)
        CTCDecoder(processor, phrases=booster)

    A booster answers the same queries as an `NGramLM`. Each token that extends a phrase earns its share of the bonus at once,
    so that greedy search can follow the phrase. If a hypothesis leaves an unfinished phrase, the phrase's bonus is subtracted
    again (Aho-Corasick automaton). At each position only the longest phrase counts. Phrases at different positions all count,
    even if they overlap (see `hf_ngpulm.phrases.reference`).

    Args:
        phrases: texts, pairs of a text and a weight, `Phrase` objects, or a mapping from texts to weights.
        tokenizer: the ASR model's tokenizer, or a processor that has it.
        weight: bonus of phrases without their own weight (natural log), per token or per phrase, see `weight_per`. A negative
            weight suppresses a phrase. A phrase whose own weight is -inf is never written.
        weight_per: "token": a phrase earns its weight times the number of its tokens. "phrase": a phrase earns its weight.
        growth: raises the bonus of later tokens: the d-th token earns 1 + growth * ln(d) times the bonus of the first token
            (with `weight_per="phrase"` the total stays the same).
        end_bonus: extra bonus for completing a phrase, in multiples of its weight.
        whole_words: whether a phrase must end where a word ends, except in scripts without spaces. With a word delimiter, a
            phrase must also begin where a word begins. The default is True for vocabularies of up to 8,192 tokens.
        case: "auto" keeps phrases unchanged, or uses lowercase or uppercase if the tokenizer can write only that case. "keep"
            keeps phrases unchanged. "any" boosts phrases unchanged, in lowercase, in uppercase and in title case.
        tokenizations: number of token sequences per phrase: the tokenizer's own sequence, and sequences with the fewest tokens.
        normalise: normalisation of phrases, as for `NGramLM.from_texts`; Unicode is always composed (NFC).
        strict: whether a phrase that the tokenizer can't write raises an error instead of a warning.
        vocab_size: number of token ids. With a language model, this number must be the same as in the model.
        engine: "auto" (by device), "reference", "cpu" or "gpu".

    Attributes:
        phrases: a dictionary from the original texts to weights.
        left_out: a dictionary from phrases that the tokenizer can't write to the characters that the tokenizer doesn't know.

    Raises:
        ValueError: a phrase is empty or has more than 500 tokens, or a weight isn't a finite number; with `strict`, the
            tokenizer can't write a phrase.
    """

    def __init__(
        self,
        phrases: Phrases,
        tokenizer: Any,
        weight: float = 1.0,
        weight_per: str = "token",
        growth: float = 0.0,
        end_bonus: float = 0.0,
        whole_words: bool | None = None,
        case: str = "auto",
        tokenizations: int = 1,
        normalise: Any = None,
        strict: bool = False,
        vocab_size: int | None = None,
        engine: str = "auto",
    ) -> None:
        check("weight_per", weight_per, one_of("token", "phrase"))
        check("case", case, one_of(*CASES))
        check("tokenizations", tokenizations, whole(1, MOST_TOKENIZATIONS))
        check("growth", growth, AT_LEAST_0)
        check("end_bonus", end_bonus, AT_LEAST_0)
        speller = speller_of(tokenizer, vocab_size)
        if whole_words is None:
            whole_words = are_whole_words(speller)
        elif whole_words and not speller.has_words:
            raise ValueError("whole_words=True: the tokenizer's pieces don't mark where words begin; leave it out")
        written = write(phrases, weight, speller, whole_words, case, tokenizations, normalise, strict)
        built = _automaton_of(_with_bonuses(written, weight_per, growth, end_bonus), speller, whole_words)
        super().__init__(built, written, speller.vocabulary, engine)


class GraphBooster(Booster):
    """Boost phrases in a graph decoder, including phrases that the decoder's language model has never seen.

    As in a `PhraseBooster`, each token earns the phrase's discount at once, and an unfinished phrase repays everything. In
    addition, no token in a phrase costs more than ln(V) in the language model: the token earns the part of its cost that is
    above ln(V). (A token costs ln(V) if all V tokens are equally likely.)

    Args:
        phrases: a dictionary from texts to discounts.
        tokenizer: the ASR model's tokenizer.
        lm: the language model, or None.
        lm_weight: the language model's weight in the search.
        forms: the texts that are written for the phrases.
    """

    def __init__(
        self, phrases: Mapping[str, float], tokenizer: Any, lm: NGramLM | None, lm_weight: float, forms: Forms
    ) -> None:
        speller = speller_of(tokenizer, None if lm is None else lm.vocab_size)
        whole_words = are_whole_words(speller)
        written = write(phrases, 0.0, speller, whole_words, "auto", 1, None, False)
        written = written._replace(forms=forms)
        built = _automaton_of(_with_payments(written, lm, max(lm_weight, 0.0)), speller, whole_words)
        super().__init__(built, written, speller.vocabulary, "auto")


def are_whole_words(speller: Speller) -> bool:
    """Return the default of `whole_words`: whether phrases must end where words end."""
    return speller.has_words and speller.vocabulary.size <= SMALL_VOCABULARY


def _automaton_of(spellings: Spellings, speller: Speller, whole_words: bool) -> BackoffAutomaton:
    begins_word = np.array(speller.begins_word, dtype=bool)
    return phrase_automaton(spellings, speller.vocabulary.size, begins_word, speller.delimiter if whole_words else None)


def _with_bonuses(written: Written, weight_per: str, growth: float, end_bonus: float) -> Spellings:
    """Return spellings with their bonuses. All spellings of a phrase earn as much as the tokenizer's own spelling."""
    spellings, weights = written.spellings, np.array(list(written.phrases.values()), dtype=np.float64)
    never, weights = weights == NEVER, np.where(weights == NEVER, 0.0, weights)
    lengths, (phrase, own_lengths, free) = _lengths(written), _column(written, "phrase", "length", "free")
    tokens = np.fromiter(chain.from_iterable(spelling.tokens for spelling in spellings), np.int64, int(lengths.sum()))
    longest = int(max(lengths.max(initial=0), own_lengths.max(initial=0)))
    # Bonus of the first n tokens, in weights.
    shares = np.concatenate([[0.0], np.cumsum(1 + growth * np.log(np.arange(1, longest + 1)))])
    units = shares[own_lengths] if weight_per == "token" else np.ones(len(spellings))
    without_end = weights[phrase] * units
    bonuses = without_end + weights[phrase] * end_bonus
    depths = np.arange(1, len(tokens) + 1) - np.repeat(np.cumsum(lengths) - lengths + free, lengths)
    payments = np.repeat(without_end / shares[lengths - free], lengths) * shares[np.maximum(depths, 0)]
    payments[np.cumsum(lengths) - 1] = bonuses
    bounded, initial = _column(written, "bounded", "initial").astype(bool)
    return _never(Spellings(tokens, lengths, payments, bonuses, bounded, initial), never[phrase])


def _never(spellings: Spellings, never: np.ndarray) -> Spellings:
    """Replace the bonus of the spellings in the mask `never`, bool `[N]`, by `NEVER_BONUS`.

    The bonus is paid with a spelling's last token. But if the spelling must end where a word ends, it may also begin a longer
    word. Then the bonus is paid with the token after the word.
    """
    payments = np.where(np.repeat(never, spellings.lengths), 0.0, spellings.payments)
    last = np.cumsum(spellings.lengths) - 1
    payments[last] = np.where(never & ~spellings.bounded, NEVER_BONUS, payments[last])
    return spellings._replace(payments=payments, bonuses=np.where(never, NEVER_BONUS, spellings.bonuses))


def _with_payments(written: Written, lm: NGramLM | None, lm_weight: float) -> Spellings:
    """Return spellings with a payment per token. All spellings of a phrase have the same total discount."""
    spellings, discounts = written.spellings, [max(discount, 0.0) for discount in written.phrases.values()]
    never = np.array([written.phrases[name] == NEVER for name in written.phrases], dtype=bool)
    lengths, (free, bounded, initial) = _lengths(written), _column(written, "free", "bounded", "initial")
    places = np.arange(int(lengths.max(initial=0)))
    inside = places < lengths[:, None]
    tokens = np.zeros(inside.shape, dtype=np.int64)
    tokens[inside] = [token for spelling in spellings for token in spelling.tokens]
    earned = np.array([discounts[s.phrase] * s.length / (len(s.tokens) - s.free) for s in spellings])
    payments = np.repeat(earned[:, None], len(places), axis=1)
    if lm is not None and len(spellings):
        rows, until = torch.from_numpy(tokens).to(lm.device), torch.from_numpy(lengths).to(lm.device)
        after_nothing, from_start = (lm.score_tokens(rows, until, bos)[0].double().cpu().numpy() for bos in (False, True))
        scores = np.where(initial[:, None], from_start, after_nothing)
        payments += lm_weight * np.maximum(-math.log(lm.vocab_size) - scores, 0.0)
    payments[places < free[:, None]] = 0.0
    payments = payments.cumsum(1)
    bonuses = payments[np.arange(len(spellings)), lengths - 1] if len(spellings) else np.zeros(0)
    paid = Spellings(tokens[inside], lengths, payments[inside], bonuses, bounded.astype(bool), initial.astype(bool))
    return _never(paid, never[[spelling.phrase for spelling in spellings]] if spellings else np.zeros(0, bool))


def _lengths(written: Written) -> np.ndarray:
    return np.array([len(spelling.tokens) for spelling in written.spellings], dtype=np.int64)


def _column(written: Written, *names: str) -> np.ndarray:
    """Return integer attributes of the N spellings, int64 `[names, N]`. `names`: the names of the attributes."""
    return np.array([[getattr(spelling, name) for spelling in written.spellings] for name in names], dtype=np.int64)
