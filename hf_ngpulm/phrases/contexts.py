"""Make boosters from a decoder's argument `phrases=`: one booster for all rows of a batch, or one for each row.

A context is a booster, phrases to make a booster from, or None for a row without phrases.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

from ..common.checks import AT_LEAST_0, check
from ..common.pickling import WithoutCaches
from ..engines.locks import lock_across_forks
from ..language_model.model import NGramLM
from .booster import GraphBooster, PhraseBooster
from .phrase import NEVER, Forms, Phrase
from .phrases import Booster, Phrases, checked_phrases

Context: TypeAlias = Booster | Phrases | None
# Limits of a cache: number of boosters, total bytes, and number of boosters for graph search.
KEPT, MOST_BYTES, KEPT_IN_GRAPHS = 1024, 1 << 28, 128
# The lock is held while a cache is read or changed, never while a booster is made. All caches share it, because an object with
# its own lock can't be pickled.
LOCK = lock_across_forks()
BoosterT = TypeVar("BoosterT", bound=Booster)


class BoosterCache(Generic[BoosterT]):
    """Cache the latest boosters by key. Each entry also keeps an object alive that the booster needs. Thread-safe."""

    def __init__(self) -> None:
        self.made: OrderedDict[Any, tuple[BoosterT, Any]] = OrderedDict()
        self.nbytes = 0

    def found_or(self, key: Any, make: Callable[[], BoosterT], most: int, beside: Any = None) -> BoosterT:
        """Return the booster of a key; make the booster if it isn't cached. Then drop the oldest boosters while there are more
        than `most` boosters or `MOST_BYTES` bytes. `beside`: an object that the entry keeps alive.
        """
        with LOCK:
            if key in self.made:
                self.made.move_to_end(key)
                return self.made[key][0]
        made = make()
        with LOCK:
            if key not in self.made:  # another thread may have added it meanwhile
                self.made[key] = made, beside
                self.nbytes += made.nbytes
            while len(self.made) > 1 and (len(self.made) > most or self.nbytes > MOST_BYTES):
                self.nbytes -= self.made.popitem(last=False)[1][0].nbytes
            return self.made[key][0]


class Contexts(WithoutCaches, caches={"_accepted": WeakSet, "_kept": BoosterCache}):
    """Make boosters from phrases, and cache the latest boosters, so that repeated phrases take no time. Thread-safe.

    Args:
        tokenizer: the ASR model's tokenizer.
        vocab_size: number of token ids that boosters score; by default the size of the tokenizer's vocabulary.

    Attributes:
        most: largest number of boosters that are cached here and in pools.
    """

    def __init__(self, tokenizer: Any, vocab_size: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.most = KEPT
        self._accepted: WeakSet[Booster] = WeakSet()
        self._kept: BoosterCache[PhraseBooster] = BoosterCache()

    def booster(self, context: Context) -> Booster | None:
        """Return the booster of one context.

        Raises:
            ValueError: the phrases are invalid (see `PhraseBooster`), or a booster's number of token ids differs from the
                language model's.
            TokenizerMismatchError: the booster was made for another tokenizer.
        """
        if context is None:
            return None
        if isinstance(context, Booster):
            with LOCK:
                if context in self._accepted:
                    return context
            if self.vocab_size not in (None, context.vocab_size):
                raise ValueError(
                    f"the phrase booster scores {context.vocab_size} token ids, the language model {self.vocab_size}; "
                    f"make it with vocab_size={self.vocab_size}"
                )
            if self.tokenizer is not None:
                context.check_tokenizer(self.tokenizer)
        else:
            if self.tokenizer is None:
                raise ValueError("phrases need a tokenizer: pass it, or a PhraseBooster instead of texts")
            key = _key(context)
            context = self._kept.found_or(key, lambda: self._made(key), self.most)
        with LOCK:
            self._accepted.add(context)
        return context

    def _made(self, key: Any) -> PhraseBooster:
        return PhraseBooster(key, self.tokenizer, vocab_size=self.vocab_size)

    def prepare(self, context: Any) -> None:
        """Check a booster and compute its fingerprint in advance, so that no search has to wait for this."""
        if isinstance(context, Booster):
            self.booster(context)
            _ = context.fingerprint

    def of_rows(self, phrases: Any, batch_size: int) -> list[Booster | None]:
        """Return the booster of each row of a batch; None for a row without phrases.

        Args:
            phrases: one context for all rows, or a list with one context per row.

        Raises:
            ValueError: the list's length isn't the batch size.
            TypeError: the list mixes texts with contexts.
        """
        if not is_per_row(phrases):
            return [_of_some(self.booster(phrases))] * batch_size
        _check_rows(phrases, batch_size)
        return [_of_some(self.booster(context)) for context in phrases]


class GraphContexts(WithoutCaches, caches={"_kept": BoosterCache}):
    """Make the phrase automata that a graph search queries in addition to the language model's automaton.

    Args:
        boosters: the `Contexts` that check whether a booster fits the decoder.
        discount: discount of phrases without their own discount (natural log).
    """

    def __init__(self, boosters: Contexts, discount: float) -> None:
        self.boosters = boosters
        self.discount = discount
        self._kept: BoosterCache[GraphBooster] = BoosterCache()

    def with_discount(self, discount: float) -> GraphContexts:
        """Return a copy with another discount and the same cache. Raises ValueError if the discount isn't finite or below 0."""
        check("discount", discount, AT_LEAST_0)
        selected = copy.copy(self)
        selected.discount = discount
        return selected

    def of(self, context: Any, lm: NGramLM | None, lm_weight: float) -> Booster | None:
        """Return the automaton for one context.

        Args:
            lm, lm_weight: the row's language model and its weight.

        Raises:
            ValueError: a phrase is empty, or a discount isn't a finite number of at least 0.
            TokenizerMismatchError: the booster was made for another tokenizer.
        """
        if context is None or isinstance(context, Booster):
            return self.boosters.booster(context)
        context = context if isinstance(context, Mapping | str) else list(context)
        phrases, forms = checked_discounts(context, self.discount), Forms.of(context)
        key = (id(lm), lm_weight, *phrases.items(), *forms.spoken.items())
        # The entry keeps the model alive, so that no later model gets the same id.
        return self._kept.found_or(
            key,
            lambda: GraphBooster(phrases, self.boosters.tokenizer, lm, lm_weight, forms),
            min(KEPT_IN_GRAPHS, self.boosters.most),
            lm,
        )

    def of_rows(self, phrases: Any, models: Sequence[NGramLM | None], lm_weights: Sequence[float]) -> list[Booster | None]:
        """Return the automaton for each row of a batch; None for a row without phrases.

        Args:
            phrases: one context for all rows, or a list with one context (or None) per row.
            models, lm_weights: the language model of each row, and its weight.
        """
        contexts = [phrases] * len(models)
        if is_per_row(phrases):
            contexts = list(phrases)
            _check_rows(contexts, len(models))
        elif not isinstance(phrases, Booster | Sequence | Mapping | None):  # may be read only once
            contexts = [list(phrases)] * len(models)
        return [self.of(*row) for row in zip(contexts, models, lm_weights, strict=True)]


