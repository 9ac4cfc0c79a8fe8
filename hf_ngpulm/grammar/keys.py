"""Sort the spellings of all arcs of an automaton of words. `hf_ngpulm.grammar.places` builds a trie from the result.

A free word is any word that a wildcard matches.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ..lexicon.trie import sorted_spellings
from .spelling import Sequences, SpelledSymbols
from .words import WordAutomaton

FEW = 8  # symbols with more spellings after a first token are in groups of their own
Arc: TypeAlias = "tuple[int, Any, float, int]"  # source, key of a table, weight, target


class Keys:
    """Sort the spellings of all arcs. The first token of each sorted spelling is the number of the spelling's group.

    A group has all spellings that follow a state and begin with the same token. Two states share a group if the group's
    spellings, weights and targets are the same in both states, and if the same state follows the free words of both states. A
    long list has its own groups. Otherwise, a word that begins like some entries of the list would repeat these entries in the
    word's group.

    Args:
        start: number of the copy of the start state. The copy comes directly after the automaton's last state.
        free_of: int64 `[start + 1]`, for each state the state after any number of free words, or -1.

    Attributes:
        offsets, tokens: the distinct spellings, as arguments of `build_trie`.
        weights: float64, the largest weight of each spelling.
        bounds, firsts, groups: state s has the groups `groups[bounds[s] : bounds[s + 1]]`. The same slice of `firsts` has the
            first token of each group, in ascending order; tokens may repeat.
        users: for each group, a state that uses the group.
    """

    def __init__(
        self, words: WordAutomaton, symbols: SpelledSymbols, delimiter: int | None, start: int, free_of: np.ndarray
    ) -> None:
        arcs: list[Arc] = [
            (state, (0, symbol), weight, target)
            for state, of_state in enumerate(words.arcs)
            for symbol, (weight, target) in of_state.items()
        ]
        begins = [*words.arcs[0].items()]
        arcs += [(start, (which, symbol), weight, target) for which in (0, 1) for symbol, (weight, target) in begins]
        between = sorted({target for *_, target in arcs} | {default[1] for default in words.defaults if default is not None})
        arcs += [(state, mark, 0.0, state) for mark in symbols.marks for state in between]
        if delimiter is not None:
            arcs += [(state, delimiter, 0.0, state) for state in range(start + 1)]
        end = () if delimiter is None else (delimiter,)
        known: dict[Any, Sequences] = {mark: [(mark,)] for mark in (*symbols.marks, *end)}
        known |= {
            (which, of): [tokens + end for tokens in pair[which]] for of, pair in symbols.members.items() for which in (0, 1)
        }
        rows = self._grouped(_Table(known), arcs, start, free_of)
        tokens, lengths, weights, targets = rows
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        number, self.offsets, self.tokens = sorted_spellings(offsets, tokens)
        order = np.argsort(number, kind="stable")
        self._targets, self._weights = targets[order], weights[order]
        count = len(self.offsets) - 1
        self._firsts = np.searchsorted(number[order], np.arange(count + 1))
        self.weights = np.maximum.reduceat(self._weights, self._firsts[:-1])
        self.is_single = np.diff(self._firsts) == 1

    def _grouped(
        self, table: _Table, arcs: list[Arc], start: int, free_of: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Group the arcs' spellings, and set the attributes of the groups. Return the tokens, lengths, weights and targets of
        the spellings, one group after the other. The number of the group is put before the first token of each spelling.
        """
        names: dict[Any, int] = {}
        free = free_of.tolist()
        labels = np.array([names.setdefault((free[arc[0]], *arc[1:]), len(names)) for arc in arcs], dtype=np.int64)
        sources = np.array([arc[0] for arc in arcs], dtype=np.int64)
        # A bundle has the spellings of a symbol with the same first token. One row for each arc and bundle.
        bundle_counts, which = table.bundles_of([arc[1] for arc in arcs])
        of_arc = np.repeat(np.arange(len(arcs)), bundle_counts)
        places = sources[of_arc] * (int(table.firsts.max()) + 1) + table.firsts[which]
        places = places * (int(table.families.max()) + 1) + table.families[which]
        codes = labels[of_arc] * len(table.firsts) + which
        order = np.lexsort((codes, places))
        of_arc, which, places = of_arc[order], which[order], places[order]
        heads = np.flatnonzero(np.diff(places, prepend=-1))
        packed = codes[order].tobytes()
        groups: dict[bytes, int] = {}
        ends = [*(heads * codes.itemsize).tolist(), len(packed)]
        self.groups = np.array([groups.setdefault(packed[of:to], len(groups)) for of, to in pairwise(ends)], dtype=np.int64)
        self.firsts = table.firsts[which[heads]]
        states = sources[of_arc[heads]]
        self.bounds = np.searchsorted(states, np.arange(start + 2))
        firsts = np.unique(self.groups, return_index=True)[1]
        self.users = states[firsts]
        sizes = np.diff(heads, append=len(places))[firsts]
        rows = _ranges(heads[firsts], sizes)
        of_arc, owners, which = of_arc[rows], np.repeat(np.arange(len(groups)), sizes), which[rows]
        weights, targets = (np.array([arc[column] for arc in arcs])[of_arc] for column in (2, 3))
        counts, tokens, lengths = table.after(owners, which)
        return tokens, lengths, np.repeat(weights, counts).astype(float), np.repeat(targets, counts).astype(np.int64)

    def single(self, forms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the target state and the weight of each spelling that leads to a single state. `forms`: the spellings."""
        return self._targets[self._firsts[forms]], self._weights[self._firsts[forms]]

    def ends_of(self, form: int) -> list[tuple[int, float]]:
        """Return the states that spelling number `form` leads to, with the largest weight to each."""
        first, last = self._firsts[form], self._firsts[form + 1]
        if last == first + 1:
            return [(int(self._targets[first]), float(self._weights[first]))]
        best: dict[int, float] = {}
        for target, weight in zip(self._targets[first:last].tolist(), self._weights[first:last].tolist()):
            best[target] = max(weight, best.get(target, -np.inf))
        return sorted(best.items())


class _Table:
    """The concatenated spellings of all symbols. A bundle has the spellings of one symbol that begin with the same token.

    Attributes:
        firsts: int64 `[bundles]`, the first token of each bundle.
        families: int64 `[bundles]`, the family of each bundle. Long lists whose entries begin with mostly the same tokens, such
            as ranges of numbers, form a family. Family 0 has all bundles with few spellings.
    """

    def __init__(self, known: dict[Any, Sequences]) -> None:
        self._numbers = {of: number for number, of in enumerate(known)}
        sequences = [tokens for each in known.values() for tokens in sorted(each)]
        symbols = np.repeat(np.arange(len(known)), [len(each) for each in known.values()])
        begin = np.array([tokens[0] for tokens in sequences], dtype=np.int64)
        heads = np.flatnonzero((np.diff(symbols, prepend=-1) != 0) | (np.diff(begin, prepend=-1) != 0))
        self.firsts = begin[heads]
        self._bounds = np.append(heads, len(sequences))
        self._bundles = np.searchsorted(symbols[heads], np.arange(len(known) + 1))
        are_long = np.diff(self._bounds) > FEW
        families: list[set[int]] = [set()]
        of_symbols = np.zeros(len(known), dtype=np.int64)
        for symbol in np.unique(symbols[heads[are_long]]).tolist():
            tokens = set(self.firsts[self._bundles[symbol] : self._bundles[symbol + 1]].tolist())
            alike = (number for number, each in enumerate(families) if 2 * len(tokens & each) > len(tokens | each))
            of_symbols[symbol] = next(alike, len(families))
            if of_symbols[symbol] == len(families):
                families.append(tokens)
        self.families = np.where(are_long, of_symbols[symbols[heads]], 0)
        self._lengths = np.array([len(each) for each in sequences], dtype=np.int64)
        self._offsets = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        self._tokens = np.array([token for each in sequences for token in each], dtype=np.int32)

    def bundles_of(self, symbols: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return each symbol's number of bundles, and the concatenated bundles of all symbols."""
        numbers = np.array([self._numbers[symbol] for symbol in symbols], dtype=np.int64)
        counts = self._bundles[numbers + 1] - self._bundles[numbers]
        return counts, _ranges(self._bundles[numbers], counts)

    def after(self, owners: np.ndarray, bundles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the number of spellings in each bundle, and the tokens and lengths of these spellings. `owners` has a number
        for each bundle. This number is put before the first token of the bundle's spellings.
        """
        counts = self._bounds[bundles + 1] - self._bounds[bundles]
        which = _ranges(self._bounds[bundles], counts)
        lengths = self._lengths[which]
        tokens = self._tokens[_ranges(self._offsets[which], lengths)]
        tokens = np.insert(tokens, np.cumsum(lengths) - lengths, np.repeat(owners, counts)).astype(np.int32)
        return counts, tokens, lengths + 1


def _ranges(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the concatenation of `firsts[n] .. firsts[n] + counts[n] - 1`."""
    return np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
