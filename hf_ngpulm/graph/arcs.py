"""The arcs of a language model that phrases run along."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..boosting import Phrases
from ..boosting.phrases import checked_phrases, write
from ..boosting.spelling import speller_of
from ..language_model import NGramLM

if TYPE_CHECKING:
    from .search import BiasedArcs

UNSEEN = ("backoff", "stop")
KEPT = 128  # contexts whose arcs are kept


@dataclass(frozen=True)
class PhraseArcs:
    """Arcs of a language model with discounts: what a `GraphDecoder` makes of phrases. Made by `GraphDecoder.context`.

    Args:
        lm: whose arcs they are.
        states, tokens: int32 `[N]`, in ascending order, the states that they leave and what they read. Each token has one arc
            in each state, though it may be that of a shorter context.
        discounts: float32 `[N]`, what each adds, there and in all states of longer contexts. (Those by which phrases begin,
            at the root, add the less the likelier all of them are together.)
        phrases: a dictionary from phrases to their discounts.
        seen: a dictionary from phrases to how many of their tokens follow the ones before them in the LM's own n-grams (of the
            first: as a unigram). Fewer than the phrase has: the rest is reached by backing off, or not at all.
        left_out: a dictionary from phrases that can't be written to what in them the tokenizer doesn't know.
        searched: what the search looks them up in, with the states' numbers less the root's; see
            `hf_ngpulm.graph.search.BiasedArcs`. Arcs are left out there that the same token's of a shorter context stands for.
    """

    lm: NGramLM = field(repr=False)
    states: np.ndarray = field(repr=False)
    tokens: np.ndarray = field(repr=False)
    discounts: np.ndarray = field(repr=False)
    phrases: dict[str, float]
    seen: dict[str, int] = field(repr=False)
    left_out: dict[str, str]
    searched: SearchedArcs = field(repr=False)

    def __len__(self) -> int:
        return len(self.states)


class SearchedArcs(NamedTuple):
    """Columns of `hf_ngpulm.graph.search.BiasedArcs` for one context."""

    states: np.ndarray
    spans: np.ndarray
    filters: np.ndarray
    tokens: np.ndarray
    discounts: np.ndarray


class ContextArcs:
    """Finds the arcs of phrases, and keeps those found last: phrases that come again cost nothing.

    Args:
        tokenizer: the ASR model's.
        unseen: "backoff" or "stop", see `GraphDecoder`.
    """

    def __init__(self, tokenizer: Any, unseen: str) -> None:
        self.tokenizer = tokenizer
        self.unseen = unseen
        self._kept: OrderedDict[Any, PhraseArcs] = OrderedDict()
        self._arrays: dict[int, tuple[np.ndarray, ...]] = {}

    def of(self, phrases: Phrases, lm: NGramLM, discount: float) -> PhraseArcs:
        """The arcs of some phrases.

        Args:
            discount: of phrases without one of their own (natural log).

        Raises:
            ValueError: an empty phrase, a discount that isn't a finite number of at least 0.
        """
        # Texts alone are their own key; what else there may be is looked through first.
        texts = tuple(phrases) if isinstance(phrases, list | tuple) and all(type(phrase) is str for phrase in phrases) else None
        checked = None if texts is not None else checked_discounts(phrases, discount)
        key = (id(lm), discount, texts) if checked is None else (id(lm), *checked.items())
        if key not in self._kept:
            checked = checked_discounts(phrases, discount) if checked is None else checked
            if id(lm) not in self._arrays:
                t = lm.tensors
                of_lm = (t.arc_offsets, t.arc_tokens, t.arc_targets, t.backoff_states)
                self._arrays[id(lm)] = tuple(part.cpu().numpy() for part in of_lm)
            self._kept[key] = _phrase_arcs(checked, lm, self._arrays[id(lm)], self.tokenizer, self.unseen == "backoff")
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def checked_discounts(phrases: Phrases, discount: float) -> dict[str, float]:
    """Phrases and their discounts, which are at least 0."""
    checked = checked_phrases(phrases, discount)
    below = next((name for name, own in checked.items() if own < 0), None)
    if below is not None:
        raise ValueError(f"a discount should be at least 0, that of {below!r} is {checked[below]}")
    return checked


def _phrase_arcs(
    phrases: dict[str, float], lm: NGramLM, arrays: tuple[np.ndarray, ...], tokenizer: Any, backs_off: bool
) -> PhraseArcs:
    from .following import follow, needed, owners_of  # compiled loops: they aren't loaded before they are needed

    speller = speller_of(tokenizer, lm.vocab_size)
    # In vocabularies with a word delimiter phrases begin behind one; it isn't part of them.
    written = write(phrases, 0.0, speller, speller.delimiter is not None, "auto", 1, None, False)
    spellings = written.spellings
    root = int(lm.roots[0])
    states, tokens, which, seen = follow(arrays, root, int(lm.starts[0]), spellings, backs_off)
    of_phrases = np.array(list(phrases.values()), dtype=np.float32)
    of_spellings = np.array([spelling.phrase for spelling in spellings], dtype=np.int64)
    arcs, at = np.unique(states * lm.vocab_size + tokens, return_inverse=True)
    states, tokens = arcs // lm.vocab_size, arcs % lm.vocab_size
    discounts = np.zeros(len(arcs), dtype=np.float32)
    np.maximum.at(discounts, at, of_phrases[of_spellings[which]])
    at_root = states == root
    discounts[at_root] = _of_beginnings(lm, tokens[at_root], discounts[at_root])
    names = list(phrases)
    counts: dict[str, int] = {}
    for spelling, count in zip(spellings, seen.tolist()):
        name = names[spelling.phrase]
        counts[name] = max(count, counts.get(name, 0))
    kept = needed(states, tokens, discounts, arrays[3])
    owners = owners_of(states[kept], arrays[3], root)
    searched = SearchedArcs(*owners, tokens[kept].astype(np.int32), discounts[kept])
    columns = (states.astype(np.int32), tokens.astype(np.int32), discounts)
    return PhraseArcs(lm, *columns, phrases, counts, written.left_out, searched)


def _of_beginnings(lm: NGramLM, tokens: np.ndarray, discounts: np.ndarray) -> np.ndarray:
    """The discounts of the arcs that leave the root, by which a phrase may begin anywhere.

    So many phrases may begin in so many ways that a beginning says nothing. Discounted, the unigrams' probabilities would sum
    to Z = 1 + sum p(t) (exp(d(t)) - 1); divided by it they sum to 1 as before: log Z is taken from each discount.
    """
    roots = lm.roots[:1].expand(len(tokens)).contiguous()
    scores, _ = lm.step(roots, torch.from_numpy(tokens).to(roots.device))
    more = (scores.exp().cpu().numpy().astype(np.float64) * np.expm1(discounts.astype(np.float64))).sum()
    return np.maximum(discounts - np.log1p(more), 0.0).astype(np.float32)


def biased_arcs(contexts: Sequence[PhraseArcs | None], roots: Sequence[int], device: torch.device) -> BiasedArcs:
    """The lists of arcs of a batch.

    Args:
        contexts: of each row; rows with the same one share a list.
        roots: of each row's automaton in the tensors that are searched.
    """
    from .search import BiasedArcs

    different = {id(context): context.searched for context in contexts if context is not None}
    numbers = {key: number for number, key in enumerate(different, 1)}  # 0: none
    which = np.array([0 if context is None else numbers[id(context)] for context in contexts], dtype=np.int64)
    ints, floats = np.zeros(0, np.int32), np.zeros(0, np.float32)
    columns = [SearchedArcs(ints, np.zeros((0, 3), np.int32), np.zeros(0, np.uint8), ints, floats), *different.values()]
    states, spans, filters, tokens, discounts = (
        torch.from_numpy(np.concatenate(column)).to(device) for column in zip(*columns)
    )
    sizes = [(len(c.tokens), len(c.states), len(c.filters)) for c in columns]
    ends = np.cumsum([(0, 0, 0), *sizes], axis=0, dtype=np.int32)
    ranges = torch.from_numpy(np.stack([ends[which], ends[which + 1]], 2)).to(device)
    of_rows = torch.tensor(roots, dtype=torch.int32, device=device)
    return BiasedArcs(ranges, states, spans, filters, tokens, discounts, of_rows)
