"""Make a network of words deterministic and minimal.

The result is an acceptor without actions. If several paths have the same symbols, the largest weight counts (Mohri,
"Finite-state transducers in language and speech processing", Computational Linguistics 23(2), 1997, sections 3.3 and 3.4).
A list or a range of numbers is a single symbol, so the automaton's size doesn't depend on the list's size.

A state of the result is a set of network states, each with its weight relative to the set's best state. A free word is any word
that a wildcard matches. A set that may read a free word has a `default`: the set that follows a word without an arc.

Each intent is minimised separately before all intents are joined. Parts in any order ("[in the kitchen] [now]") give many
states that are equivalent only after minimisation. Without this step, there would be too many sets of states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import GrammarError
from .network import FREE, Arc, Network

MOST_STATES = 200_000
DIGITS = 6  # decimal digits of weights; sets whose weights agree in these digits are the same set
ITSELF = -1


class WordAutomaton(NamedTuple):
    """A deterministic automaton of `S` states over symbols. State 0 is the start."""

    arcs: list[dict[Any, tuple[float, int]]]  # for each state and symbol: the weight (natural log) and the target
    finals: list[float | None]  # each state's weight of ending a sentence; None if no sentence ends there
    defaults: list[tuple[float, int] | None]  # each state's weight and target for a free word; None without free words


Subset = tuple[tuple[int, float], ...]


def determinised(network: Network, classes: Mapping[Any, Iterable[Any]]) -> WordAutomaton:
    """Return the deterministic automaton of a network.

    Args:
        classes: for each symbol, the classes of its spellings. Each spelling is in one class. The classes are the result's
            symbols. A symbol that isn't in `classes` can't be said.

    Raises:
        GrammarError: there are too many states, because weights or wildcards stay ambiguous.
    """
    read = [[arc for arc in arcs if arc.symbol is FREE or arc.symbol in classes] for arcs in network.arcs]
    intents = (_smallest(_subsets(*_merged_states(network, read, classes, arc.target))) for arc in network.arcs[0])
    automata = [automaton for automaton in intents if automaton.arcs]
    if len(automata) < 2:
        return automata[0] if automata else WordAutomaton([], [], [])
    return _subsets(*_joined(automata))


def _subsets(states: list[_State], start: int) -> WordAutomaton:
    """Make states deterministic by subset construction. Return the automaton. Raises GrammarError as `determinised` does."""
    is_weighted = any(state.final or any(weight for *_, weight in state.arcs) for state in states)
    frees: list[_Free] = []
    numbers_of_frees: dict[Any, int] = {}
    after_frees: dict[int, tuple[float, int]] = {}
    arcs_of_frees: dict[int, dict[Any, tuple[float, int]]] = {}
    subsets: dict[Any, int] = {}
    waiting: deque[tuple[Subset, int, float]] = deque()
    result = WordAutomaton([], [], [])

    def free_number(weights: Mapping[int, float]) -> tuple[float, int]:
        """Number a set of states after free words. `weights`: the states' weights (natural log).

        Returns:
            The largest weight, which the caller adds to its arc, and the set's index in `frees`. Sets whose weights differ by a
            constant are the same set.
        """
        most = max(weights.values())
        key = tuple(sorted((state, round(weight - most, DIGITS)) for state, weight in weights.items()))
        if key not in numbers_of_frees:
            numbers_of_frees[key] = len(frees)
            frees.append(_Free(dict(key), *_read(states, key)))
        return most, numbers_of_frees[key]

    def number_of(own: Mapping[int, float], free: int, weight: float) -> tuple[float, int]:
        """Number a state of the result. A new state is queued until its arcs are made.

        Args:
            own: the weights (natural log) of the network states that are possible without free words.
            free, weight: the index in `frees` of the set of possible states after free words, and the set's weight; -1 and
                -1e300 if there is no such set.

        Returns:
            The largest weight, which the caller adds to its arc, and the state's number.

        Raises:
            GrammarError: there are too many states.
        """
        # A state that is possible after free words with at least the same weight isn't listed among `own`.
        free_weights = frees[free].weights if free >= 0 else {}
        most, members = 0.0, frozenset[Any](own.keys() - free_weights.keys())
        if is_weighted:
            own = {state: of_state for state, of_state in own.items() if of_state > free_weights.get(state, -1e300) + weight}
            most = max([*own.values(), weight])
            members = frozenset((state, round(each - most, DIGITS)) for state, each in own.items())
        key = members, free, round(weight - most, DIGITS)
        if key not in subsets:
            if len(subsets) == MOST_STATES:
                raise GrammarError(
                    f"the grammar needs more than {MOST_STATES:,} states: use fewer wildcards, or the same weights for parts "
                    "that can be said alike"
                )
            subsets[key] = len(subsets)
            waiting.append((tuple(members if is_weighted else ((state, 0.0) for state in members)), *key[1:]))
        return most, subsets[key]

    number_of({start: 0.0}, -1, -1e300)
    while waiting:
        own, free, of_free = waiting.popleft()
        reached, final = _read(states, own)
        default = None
        arcs: dict[Any, tuple[float, int]] = {}
        if free >= 0:
            free_set = frees[free]
            if FREE not in reached:  # no own state reads a free word, so the states after it depend on `free` alone
                if free not in after_frees:
                    after_frees[free] = free_number(free_set.reached[FREE])
                    arcs_of_frees[free] = {
                        symbol: number_of(targets, after_frees[free][1], after_frees[free][0])
                        for symbol, targets in free_set.reached.items()
                        if symbol is not FREE
                    }
                default = of_free + after_frees[free][0], after_frees[free][1]
                arcs = arcs_of_frees[free]  # so do the states after a symbol that no own state reads
                if of_free:
                    arcs = {symbol: (of_free + weight, target) for symbol, (weight, target) in arcs.items()}
            for symbol in free_set.reached if default is None else reached.keys() & free_set.reached.keys():
                of_symbol = reached.setdefault(symbol, {})
                for target, weight in free_set.reached[symbol].items():
                    of_symbol[target] = max(of_symbol.get(target, -1e300), of_free + weight)
            if free_set.final is not None:
                final = max(of_free + free_set.final, -1e300 if final is None else final)
        if FREE in reached:
            default = free_number(reached.pop(FREE))
        weight, free = default or (-1e300, -1)
        result.arcs.append(arcs | {symbol: number_of(targets, free, weight) for symbol, targets in reached.items()})
        result.finals.append(final)
        result.defaults.append(None if default is None else number_of({}, free, weight))
    return result


class _Free(NamedTuple):
    """A set of states after free words. Many subsets share a set, so the set's continuations are computed once."""

    weights: dict[int, float]
    reached: dict[Any, dict[int, float]]
    final: float | None


