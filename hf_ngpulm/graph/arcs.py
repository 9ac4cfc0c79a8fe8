"""The arcs of a language model that phrases run along."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from ..boosting import Booster, Phrases
from ..boosting.contexts import is_per_row
from ..boosting.phrases import checked_phrases, write
from ..boosting.spelling import Spelling, speller_of
from ..language_model import NGramLM

UNSEEN = ("backoff", "stop")
KEPT = 128  # contexts whose arcs are kept


@dataclass(frozen=True)
class PhraseArcs:
    """Arcs of a language model with discounts: what a `GraphDecoder` makes of phrases. Made by `GraphDecoder.context`.

    Args:
        lm: whose arcs they are.
        arcs, tokens: int32 `[N]`, ascending, and their tokens.
        discounts: float32 `[N]`, what each adds where it is taken.
        longer: float32 `[N]`, what the same token adds where it takes an arc of a longer context instead; 0 for nothing.
        table: of the states that they leave, see `hf_ngpulm.graph.search.BiasedArcs`.
        phrases: a dictionary from phrases to their discounts.
        seen: a dictionary from phrases to how many of their tokens follow the ones before them in the LM's own n-grams (of the
            first: as a unigram). Fewer than the phrase has: the rest is reached by backing off, or not at all.
        left_out: a dictionary from phrases that can't be written to what in them the tokenizer doesn't know.
    """

    lm: NGramLM = field(repr=False)
    arcs: np.ndarray = field(repr=False)
    tokens: np.ndarray = field(repr=False)
    discounts: np.ndarray = field(repr=False)
    longer: np.ndarray = field(repr=False)
    table: np.ndarray = field(repr=False)
    phrases: dict[str, float]
    seen: dict[str, int] = field(repr=False)
    left_out: dict[str, str]

    def __len__(self) -> int:
        return len(self.arcs)


class ContextArcs:
    """Finds the arcs of phrases, and keeps those found last: phrases that come again cost nothing.

    Args:
        tokenizer: the ASR model's.
        discount: of phrases without one of their own (natural log).
        unseen: "backoff" or "stop", see `GraphDecoder`.
    """

    def __init__(self, tokenizer: Any, discount: float, unseen: str) -> None:
        self.tokenizer = tokenizer
        self.discount = discount
        self.unseen = unseen
        self._kept: OrderedDict[Any, PhraseArcs] = OrderedDict()
        self._arrays: dict[int, tuple[np.ndarray, ...]] = {}

    def of(self, phrases: Phrases | PhraseArcs, lm: NGramLM) -> PhraseArcs:
        """The arcs of some phrases.

        Raises:
            TypeError: a `PhraseBooster`, which isn't found on arcs.
            ValueError: an empty phrase, a discount that isn't a finite number, arcs of another language model.
        """
        if isinstance(phrases, PhraseArcs):
            if phrases.lm is not lm:
                raise ValueError("these phrases' arcs belong to another language model; make them of the phrases once more")
            return phrases
        if isinstance(phrases, Booster):
            raise TypeError(
                f"a {type(phrases).__name__} is an automaton beside the language model's; a graph has arcs: pass the phrases "
                "themselves, or decode with a CTCDecoder"
            )
        checked = checked_phrases(phrases, self.discount)
        below = next((name for name, discount in checked.items() if discount < 0), None)
        if below is not None:
            raise ValueError(f"a discount should be at least 0, that of {below!r} is {checked[below]}")
        key = (id(lm), *checked.items())
        if key not in self._kept:
            if id(lm) not in self._arrays:
                t = lm.tensors
                of_lm = (t.arc_offsets, t.arc_tokens, t.arc_targets, t.backoff_states)
                self._arrays[id(lm)] = tuple(part.cpu().numpy() for part in of_lm)
            self._kept[key] = _phrase_arcs(checked, lm, self._arrays[id(lm)], self.tokenizer, self.unseen == "backoff")
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def of_rows(self, phrases: Any, models: Sequence[NGramLM | None]) -> list[PhraseArcs | None]:
        """The arcs of each row of a batch.

        Args:
            phrases: one context for all rows, or a list with one (or None) for each.
            models: the language model of each row.
        """
        contexts = list(phrases) if self.is_per_row(phrases) else [phrases] * len(models)
        if len(contexts) != len(models):
            raise ValueError(f"phrases lists {len(contexts)} contexts, the batch has {len(models)} rows")
        if not isinstance(phrases, PhraseArcs | Sequence | Mapping | None):  # may be read only once
            contexts = [checked_phrases(phrases, self.discount)] * len(models)
        return [self.of_row(context, model, row) for row, (context, model) in enumerate(zip(contexts, models))]

    def is_per_row(self, phrases: Any) -> bool:
        """Whether this is a list of contexts, not of phrases."""
        return is_per_row(phrases) or (isinstance(phrases, Sequence) and any(isinstance(p, PhraseArcs) for p in phrases))

    def of_row(self, context: Any, model: NGramLM | None, row: int) -> PhraseArcs | None:
        if context is None:
            return None
        if model is None:
            raise ValueError(f"row {row} has phrases, but no language model on whose arcs they could be found")
        return self.of(context, model)


def _phrase_arcs(
    phrases: dict[str, float], lm: NGramLM, arrays: tuple[np.ndarray, ...], tokenizer: Any, backs_off: bool
) -> PhraseArcs:
    from .following import follow, table_of_states  # compiled loops: they aren't loaded before they are needed

    speller = speller_of(tokenizer, lm.vocab_size)
    # In vocabularies with a word delimiter phrases begin behind one; it isn't part of them.
    written = write(phrases, 0.0, speller, speller.delimiter is not None, "auto", 1, None, False)
    spellings = written.spellings
    arcs, which, is_longer, seen = follow(arrays, int(lm.roots[0]), int(lm.starts[0]), spellings, backs_off)
    discounts = np.array(list(phrases.values()), dtype=np.float32)[_phrases_of(spellings)[which]]
    unique, at = np.unique(arcs, return_inverse=True)
    highest, longer = (np.zeros(len(unique), dtype=np.float32) for _ in range(2))
    np.maximum.at(highest, at, discounts)
    np.maximum.at(longer, at, np.where(is_longer, discounts, 0).astype(np.float32))
    names = list(phrases)
    counts: dict[str, int] = {}
    for spelling, count in zip(spellings, seen.tolist()):
        name = names[spelling.phrase]
        counts[name] = max(count, counts.get(name, 0))
    table = table_of_states(unique, longer, arrays[0], arrays[3], int(lm.roots[0]))
    tokens = arrays[1][unique].astype(np.int32)
    return PhraseArcs(lm, unique.astype(np.int32), tokens, highest, longer, table, phrases, counts, written.left_out)


def _phrases_of(spellings: Sequence[Spelling]) -> np.ndarray:
    return np.array([spelling.phrase for spelling in spellings], dtype=np.int64)


def biased_arcs(contexts: Sequence[PhraseArcs | None], places: Sequence[tuple[int, int]], device: torch.device) -> Any:
    """The lists of arcs of a batch.

    Args:
        contexts: of each row; rows with the same one (and the same place) share a list.
        places: of each row's automaton in the tensors that are searched: its root, and its first arc.
    """
    from .search import BiasedArcs

    numbers: dict[tuple[int, int], int] = {}
    different: list[tuple[PhraseArcs, int]] = []
    which = np.zeros(len(contexts), dtype=np.int64)  # 0: none
    for row, (context, (_, first_arc)) in enumerate(zip(contexts, places)):
        if context is not None:
            key = (id(context), first_arc)
            if key not in numbers:
                different.append((context, first_arc))
                numbers[key] = len(different)
            which[row] = numbers[key]
    ends, table_ends = (
        [0, 0, *accumulate(map(len, parts))] for parts in ([c for c, _ in different], [c.table for c, _ in different])
    )
    columns = (
        [np.zeros(0, np.int32), *(context.arcs + np.int32(first_arc) for context, first_arc in different)],
        [np.zeros(0, np.int32), *(context.tokens for context, _ in different)],
        [np.zeros(0, np.float32), *(context.discounts for context, _ in different)],
        [np.zeros(0, np.float32), *(context.longer for context, _ in different)],
        [np.zeros((0, 5), np.int32), *(context.table for context, _ in different)],
    )
    arcs, tokens, discounts, longer, table = (torch.from_numpy(np.concatenate(column)).to(device) for column in columns)
    ranges, table_ranges = (
        torch.from_numpy(np.stack([np.array(e)[which], np.array(e)[which + 1]], 1).astype(np.int32)).to(device)
        for e in (ends, table_ends)
    )
    roots = torch.tensor([root for root, _ in places], dtype=torch.int32, device=device)
    return BiasedArcs(ranges, arcs, tokens, discounts, longer, table_ranges, table, roots)
