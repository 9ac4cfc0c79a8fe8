"""Sort the spellings of all arcs of an automaton of words, to build the trie of `hf_ngpulm.grammar.tokens`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lexicon.trie import sorted_spellings
from .spelling import Sequences, SpelledSymbols
from .words import WordAutomaton

FEW = 8  # lists with more spellings are stored once for all states with equal arcs for them


class Keys:
    """The sorted spellings of all arcs. The first token of each spelling is its owner.

    An owner is a state, or a group of similar lists. Several states share a group if their arcs for these lists have the same
    weights and targets, and their free words lead to the same state.

    Attributes:
        offsets, tokens: the distinct spellings, as arguments of `build_trie`.
        weights: float64, the largest weight of each spelling.
        shared: for each state with shared groups, their owners.
        users: for each owner, one of the states that use it.
    """

    def __init__(self, words: WordAutomaton, symbols: SpelledSymbols, delimiter: int | None, start: int) -> None:
        tables = [_Table({of: pair[which] for of, pair in symbols.members.items()}, delimiter) for which in (0, 1)]
        arcs = [
            (state, symbol, weight, target)
            for state, of_state in enumerate(words.arcs)
            for symbol, (weight, target) in of_state.items()
        ]
        self.shared: dict[int, list[int]] = {}
        self.users = [*range(start), 0]
        families = _families({of: {each[0] for each in pair[0]} for of, pair in symbols.members.items() if len(pair[0]) > FEW})
        readers: dict[Any, list[int]] = {}
        for state, of_state in enumerate(words.arcs):
            read: dict[int, list[Any]] = {}
            for symbol, (weight, target) in of_state.items():
                if symbol in families:
                    read.setdefault(families[symbol], []).append((symbol, weight, target))
            for of_family in read.values():
                readers.setdefault((frozenset(of_family), words.defaults[state]), []).append(state)
        moved = set()
        for (of_family, _), states in readers.items():
            if len(states) > 1:
                moved |= {(state, symbol) for state in states for symbol, *_ in of_family}
                arcs += [(len(self.users), *each) for each in of_family]
                for state in states:
                    self.shared.setdefault(state, []).append(len(self.users))
                self.users.append(states[0])
        arcs = [arc for arc in arcs if arc[:2] not in moved]
        beginning = [(start, symbol, weight, target) for symbol, (weight, target) in words.arcs[0].items()]
        arcs += beginning
        parts = [table.after(of) for table, of in zip(tables, (arcs, beginning))]
        between = sorted({target for *_, target in arcs} | {default[1] for default in words.defaults if default is not None})
        loops = [(state, mark) for mark in symbols.marks for state in between]
        if delimiter is not None:
            loops += [(state, delimiter) for state in range(start + 1)]
        targets = np.array([0 if state == start else state for state, _ in loops], dtype=np.int64)
        targets[[state == start for state, _ in loops]] = start
        parts.append((np.array(loops, np.int32).reshape(-1), np.full(len(loops), 2), np.zeros(len(loops)), targets))
        tokens, lengths, weights, targets = (np.concatenate(column) for column in zip(*parts))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        number, self.offsets, self.tokens = sorted_spellings(offsets, tokens.astype(np.int32))
        order = np.argsort(number, kind="stable")
        self._targets, self._weights = targets[order], weights[order]
        count = len(self.offsets) - 1
        self._firsts = np.searchsorted(number[order], np.arange(count + 1))
        self.weights = np.maximum.reduceat(self._weights, self._firsts[:-1])
        self.is_single = np.diff(self._firsts) == 1

    def single(self, forms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the target states and weights of spellings that lead to a single state each."""
        return self._targets[self._firsts[forms]], self._weights[self._firsts[forms]]

    def ends_of(self, form: int) -> list[tuple[int, float]]:
        """Return the states that a spelling leads to, with their weights."""
        first, last = self._firsts[form], self._firsts[form + 1]
        if last == first + 1:
            return [(int(self._targets[first]), float(self._weights[first]))]
        best: dict[int, float] = {}
        for target, weight in zip(self._targets[first:last].tolist(), self._weights[first:last].tolist()):
            best[target] = max(weight, best.get(target, -np.inf))
        return sorted(best.items())


def _families(firsts: dict[Any, set[int]]) -> dict[Any, int]:
    """Return the family's number of each symbol. Symbols of a family, such as ranges of numbers, share most first tokens.
    `firsts`: the first tokens of each symbol.
    """
    families: dict[Any, int] = {}
    firsts_of_families: list[set[int]] = []
    for symbol, tokens in firsts.items():
        alike = (number for number, each in enumerate(firsts_of_families) if 2 * len(tokens & each) > len(tokens | each))
        families[symbol] = next(alike, len(firsts_of_families))
        if families[symbol] == len(firsts_of_families):
            firsts_of_families.append(tokens)
    return families


class _Table:
    """The concatenated spellings of all classes. If there is a delimiter, each spelling ends with it."""

    def __init__(self, known: dict[Any, Sequences], delimiter: int | None) -> None:
        end = () if delimiter is None else (delimiter,)
        self.numbers = {of: number for number, of in enumerate(known)}
        sequences = [tokens + end for each in known.values() for tokens in each]
        self.firsts = np.concatenate([[0], np.cumsum([len(each) for each in known.values()])]).astype(np.int64)
        self.lengths = np.array([len(each) for each in sequences], dtype=np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        self.tokens = np.array([token for each in sequences for token in each], dtype=np.int32)

    def after(self, arcs: list[tuple]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the tokens, lengths, weights and targets of the arcs' spellings. Each begins with the arc's source state."""
        numbers = np.array([self.numbers[symbol] for _, symbol, _, _ in arcs], dtype=np.int64)
        states, weights, targets = (np.array([arc[column] for arc in arcs]) for column in (0, 2, 3))
        counts = self.firsts[numbers + 1] - self.firsts[numbers] if len(arcs) else np.zeros(0, np.int64)
        which = _ranges(self.firsts[numbers], counts) if len(arcs) else np.zeros(0, np.int64)
        lengths = self.lengths[which]
        tokens = self.tokens[_ranges(self.offsets[which], lengths)]
        tokens = np.insert(tokens, np.cumsum(lengths) - lengths, np.repeat(states, counts)).astype(np.int32)
        return tokens, lengths + 1, np.repeat(weights, counts).astype(float), np.repeat(targets, counts).astype(np.int64)


def _ranges(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the concatenation of `firsts[n] .. firsts[n] + counts[n] - 1`."""
    return np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