def _read(states: list[_State], subset: Subset) -> tuple[dict[Any, dict[int, float]], float | None]:
    """Return two results. The first is a dictionary from each symbol to its target states, with the states' largest weights
    (natural log). The second is the largest weight of ending a sentence in the set `subset`; None if no sentence can end there.
    """
    reached: dict[Any, dict[int, float]] = {}
    final = None
    for state, weight in subset:
        of_state = states[state]
        if of_state.final is not None and (final is None or weight + of_state.final > final):
            final = weight + of_state.final
        for symbol, target, more in of_state.arcs:
            targets = reached.setdefault(symbol, {})
            targets[target] = max(targets.get(target, -1e300), weight + more)
    return reached, final


class _State(NamedTuple):
    """Network states with the same continuations, merged into one."""

    arcs: list[tuple[Any, int, float]]  # class of symbols, target state, weight
    final: float | None  # weight of ending a sentence; None if no sentence ends here


def _joined(automata: list[WordAutomaton]) -> tuple[list[_State], int]:
    """Join deterministic automata. Return all states, and the number of a new start state with the arcs of all old starts.

    Equivalent states of different automata are merged.
    """
    whole = WordAutomaton([], [], [])
    starts = []
    for arcs, finals, defaults in automata:
        starts.append(first := len(whole.arcs))
        whole.arcs.extend({symbol: (weight, first + target) for symbol, (weight, target) in of.items()} for of in arcs)
        whole.finals.extend(finals)
        whole.defaults.extend(None if default is None else (default[0], first + default[1]) for default in defaults)
    parts = _equivalent(whole)
    states = []
    for state in np.unique(parts, return_index=True)[1].tolist():
        read = [(symbol, int(parts[target]), weight) for symbol, (weight, target) in whole.arcs[state].items()]
        default = whole.defaults[state]
        # A word that has an arc may be read as a free word, too: the arc's target has all that follows then.
        free = [] if default is None else [(FREE, int(parts[default[1]]), default[0])]
        states.append(_State(read + free, whole.finals[state]))
    firsts = [states[parts[start]] for start in starts]
    ends = [state.final for state in firsts if state.final is not None]
    states.append(_State([arc for state in firsts for arc in state.arcs], max(ends) if ends else None))
    return states, len(states) - 1


