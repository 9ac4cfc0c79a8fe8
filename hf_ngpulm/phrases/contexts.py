"""What a decoder is given as `phrases`, as boosters: one for all rows of a batch, or one for each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from weakref import WeakSet

from ..common.pickling import WithoutCaches
from .booster import PhraseBooster
from .phrases import Booster, Phrases, checked_phrases

# One context: a booster, phrases to make one of, or None for a row without.
Context: TypeAlias = Booster | Phrases | None
# Boosters that are kept, and what they may take in all.
KEPT, MOST_BYTES = 1024, 1 << 28
# Held while what is kept is looked up, never while something is made. One for all: with its own an object can't be pickled.
LOCK = threading.Lock()


class Contexts(WithoutCaches, caches={"_accepted": WeakSet, "_kept": OrderedDict, "_bytes": int}):
    """Makes boosters of phrases, and keeps those made last: phrases that come again cost nothing. For use by several threads.

    Args:
        tokenizer: the ASR model's.
        vocab_size: token ids that boosters score; as many as the tokenizer has if left out.
    """

    def __init__(self, tokenizer: Any, vocab_size: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._accepted: WeakSet[Booster] = WeakSet()
        self._kept: OrderedDict[Any, Booster] = OrderedDict()
        self._bytes = 0

    def booster(self, context: Context) -> Booster | None:
        """Return the booster of one context.

        Raises:
            ValueError: see `PhraseBooster`; or one that scores another number of token ids than the language model.
            TokenizerMismatchError: a booster made for another tokenizer.
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
            with LOCK:
                self._accepted.add(context)
            return context
        if self.tokenizer is None:
            raise ValueError("phrases need the tokenizer to be written with: pass a PhraseBooster instead of texts")
        key = tuple(checked_phrases(context, 1.0).items())
        with LOCK:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = PhraseBooster(key, self.tokenizer, vocab_size=self.vocab_size)
        with LOCK:
            if key not in self._kept:  # another thread may have been faster
                self._kept[key] = made
                self._accepted.add(made)
                self._bytes += made.nbytes
            while len(self._kept) > 1 and (len(self._kept) > KEPT or self._bytes > MOST_BYTES):
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
            return self._kept[key]

    def prepare(self, context: Any) -> None:
        """Have a booster checked, and its contents summed up, before a search that can't wait is given it."""
        if isinstance(context, Booster):
            self.booster(context)
            _ = context.fingerprint

    def of_rows(self, phrases: Any, batch_size: int) -> list[Booster | None]:
        """Return the boosters of a batch.

        Args:
            phrases: one context for all rows, or a list with one for each.

        Raises:
            ValueError: a list for another number of rows.
            TypeError: a list of both texts and contexts.
        """
        if not is_per_row(phrases):
            return [_of_some(self.booster(phrases))] * batch_size
        if len(phrases) != batch_size:
            raise ValueError(f"phrases lists {len(phrases)} contexts, the batch has {batch_size} rows")
        texts = [context for context in phrases if isinstance(context, str)]
        if texts:
            raise TypeError(
                f"phrases has lists or None in it, so each item is what one recording gets; {texts[0]!r} is a text: write "
                f"[{texts[0]!r}] for a recording's list, or leave the others out of the list that all recordings share"
            )
        return [_of_some(self.booster(context)) for context in phrases]


def _of_some(booster: Booster | None) -> Booster | None:
    """Return a booster, or None for one of no phrases: a row with it is as one without."""
    return booster if booster is not None and booster.phrases else None


def is_per_row(phrases: Any) -> bool:
    """Return whether this is a list of contexts, not of phrases."""
    if not isinstance(phrases, Sequence) or isinstance(phrases, str):
        return False
    return any(item is None or isinstance(item, Booster | list | Mapping) for item in phrases)
