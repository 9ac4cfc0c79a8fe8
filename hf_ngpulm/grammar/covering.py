"""Find which states of an automaton of words cover others. A state covers another if all continuations of the other state are
also continuations of the first one.

If two states are possible after the same words, and one covers the other, a search can drop the covered one. Without weights,
covering is inclusion of the states' languages. The largest simulation gives it (Milner, "An algebraic definition of simulation
between programs", 1971): start with all pairs, and remove pairs that a symbol tells apart until none is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .words import WordAutomaton


def covering(words: WordAutomaton, free_of: np.ndarray, is_free: Callable[[Any], bool]) -> dict[int, set[int]]:
    """Return the covering states of each state that may follow free words. If several states have the same continuations, only
    the first one covers the others.

    Args:
        words: an automaton without weights.
        free_of: int64 `[S]`, for each state the state after any number of free words; -1 if there are none or several such
            states.
        is_free: returns whether all spellings of a symbol can be read as free words.
    """
    under = _after_free_words(words, free_of)
    column = {state: number for number, state in enumerate(under)}
    frees = np.array([column.get(free, -1) for free in free_of[under].tolist()], dtype=np.int64)
    pairs: dict[Any, list[tuple[int, int]]] = {}  # by symbol: the columns that read it, and their targets' columns
    for state in under:
        for symbol, (_, target) in words.arcs[state].items():
            pairs.setdefault(symbol, []).append((column[state], column[target]))
    steps = []  # for each symbol: each state's target, by an arc or by free words; the columns before it; and those after it
    for symbol, of_symbol in pairs.items():
        after = free_of.copy() if is_free(symbol) else np.full(len(free_of), -1)
        for state, arcs in enumerate(words.arcs):
            if symbol in arcs:
                after[state] = arcs[symbol][1]
        steps.append((after, *np.array(of_symbol).T))
    ends = np.array([final is not None for final in words.finals])
    covers = (ends[:, None] | ~ends[under]) & (free_of >= 0)[:, None] & (frees >= 0)
    covers = np.concatenate([covers, np.zeros((1, len(under)), dtype=bool)])  # row -1 is no state
    # A pair of states stays only if the states after free words, and after each symbol, are such a pair, too.
    before = -1
    while int(covers.sum()) != before:
        before = int(covers.sum())
        covers[:-1] &= covers[free_of][:, frees]
        for after, sources, targets in steps:
            covers[:-1, sources] &= covers[after][:, targets]
    numbers = np.array(under, dtype=np.int64)
    same = covers[under] & covers[under].T
    covers[under] &= ~same | (numbers[:, None] < numbers)
    return {state: set(np.flatnonzero(covers[:, at]).tolist()) for state, at in column.items()}


def _after_free_words(words: WordAutomaton, free_of: np.ndarray) -> list[int]:
    """Return the states after free words, and all states that can be reached from them."""
    reachable = set(free_of[free_of >= 0].tolist())
    waiting = list(reachable)
    while waiting:
        state = waiting.pop()
        default = words.defaults[state]
        after = {target for _, target in words.arcs[state].values()} | ({default[1]} if default is not None else set())
        waiting += after - reachable
        reachable |= after
    return sorted(reachable)