def _merged_states(
    network: Network, read: list[list[Arc]], classes: Mapping[Any, Iterable[Any]], start: int
) -> tuple[list[_State], int]:
    """Return the states of the equivalent network without arcs that read nothing, and the number of the start state.

    Args:
        read: for each network state, its arcs that read a symbol.
        start: the network state to start from.

    States with the same continuations are merged. Templates often repeat endings, so that without merging the subset
    construction (`_subsets`) would make many more subsets of states.
    """
    merged_ids: dict[Any, int] = {}
    merged: list[_State] = []
    number: dict[int, int | None] = {}  # of each network state; None while its continuations are being merged
    reserved: dict[int, int] = {}  # numbers of states in loops, which other states need before they are merged
    closures: dict[int, dict[int, float]] = {}
    waiting = [start]
    while waiting:
        state = waiting[-1]
        if state not in number:
            number[state] = None
            closure = _reached(network, state)
            closures[state] = {here: weight for here, weight in closure.items() if here == 1 or read[here]}
            after = dict.fromkeys([arc.target for here in closures[state] for arc in read[here]])
            waiting += [target for target in after if target not in number]
            continue
        waiting.pop()
        if number[state] is not None:
            continue
        arcs: dict[tuple[Any, int], float] = {}
        for here, weight in closures[state].items():
            for arc in read[here]:
                target = ITSELF if arc.target == state else number[arc.target]
                if target is None:
                    if arc.target not in reserved:
                        reserved[arc.target] = len(merged)
                        merged.append(_State([], None))
                    target = reserved[arc.target]
                for of in (FREE,) if arc.symbol is FREE else classes[arc.symbol]:
                    arcs[of, target] = max(arcs.get((of, target), -1e300), weight + arc.weight)
        final = closures[state].get(1)
        same = frozenset(arcs.items()), final
        merged_as = reserved.get(state, merged_ids.get(same))
        if merged_as is None:
            merged_as = merged_ids[same] = len(merged)
            merged.append(_State([], None))
        number[state] = merged_as
        own = [(symbol, merged_as if target == ITSELF else target, weight) for (symbol, target), weight in arcs.items()]
        merged[merged_as] = _State(own, final)
    first = number[start]
    assert first is not None
    return merged, first


def _reached(network: Network, state: int) -> dict[int, float]:
    """Return a state and all states that can be reached from this state by arcs without a symbol, each with the largest weight.
    Raises GrammarError if a cycle of such arcs has a weight above 0.
    """
    weights, waiting, steps = {state: 0.0}, [state], 0
    while waiting:
        here = waiting.pop()
        steps += 1
        for arc in network.arcs[here]:
            weight = weights[here] + arc.weight
            if arc.symbol is None and weight > weights.get(arc.target, -1e300) + 1e-12:
                if steps > 100 * len(network.arcs):
                    raise GrammarError("a part that may be empty is repeated with a weight above 0; make the weight at most 0")
                weights[arc.target] = weight
                waiting.append(arc.target)
    return weights


def minimised(automaton: WordAutomaton) -> WordAutomaton:
    """Return the equivalent automaton with the fewest states: it accepts the same symbols with the same weights.

    Raises:
        GrammarError: the automaton accepts nothing.
    """
    smallest = _smallest(automaton)
    if not smallest.arcs:
        raise GrammarError("the grammar has no sentence that the recogniser can write")
    return smallest


def _smallest(automaton: WordAutomaton) -> WordAutomaton:
    """Return the automaton with the fewest states. If it accepts nothing, it has no states."""
    automaton = _trimmed(automaton)
    if not automaton.arcs:
        return automaton
    automaton = _pushed(automaton)
    numbered = _equivalent(automaton)
    states = np.unique(numbered, return_index=True)[1].tolist()  # one of each class; the start comes first
    parts = numbered.tolist()
    defaults = [automaton.defaults[state] for state in states]
    return WordAutomaton(
        [{symbol: (weight, parts[target]) for symbol, (weight, target) in automaton.arcs[state].items()} for state in states],
        [automaton.finals[state] for state in states],
        [None if default is None else (default[0], parts[default[1]]) for default in defaults],
    )


