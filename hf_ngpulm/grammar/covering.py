"""Find which states of an automaton of words cover others: whatever may follow the other state may also follow this one.

Of two states that are possible after the same words, a covered one can be left out. Between states without weights this is
inclusion of languages, found as the largest simulation (Milner, "An algebraic definition of simulation between programs",
1971).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .words import WordAutomaton


def covering(words: WordAutomaton, free_of: np.ndarray, is_free: Callable[[Any], bool]) -> dict[int, set[int]]:
    """Return, for states that may follow free words, the other states that cover them. Of states with the same continuations,
    only the first one covers the others.

    Args:
        words: an automaton without weights.
        free_of: int64 `[S]`, the state after any number of free words; -1 if there is none, or if it isn't always the same.
        is_free: function that tells whether all spellings of a symbol can be read as free words.
    """
    under = _after_free_words(words, free_of)
    column = {state: number for number, state in enumerate(under)}
    frees = np.array([column.get(free, -1) for free in free_of[under].tolist()], dtype=np.int64)
    pairs: dict[Any, list[tuple[int, int]]] = {}  # for each symbol that may follow free words: columns and their targets
    for state in under:
        for symbol, (_, target) in words.arcs[state].items():
            pairs.setdefault(symbol, []).append((column[state], column[target]))
    steps = []  # for each symbol the states that follow, by an arc or by free words; and the columns before and after it
    for symbol, of_symbol in pairs.items():
        after = free_of.copy() if is_free(symbol) else np.full(len(free_of), -1)
        for state, arcs in enumerate(words.arcs):
            if symbol in arcs:
                after[state] = arcs[symbol][1]
        steps.append((after, *np.array(of_symbol).T))
    ends = np.array([final is not None for final in words.finals])
    covers = (ends[:, None] | ~ends[under]) & (free_of >= 0)[:, None] & (frees >= 0)
    covers = np.concatenate([covers, np.zeros((1, len(under)), dtype=bool)])  # row -1 is no state
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
    """Return the states that can be reached from those after free words."""
    found = set(free_of[free_of >= 0].tolist())
    waiting = list(found)
    while waiting:
        state = waiting.pop()
        default = words.defaults[state]
        after = {target for _, target in words.arcs[state].values()} | ({default[1]} if default is not None else set())
        waiting += after - found
        found |= after
    return sorted(found)
