"""Read unfinished transcripts: the intent and slots so far, and whether the sentence is complete or may go on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple

from .network import FREE, Filled, Network, Symbols


class Progress(NamedTuple):
    """The meaning of an unfinished sentence.

    While several intents are possible, `intent` is None and there are no slots. Otherwise `slots` has the complete slots of the
    likeliest sentence. `is_complete`: the words so far are a sentence. `may_go_on`: longer sentences begin with these words.
    """

    intent: str | None
    slots: tuple[Filled, ...]
    is_complete: bool
    may_go_on: bool


class Beginnings:
    """Reads unfinished sentences of a network. `symbols` has the spellings of the network's symbols."""

    def __init__(self, network: Network, symbols: Symbols) -> None:
        self.network, self.symbols = network, symbols
        self._firsts = [arc.target for arc in network.arcs[0]]  # the first state of each intent
        # By symbol: its sorted spellings anywhere in a transcript, and those at the beginning of a transcript.
        self._sorted: dict[Any, list[list[tuple[int, ...]]]] = {}

    def progress(self, units: list[int]) -> Progress | None:
        """Return the progress of a transcript whose last word may be unfinished; None if no sentence begins with it."""
        reached, before = self.network.reached(units, self.symbols)
        at_end = [state for place, state in reached if place == len(units)]
        within = [here for here in reached if here[0] < len(units) and self._is_within(*here, units)]
        best: dict[int, tuple[tuple[int, int], float]] = {}  # by intent, the path that has read most
        for here in [*((len(units), state) for state in at_end), *within]:
            intent, rank = self._intent(here, before), (here[0], reached[here])
            if intent >= 0 and (intent not in best or rank >= (best[intent][0][0], best[intent][1])):
                best[intent] = here, reached[here]
        if not at_end and not within:
            return None
        may_go_on = bool(within) or any(arc.symbol is not None for state in at_end for arc in self.network.arcs[state])
        if len(best) != 1:
            return Progress(None, (), 1 in at_end, may_go_on)
        ((here, weight),) = best.values()
        reading = self.network.traced(here, before, weight)
        return Progress(reading.intent, reading.slots, 1 in at_end, may_go_on)

    def _intent(self, here: tuple[int, int], before: Mapping[Any, Any]) -> int:
        """Return the number of the intent on the best path to `here`; -1 at the start, before any intent. `here` is a pair of a
        place and a state. `before` has the last steps of best paths, from `Network.reached`.
        """
        while here[1] == 1 and here in before:  # all intents share the end
            here = before[here][0]
        return bisect_right(self._firsts, here[1]) - 1

    def _is_within(self, place: int, state: int, units: list[int]) -> bool:
        """Return whether a spelling after `state` begins with the rest of the transcript and is longer."""
        return any(
            self._has_longer(arc.symbol, place, tuple(units[place:]))
            for arc in self.network.arcs[state]
            if arc.symbol is not None and arc.symbol is not FREE
        )

    def _has_longer(self, symbol: Any, place: int, rest: tuple[int, ...]) -> bool:
        if symbol not in self._sorted:
            every = (self.symbols.spellings.get(symbol, {}), self.symbols.initial.get(symbol, {}))
            self._sorted[symbol] = [sorted(spellings) for spellings in every]
        for spellings in self._sorted[symbol][: 2 if place == 0 else 1]:
            at = bisect_right(spellings, rest)  # the first spelling after `rest` itself, in the order of tuples
            if at < len(spellings) and spellings[at][: len(rest)] == rest:
                return True
        return False
