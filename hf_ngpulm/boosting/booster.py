"""PhraseBooster: phrases that a speech recogniser should recognise, as an automaton that decoders follow beside an LM's."""

from __future__ import annotations

import hashlib
import unicodedata
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from ..arguments import check_number, one_of, whole
from ..automaton import BackoffAutomaton
from ..texts.normalisation import normaliser
from ..vocabulary import check_tokenizer
from .automaton import Spellings, phrase_automaton
from .spelling import CASES, Spelling, speller_of

# Vocabularies of at most so many tokens have pieces so short that a phrase often is the beginning of another word.
SMALL_VOCABULARY = 8192
# States back off at most twice for each token, and an automaton's chains may not be longer than this allows.
MOST_TOKENS = 500

Phrases = Iterable["str | tuple[str, float]"] | Mapping[str, float]


class PhraseBooster(BackoffAutomaton):
    """Phrases (names, terms) that shall be recognised, each with the bonus that it earns in a transcript.

        booster = PhraseBooster(["ryanair one sierra golf", ("NVIDIA", 2.0)], tokenizer=processor)
        CTCDecoder(processor, phrases=booster)

    It answers the same queries as an `NGramLM`. A token that goes on with a phrase scores its share of the bonus at once, so
    that greedy search can follow; where the phrase then isn't completed, all is taken back (Aho and Corasick's automaton). At
    each place the longest phrase counts, and overlapping ones count each; see `hf_ngpulm.boosting.reference`.

    Args:
        phrases: texts, or pairs of a text and a weight, or a mapping from texts to weights.
        tokenizer: the ASR model's tokenizer, or a processor that has it.
        weight: of phrases without one: the bonus (natural log) for each token, or for each phrase, see `weight_per`. Negative
            weights keep phrases from being recognised.
        weight_per: "token": a phrase earns its weight times the number of its tokens; or "phrase".
        growth: how much more later tokens earn than the first one: the d-th earns 1 + growth * ln(d) times as much (with
            `weight_per="phrase"`: of the same whole).
        end_bonus: what completing a phrase earns besides, in weights.
        whole_words: whether a phrase must end where a word ends (or, in vocabularies with a word delimiter, also begin where
            one begins); not where it ends in a script without blanks. By default so in vocabularies of up to 8,192 tokens.
        case: "auto": phrases as they are, or else in small letters or in capitals, if the tokenizer can write that;
            "keep": as they are; "any": in all of these and with capitals at the beginning of words.
        tokenizations: token sequences for each way to write a phrase: the tokenizer's own one and those with the fewest tokens.
        normalise: what is done to phrases first, as for `NGramLM.train`; Unicode is always composed (NFC).
        strict: raise an error for a phrase that the tokenizer can't write, instead of a warning.
        vocab_size: number of token ids; that of a language model that is used beside it.
        engine: "auto" (by device), "reference", "cpu" or "gpu".

    Attributes:
        phrases: a dictionary from texts, as they were given, to weights.
        left_out: a dictionary from phrases that can't be written to what in them the tokenizer doesn't know.

    Raises:
        ValueError: an empty phrase, a weight that isn't a finite number, a phrase of more than 500 tokens; with `strict`, one
            that can't be written.
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
        checked = checked_phrases(phrases, check_number(weight, "weight"))
        one_of("weight_per", weight_per, ("token", "phrase"))
        one_of("case", case, CASES)
        whole("tokenizations", tokenizations, 100)
        for name, value in (("growth", growth), ("end_bonus", end_bonus)):
            if check_number(value, name) < 0:
                raise ValueError(f"{name} should be at least 0, got {value!r}")
        speller = speller_of(tokenizer, vocab_size)
        if whole_words is None:
            whole_words = speller.has_words and speller.vocabulary.size <= SMALL_VOCABULARY
        elif whole_words and not speller.has_words:
            raise ValueError("whole_words=True: the tokenizer has no marks of where words begin; leave it out")
        clean = normaliser(normalise, speller.tokenizer)
        texts = [unicodedata.normalize("NFC", clean(phrase)) for phrase in checked]
        weights = np.array(list(checked.values()), dtype=np.float64)
        spellings, unknown = speller.spell(texts, whole_words, case, tokenizations)
        names = list(checked)
        left_out = {names[n]: what for n, what in unknown.items()}
        if left_out:
            few = ", ".join(f"{name!r} ({what!r})" for name, what in list(left_out.items())[:5])
            message = f"the tokenizer can't write {len(left_out)} of {len(names)} phrases (unknown to it in brackets): {few}"
            if strict:
                raise ValueError(f"{message}; leave them out, or write them differently (see case= and normalise=)")
            warnings.warn(message, stacklevel=2)
        longest = max(spellings, key=lambda spelling: len(spelling.tokens), default=None)
        if longest is not None and len(longest.tokens) > MOST_TOKENS:
            raise ValueError(
                f"a phrase may have {MOST_TOKENS} tokens, but {names[longest.phrase][:60]!r}... has {len(longest.tokens)}"
            )
        built = phrase_automaton(
            _with_bonuses(spellings, weights, weight_per, growth, end_bonus),
            speller.vocabulary.size,
            np.array(speller.begins_word, dtype=bool),
            speller.delimiter if whole_words else None,
        )
        super().__init__(built.tensors, built.vocab_size, built.context_length, built.roots, built.starts, engine)
        self.phrases = checked
        self.left_out = left_out
        self.vocabulary = speller.vocabulary

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse another tokenizer than the phrases were written with.

        Raises:
            TokenizerMismatchError: token ids stand for other pieces.
        """
        check_tokenizer(
            self.vocab_size, self.vocabulary.fingerprint, self.vocabulary.tokenizer_id, tokenizer, "the phrase booster"
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what the automaton consists of: two boosters with the same one score alike."""
        digest = hashlib.sha256()
        for tensor in (*self.tensors, self.roots, self.starts):
            data = tensor.cpu().numpy().tobytes()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def extra_repr(self) -> str:
        return f"phrases={len(self.phrases)}, {super().extra_repr()}"


def checked_phrases(phrases: Phrases, weight: float) -> dict[str, float]:
    """Phrases and their weights; of one that is given twice the larger weight."""
    if isinstance(phrases, str):
        raise TypeError(f"phrases should be a list of texts, got the text {phrases!r}; write [{phrases!r}]")
    found: dict[str, float] = {}
    items: Iterable[Any] = phrases.items() if isinstance(phrases, Mapping) else phrases
    for number, item in enumerate(items):
        text, own = (item, weight) if isinstance(item, str) else _pair(item, number)
        if not text.strip():
            raise ValueError(f"phrase {number} is empty: {text!r}; leave it out")
        found[text] = max(own, found.get(text, own))
    return found


def _pair(item: Any, number: int) -> tuple[str, float]:
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
        raise TypeError(f"phrase {number} should be a text or a pair of a text and a weight, got {item!r}")
    return item[0], check_number(item[1], f"the weight of phrase {number} ({item[0]!r})")


def _with_bonuses(
    spellings: list[Spelling], weights: np.ndarray, weight_per: str, growth: float, end_bonus: float
) -> Spellings:
    """What each spelling earns: as much as the tokenizer's own one of the phrase."""
    lengths = np.array([len(spelling.tokens) for spelling in spellings], dtype=np.int64)
    tokens = np.fromiter((token for spelling in spellings for token in spelling.tokens), np.int64, int(lengths.sum()))
    phrase, own_lengths, free = (np.array([spelling[column] for spelling in spellings], dtype=np.int64) for column in (0, 2, 3))
    longest = int(max(lengths.max(initial=0), own_lengths.max(initial=0)))
    # What the first so many tokens earn in weights.
    shares = np.concatenate([[0.0], np.cumsum(1 + growth * np.log(np.arange(1, longest + 1)))])
    units = shares[own_lengths] if weight_per == "token" else np.ones(len(spellings))
    without_end = weights[phrase] * units
    bonuses = without_end + weights[phrase] * end_bonus
    depths = np.arange(1, len(tokens) + 1) - np.repeat(np.cumsum(lengths) - lengths + free, lengths)
    payments = np.repeat(without_end / shares[lengths - free], lengths) * shares[np.maximum(depths, 0)]
    ends = np.cumsum(lengths) - 1
    payments[ends] = bonuses
    bounded, initial = (np.array([spelling[column] for spelling in spellings], dtype=bool) for column in (4, 5))
    return Spellings(tokens, lengths, payments, bonuses, bounded, initial)
