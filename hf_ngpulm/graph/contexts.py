"""What a graph decoder is given as `phrases`: one context for all rows of a batch, or one for each."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..boosting import Booster
from ..boosting.contexts import Contexts, is_per_row
from ..language_model import NGramLM
from .arcs import KEPT, ContextArcs, PhraseArcs, checked_discounts
from .booster import GraphBooster

INCOMPLETE = ("taken_back", "kept")
Context: TypeAlias = "PhraseArcs | Booster | None"


class GraphContexts:
    """Makes of phrases what a search follows: an automaton beside the language model's, or arcs of that with discounts.

    Args:
        boosters: what sees to it that automata fit the decoder.
        arcs: finds the arcs; None if what isn't completed is taken back.
        discount: of phrases without one of their own (natural log).
    """

    def __init__(self, boosters: Contexts, arcs: ContextArcs | None, discount: float) -> None:
        self.boosters = boosters
        self.arcs = arcs
        self.discount = discount
        self._kept: OrderedDict[Any, tuple[NGramLM | None, GraphBooster]] = OrderedDict()

    def with_discount(self, discount: float) -> GraphContexts:
        """The same for phrases with another discount; what is kept is shared.

        Raises:
            ValueError: it is below 0.
        """
        if discount < 0:
            raise ValueError(f"discount should be at least 0, got {discount!r}")
        selected = copy.copy(self)
        selected.discount = discount
        return selected

    def of(self, context: Any, lm: NGramLM | None, lm_weight: float, where: str = "this") -> Context:
        """What is followed for one context.

        Args:
            lm, lm_weight: the language model that it stands beside, or whose arcs they are, and its weight.
            where: what has the context, for messages.

        Raises:
            ValueError: an empty phrase, a discount that isn't a finite number of at least 0, arcs of another language model, or
                none on which arcs could be found.
            TokenizerMismatchError: a booster that was made for another tokenizer.
        """
        if context is None:
            return None
        if isinstance(context, Booster):
            return self.boosters.booster(context)
        if self.arcs is None and not isinstance(context, PhraseArcs):
            return self._booster(checked_discounts(context, self.discount), lm, lm_weight)
        if lm is None:
            raise ValueError(f"{where} has phrases, but no language model on whose arcs they could be found")
        if isinstance(context, PhraseArcs) and context.lm is not lm:
            raise ValueError("these phrases' arcs belong to another language model; make them of the phrases once more")
        if isinstance(context, PhraseArcs):
            return context
        assert self.arcs is not None
        return self.arcs.of(context, lm, self.discount)

    def _booster(self, phrases: dict[str, float], lm: NGramLM | None, lm_weight: float) -> GraphBooster:
        key = (id(lm), lm_weight, *phrases.items())
        if key not in self._kept:
            # With the model itself, so that none that comes after it has its identity.
            self._kept[key] = lm, GraphBooster(phrases, self.boosters.tokenizer, lm, lm_weight)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key][1]

    def of_rows(self, phrases: Any, models: Sequence[NGramLM | None], lm_weights: Sequence[float]) -> list[Context]:
        """What is followed for each row of a batch.

        Args:
            phrases: one context for all rows, or a list with one (or None) for each.
            models, lm_weights: the language model of each row, and its weight.
        """
        contexts = list(phrases) if self.is_per_row(phrases) else [phrases] * len(models)
        if len(contexts) != len(models):
            raise ValueError(f"phrases lists {len(contexts)} contexts, the batch has {len(models)} rows")
        if not isinstance(phrases, PhraseArcs | Booster | Sequence | Mapping | None):  # may be read only once
            contexts = [checked_discounts(phrases, self.discount)] * len(models)
        rows = enumerate(zip(contexts, models, lm_weights, strict=True))
        return [self.of(context, model, weight, f"row {row}") for row, (context, model, weight) in rows]

    def is_per_row(self, phrases: Any) -> bool:
        """Whether this is a list of contexts, not of phrases."""
        return is_per_row(phrases) or (isinstance(phrases, Sequence) and any(isinstance(p, PhraseArcs) for p in phrases))
