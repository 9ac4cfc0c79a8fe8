"""Find which states of an automaton of words cover other states. State A covers state B if all continuations of B are also
continuations of A.

If A and B are possible after the same words, and A covers B, a search can drop B. Without weights, A covers B if A's language
includes B's language. These pairs form the largest simulation relation (Milner, "An algebraic definition of simulation between
programs", 1971). First, all pairs that obviously don't cover are dropped. Then, a pair is dropped if a symbol leads from it to
a dropped pair, until no pair is dropped any more.

A search needs only a few of all pairs. So a pair is decided when a search needs the pair, on the basis of the pairs to which
symbols lead.

A free word is any word that a wildcard matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .words import WordAutomaton

Pair = tuple[int, int]  # a state, and the state that it may cover


class Covering:
    """Tell whether a state covers another state.

    Args:
        words: an automaton without weights.
        free_of: int64 `[S]`, for each state the state after any number of free words; -1 if no state or several states are
            possible. A state with -1 covers no state, and no state covers a state with -1.
        is_free: function that returns whether all spellings of a symbol can be read as free words.
    """

    def __init__(self, words: WordAutomaton, free_of: np.ndarray, is_free: Callable[[Any], bool]) -> None:
        self.words, self.free_of = words, free_of.tolist()
        self.ends = [final is not None for final in words.finals]
        self.is_free = {symbol: is_free(symbol) for symbol in {symbol for of in words.arcs for symbol in of}}
        self.under = _after_free_words(words, free_of)
        self.known: dict[Pair, bool] = {}

    def is_covered(self, state: int, others: Iterable[int]) -> bool:
        """Return whether one of `others` covers `state`. If several states have the same continuations, only the state with the
        lowest number counts as covering the other states.
        """
        return state in self.under and any(
            other != state
            and self.covers(other, state)
            and (other < state or other not in self.under or not self.covers(state, other))
            for other in others
        )

    def covers(self, state: int, other: int) -> bool:
        """Return whether all continuations of the state `other` are continuations of `state`."""
        if (state, other) not in self.known:
            self._decide((state, other))
        return self.known[state, other]

    def _decide(self, asked: Pair) -> None:
        """Decide whether the pair `asked` stays. If the pair leads, in one or several steps, to a pair that can't stay, the
        pair `asked` is dropped. Otherwise the pair `asked` stays, and all undecided pairs that were seen stay, too.
        """
        before: dict[Pair, list[Pair]] = {asked: []}  # the pairs that need a pair
        waiting = [asked]
        while waiting:
            pair = waiting.pop()
            if self.known.get(pair) is False:
                continue
            after = self._after(*pair)
            if after is None or any(self.known.get(each) is False for each in after):
                falls = [pair]
                while falls:
                    pair = falls.pop()
                    if self.known.get(pair) is not False:
                        self.known[pair] = False
                        falls += before[pair]
                if self.known.get(asked) is False:
                    return
                continue
            for each in after:
                if each not in self.known:
                    if each not in before:
                        before[each] = []
                        waiting.append(each)
                    before[each].append(pair)
        for pair in before:
            self.known.setdefault(pair, True)

    def _after(self, state: int, other: int) -> set[Pair] | None:
        """Return the pairs that must all stay so that the pair (`state`, `other`) can stay; None if the pair can't stay."""
        free, other_free = self.free_of[state], self.free_of[other]
        if free < 0 or other_free < 0 or (self.ends[other] and not self.ends[state]):
            return None
        after = {(free, other_free)}
        arcs = self.words.arcs[state]
        for symbol, (_, target) in self.words.arcs[other].items():
            if symbol in arcs:
                after.add((arcs[symbol][1], target))
            elif self.is_free[symbol]:
                after.add((free, target))
            else:
                return None
        return after


def _after_free_words(words: WordAutomaton, free_of: np.ndarray) -> set[int]:
    """Return the states after free words, and all states that can be reached from these states."""
    reachable = set(free_of[free_of >= 0].tolist())
    waiting = list(reachable)
    while waiting:
        state = waiting.pop()
        default = words.defaults[state]
        after = {target for _, target in words.arcs[state].values()} | ({default[1]} if default is not None else set())
        waiting += after - reachable
        reachable |= after
    return reachable