def checked_discounts(phrases: Phrases, discount: float) -> dict[str, float]:
    """Return the discount of each phrase. Raises ValueError if a phrase is empty, or a discount isn't finite or is below 0."""
    checked = checked_phrases(phrases, discount)
    below = next((name for name, own in checked.items() if NEVER < own < 0), None)
    if below is not None:
        raise ValueError(f"a discount should be at least 0, that of {below!r} is {checked[below]}")
    return checked


def _key(phrases: Phrases) -> tuple[Any, ...]:
    """Return phrases as a cache key, from which a booster can be made. Raises ValueError if the phrases are invalid."""
    if isinstance(phrases, Mapping | str):
        return tuple(checked_phrases(phrases, 1.0).items())
    listed = tuple(phrases)
    checked = checked_phrases(listed, 1.0)
    return listed if any(isinstance(item, Phrase) for item in listed) else tuple(checked.items())


def _check_rows(contexts: Sequence[Any], batch_size: int) -> None:
    if len(contexts) != batch_size:
        raise ValueError(f"phrases lists {len(contexts)} contexts, the batch has {batch_size} rows")
    texts = [context for context in contexts if isinstance(context, str)]
    if texts:
        raise TypeError(
            f"phrases contains lists or None, so each item should be one recording's list, but {texts[0]!r} is a text: write "
            f"[{texts[0]!r}], or pass a list of texts only, which all recordings share"
        )


def _of_some(booster: Booster | None) -> Booster | None:
    """Return the booster, or None if it has no phrases."""
    return None if booster is None or booster.is_empty else booster


def is_per_row(phrases: Any) -> bool:
    """Return whether `phrases` is a list of contexts, not of phrases."""
    if not isinstance(phrases, Sequence) or isinstance(phrases, str):
        return False
    return any(item is None or isinstance(item, Booster | list | Mapping) for item in phrases if not isinstance(item, str))


def has_thresholds(phrases: Any) -> bool:
    """Return whether any phrase of a context, or of a list of contexts, has a threshold."""
    if not isinstance(phrases, Sequence) or isinstance(phrases, str):
        return False
    contexts = phrases if is_per_row(phrases) else [phrases]
    lists = [context for context in contexts if isinstance(context, Sequence)]
    return any(isinstance(item, Phrase) and item.threshold is not None for context in lists for item in context)


def is_any(phrases: Any) -> bool:
    """Return whether `phrases` contains phrases or contexts. A list of contexts counts even if all contexts are empty, so that
    a row is searched in the same way in any batch.
    """
    return phrases is not None and not (isinstance(phrases, Sequence | Mapping) and not phrases)