def _equivalent(automaton: WordAutomaton) -> np.ndarray:
    """Number the states, int32 `[S]`. States with the same continuations and weights have the same number.

    Classes of states are split until all states of a class have the same end and the same arcs to the same classes (Moore's
    algorithm).
    """
    ends = [None if final is None else round(final, DIGITS) for final in automaton.finals]
    labels: dict[Any, int] = {}
    arcs = [
        sorted((labels.setdefault((symbol, round(weight, DIGITS)), len(labels)), target) for symbol, (weight, target) in of)
        for of in (
            [*of_state.items(), *([] if default is None else [(FREE, default)])]
            for of_state, default in zip(automaton.arcs, automaton.defaults)
        )
    ]
    bounds = list(pairwise(np.cumsum([0, *map(len, arcs)]) * np.dtype(np.int32).itemsize))
    targets = np.array([target for of_state in arcs for _, target in of_state], dtype=np.int64)
    # Split by final weights and the arcs' symbols first, then repeatedly by the classes of the arcs' targets.
    keys: Iterable[Any] = zip(ends, (tuple([label for label, _ in of_state]) for of_state in arcs))
    parts, count = _numbered(keys), 0
    while int(parts.max()) + 1 != count:
        count = int(parts.max()) + 1
        leads = parts[targets].tobytes()
        parts = _numbered(zip(parts.tolist(), (leads[first:last] for first, last in bounds)))
    return parts


def _numbered(keys: Iterable[Any]) -> np.ndarray:
    """Return numbers for keys, int32. Equal keys have equal numbers, which follow the order of first appearance."""
    names: dict[Any, int] = {}
    return np.array([names.setdefault(key, len(names)) for key in keys], dtype=np.int32)


def _trimmed(automaton: WordAutomaton) -> WordAutomaton:
    """Return the automaton without states that lead to no end. If the start is such a state, no state remains."""
    sources: list[list[int]] = [[] for _ in automaton.arcs]
    for state, arcs in enumerate(automaton.arcs):
        for _, target in arcs.values():
            sources[target].append(state)
        default = automaton.defaults[state]
        if default is not None:
            sources[default[1]].append(state)
    live = {state for state, final in enumerate(automaton.finals) if final is not None}
    waiting = list(live)
    while waiting:
        for source in sources[waiting.pop()]:
            if source not in live:
                live.add(source)
                waiting.append(source)
    if 0 not in live:
        return WordAutomaton([], [], [])
    states = [state for state in range(len(automaton.arcs)) if state in live]  # the first of them is the start
    number = {state: place for place, state in enumerate(states)}
    return WordAutomaton(
        [
            {symbol: (weight, number[target]) for symbol, (weight, target) in automaton.arcs[state].items() if target in live}
            for state in states
        ],
        [automaton.finals[state] for state in states],
        [
            None if default is None or default[1] not in live else (default[0], number[default[1]])
            for default in map(automaton.defaults.__getitem__, states)
        ],
    )


def _pushed(automaton: WordAutomaton) -> WordAutomaton:
    """Push weights towards the start (Mohri 1997, section 3.4). Automata with wildcards are returned unchanged.

    Let d(s) be the weight of the best path from state s to an end. The weight of an arc from p to q grows by d(q) - d(p), and
    the final weight of s becomes smaller by d(s). So a search can prune early, and states that differ only in the position of
    weights become equal.
    """
    if any(default is not None for default in automaton.defaults):
        return automaton
    best = [-1e300 if final is None else final for final in automaton.finals]
    sources: list[list[tuple[int, float]]] = [[] for _ in best]
    for state, arcs in enumerate(automaton.arcs):
        for weight, target in arcs.values():
            sources[target].append((state, weight))
    waiting = deque(state for state, final in enumerate(automaton.finals) if final is not None)
    steps = 0
    while waiting:
        target = waiting.popleft()
        steps += 1
        if steps > 1000 * len(best):
            raise GrammarError("weights above 0 add up without end in a repeated part; make them at most 0")
        for source, weight in sources[target]:
            if weight + best[target] > best[source] + 1e-9:
                best[source] = weight + best[target]
                waiting.append(source)
    best[0] = 0.0  # keeps the best weight of the whole on the start's arcs
    pushed = [
        {symbol: (weight + best[target] - best[state], target) for symbol, (weight, target) in of_state.items()}
        for state, of_state in enumerate(automaton.arcs)
    ]
    finals = [None if final is None else final - best[state] for state, final in enumerate(automaton.finals)]
    return automaton._replace(arcs=pushed, finals=finals)
