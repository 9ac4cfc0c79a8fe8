"""What a graph decoder is given as `phrases`: one context for all rows of a batch, or one for each."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.pickling import WithoutCaches
from ..language_model.model import NGramLM
from . import Booster
from .contexts import LOCK, Contexts, is_per_row
from .graph_booster import GraphBooster
from .phrases import Phrases, checked_phrases

KEPT = 128  # contexts


class GraphContexts(WithoutCaches, caches={"_kept": OrderedDict}):
    """Makes of phrases what a search follows: an automaton beside the language model's.

    Args:
        boosters: what sees to it that automata fit the decoder.
        discount: of phrases without one of their own (natural log).
    """

    def __init__(self, boosters: Contexts, discount: float) -> None:
        self.boosters = boosters
        self.discount = discount
        self._kept: OrderedDict[Any, tuple[NGramLM | None, GraphBooster]] = OrderedDict()

    def with_discount(self, discount: float) -> GraphContexts:
        """Return the same for phrases with another discount; what is kept is shared.

        Raises:
            ValueError: it is below 0.
        """
        if discount < 0:
            raise ValueError(f"discount should be at least 0, got {discount!r}")
        selected = copy.copy(self)
        selected.discount = discount
        return selected

    def of(self, context: Any, lm: NGramLM | None, lm_weight: float) -> Booster | None:
        """Return what is followed for one context.

        Args:
            lm, lm_weight: the language model that it stands beside, and its weight.

        Raises:
            ValueError: an empty phrase, or a discount that isn't a finite number of at least 0.
            TokenizerMismatchError: a booster that was made for another tokenizer.
        """
        if context is None:
            return None
        if isinstance(context, Booster):
            return self.boosters.booster(context)
        phrases = checked_discounts(context, self.discount)
        key = (id(lm), lm_weight, *phrases.items())
        with LOCK:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]
        made = GraphBooster(phrases, self.boosters.tokenizer, lm, lm_weight)
        with LOCK:
            # With the model itself, so that none that comes after it has its identity.
            _, kept = self._kept.setdefault(key, (lm, made))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return kept

    def of_rows(self, phrases: Any, models: Sequence[NGramLM | None], lm_weights: Sequence[float]) -> list[Booster | None]:
        """Return what is followed for each row of a batch.

        Args:
            phrases: one context for all rows, or a list with one (or None) for each.
            models, lm_weights: the language model of each row, and its weight.
        """
        contexts = list(phrases) if is_per_row(phrases) else [phrases] * len(models)
        if len(contexts) != len(models):
            raise ValueError(f"phrases lists {len(contexts)} contexts, the batch has {len(models)} rows")
        if not isinstance(phrases, Booster | Sequence | Mapping | None):  # may be read only once
            contexts = [checked_discounts(phrases, self.discount)] * len(models)
        return [self.of(*row) for row in zip(contexts, models, lm_weights, strict=True)]


def checked_discounts(phrases: Phrases, discount: float) -> dict[str, float]:
    """Return phrases and their discounts.

    Raises:
        ValueError: an empty phrase, or a discount that isn't a finite number of at least 0.
    """
    checked = checked_phrases(phrases, discount)
    below = next((name for name, own in checked.items() if own < 0), None)
    if below is not None:
        raise ValueError(f"a discount should be at least 0, that of {below!r} is {checked[below]}")
    return checked
