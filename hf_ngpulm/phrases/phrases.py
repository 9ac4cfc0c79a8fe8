"""Define the base class of all boosters, and spell their phrases with a tokenizer."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from ..automaton import BackoffAutomaton
from ..common.checks import WEIGHT, check
from ..common.collector import collector_paused
from ..text.normalisation import normaliser
from ..text.spelling import Speller, Spelling
from ..text.vocabulary import Vocabulary, check_tokenizer
from .phrase import NEVER, OR_NEVER, Forms, Phrase

# States back off at most twice per token, and an automaton limits backoff chains.
MOST_TOKENS = 500
MOST_TOKENIZATIONS = 100
_SURROGATE = re.compile("[\ud800-\udfff]")

Phrases = Iterable["str | tuple[str, float] | Phrase"] | Mapping[str, float]
"""Texts, pairs of a text and a weight, `Phrase` objects, or a mapping from texts to weights."""


class Written(NamedTuple):
    """Hold phrases and their spellings in tokens."""

    phrases: dict[str, float]  # from texts to weights
    spellings: list[Spelling]  # all spellings, which refer to phrases by index
    left_out: dict[str, str]  # keys: phrases that can't be written; values: the unknown characters of each phrase
    forms: Forms = Forms()


def check_factor(booster: Booster | None, phrase_weight: float) -> None:
    """Raise ValueError if a negative factor would favour phrases that are never written."""
    if phrase_weight < 0 and booster is not None and booster.never_writes:
        raise ValueError(
            f"phrase_weight={phrase_weight} would favour the phrases that are never written; pass a number of at least 0"
        )


class Booster(BackoffAutomaton):
    """Score tokens with an automaton of phrases.

    Attributes:
        phrases, left_out: see `Written`.
        never_writes: whether any phrase is never written.
        forms: the texts to write for `Phrase` objects; empty without such objects.
        vocabulary: the tokenizer's vocabulary.
    """

    def __init__(self, built: BackoffAutomaton, written: Written, vocabulary: Vocabulary, engine: str) -> None:
        super().__init__(built.tensors, built.vocab_size, built.context_length, built.roots, built.starts, engine)
        self.phrases = written.phrases
        self.left_out = written.left_out
        self.never_writes = NEVER in written.phrases.values()
        self.forms = written.forms
        self.vocabulary = vocabulary

    @property
    def is_empty(self) -> bool:
        """Return whether there are no phrases, so that a search needs no booster."""
        return not self.phrases

    @property
    def pieces(self) -> tuple[str | None, ...] | None:
        """Return the piece of each token id."""
        return self.vocabulary.pieces

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise TokenizerMismatchError if a tokenizer has other pieces for its ids than the tokenizer of the phrases."""
        check_tokenizer(
            self.vocab_size, self.vocabulary.fingerprint, self.vocabulary.tokenizer_id, tokenizer, "the phrase booster"
        )

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the automaton. Boosters with the same fingerprint give the same scores."""
        digest = hashlib.sha256()
        for tensor in (*self.tensors, self.roots, self.starts):
            data = tensor.cpu().numpy().tobytes()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def extra_repr(self) -> str:
        return f"phrases={len(self.phrases)}, {super().extra_repr()}"


def write(
    phrases: Phrases,
    weight: float,
    speller: Speller,
    whole_words: bool,
    case: str,
    tokenizations: int,
    normalise: Any,
    strict: bool,
) -> Written:
    """Return phrases with their spellings. The arguments are as for `hf_ngpulm.PhraseBooster`."""
    phrases = phrases if isinstance(phrases, str | Mapping) else list(phrases)
    checked = checked_phrases(phrases, check("weight", weight, WEIGHT))
    clean = normaliser(normalise, speller.tokenizer)
    texts = [unicodedata.normalize("NFC", clean(phrase)) for phrase in checked]
    names = list(checked)
    with collector_paused():
        spellings, unknown = speller.spell(texts, whole_words, case, tokenizations)
    never = [n for n, name in enumerate(names) if checked[name] == NEVER and n not in unknown]
    # A phrase that is never written needs all cases of letters, and as many tokenizations as possible.
    others, _ = speller.spell([texts[n] for n in never], whole_words, "any", MOST_TOKENIZATIONS)
    spellings += [spelling._replace(phrase=never[spelling.phrase]) for spelling in others]
    left_out = {names[n]: letters for n, letters in unknown.items()}
    if left_out:
        few = ", ".join(f"{name!r} ({letters!r})" for name, letters in list(left_out.items())[:5])
        message = f"the tokenizer can't write {len(left_out)} of {len(names)} phrases (unknown characters in brackets): {few}"
        if strict:
            raise ValueError(f"{message}; leave them out, or write them differently (see case= and normalise=)")
        warnings.warn(message, stacklevel=3)
    longest = max(spellings, key=lambda spelling: len(spelling.tokens), default=None)
    if longest is not None and len(longest.tokens) > MOST_TOKENS:
        raise ValueError(
            f"a phrase may have at most {MOST_TOKENS} tokens, but {names[longest.phrase][:60]!r}... has {len(longest.tokens)}"
        )
    return Written(checked, spellings, left_out, Forms.of(phrases))


def checked_phrases(phrases: Phrases, weight: float) -> dict[str, float]:
    """Return a dictionary from phrases and aliases to weights. `weight`: weight of phrases without their own weight. A text
    that occurs several times gets its largest weight, or -inf if one of its weights is -inf.
    """
    if isinstance(phrases, str):
        raise TypeError(f"phrases should be a list of texts, got the text {phrases!r}; write [{phrases!r}]")
    weights: dict[str, float] = {}
    items: Iterable[Any] = phrases.items() if isinstance(phrases, Mapping) else phrases
    for number, item in enumerate(items):
        if isinstance(item, str) and item not in weights and item.isascii() and item.strip():  # nearly all of a long list
            weights[item] = weight
            continue
        if isinstance(item, Phrase):
            if item.threshold is not None:
                raise ValueError(
                    f"the threshold of {item.text!r} needs a second look: pass false_alarms_per_hour= to the pipeline, or use "
                    "a PhraseDecoder; otherwise leave it out"
                )
            own = weight if item.weight is None else item.weight
            texts = [item.text, *item.aliases]
        else:
            text, own = (item, weight) if isinstance(item, str) else _pair(item, number)
            texts = [text]
        for text in texts:
            if not text.strip():
                raise ValueError(f"phrase {number} is empty: {text!r}; leave it out")
            if not text.isascii() and _SURROGATE.search(text):
                raise ValueError(f"phrase {number} has half of a surrogate pair in it, which isn't text: {text!a}; correct it")
            before = weights.get(text, own)
            weights[text] = NEVER if NEVER in (own, before) else max(own, before)
    return weights


def _pair(item: Any, number: int) -> tuple[str, float]:
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
        raise TypeError(f"phrase {number} should be a text, a pair of a text and a weight, or a Phrase, got {item!r}")
    return item[0], check(f"the weight of phrase {number} ({item[0]!r})", item[1], OR_NEVER)
