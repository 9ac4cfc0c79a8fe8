"""Searches with lazily composed language models: what they enter is composed until nothing is left to compose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ..automaton.pool import AutomatonPool
from ..automaton.tensors import AutomatonTensors
from .lazy_automaton import LOCK, Texts
from .lazy_pool import Alone, Pooled


class Stops(Protocol):
    """Where the rows of a search have stopped: `[B, N]` states that are unfinished, and how many of these each row has."""

    @property
    def states(self) -> np.ndarray: ...
    @property
    def counts(self) -> np.ndarray: ...


class LazySearch:
    """The lazily composed automata of a search. As long as there is one of these, states stay what they are.

    Args:
        pool: in which all automata of the search lie; None if there is only one, which lies nowhere else.
        models: the `LazyAutomaton` of each that is lazy.
    """

    def __init__(self, pool: AutomatonPool | None, models: Sequence[Any]) -> None:
        self.pool = pool
        self._only = models[0]
        self.growing: list[Pooled | Alone] = [model.joined(pool, self) for model in models]

    lock = LOCK

    @property
    def tensors(self) -> AutomatonTensors:
        """Those of the pool, with all that has been composed so far."""
        if self.pool is None:
            return self._only.tensors
        with LOCK:
            for pooled in self.growing:
                pooled.update()
            return self.pool.tensors

    @property
    def unfinished(self) -> np.ndarray:
        """uint8, by the number of a state in the `tensors` that were asked for last: whether its scores aren't right yet."""
        return self._only.growing.unfinished if self.pool is None else self.pool.unfinished

    def replay(self, states: Tensor, links: np.ndarray | None, labels: np.ndarray, not_tokens: int = -1) -> bool:
        """Compose what a search has entered.

        Args:
            states: int32 `[B, K, M]`, in which its hypotheses began.
            links, labels: int32 `[B, S, K]`, where each comes from at each step, and the token that it gets; below 0 for none.
                No links: each from itself.
            not_tokens: a label that is none either.

        Returns:
            Whether there was anything: then the search has to be done again.
        """
        if links is None:
            links = np.broadcast_to(np.arange(labels.shape[2], dtype=np.int32), labels.shape)
        links, labels = (np.ascontiguousarray(part, dtype=np.int32) for part in (links, labels))
        began, grown = states.cpu().numpy(), False
        for pooled in self.growing:
            for column in range(began.shape[2]):
                own = pooled.outside(began[..., column])
                rows = np.flatnonzero((own >= 0).any(1))
                if len(rows) == len(own):
                    grown |= pooled.automaton.replay(own, links, labels, not_tokens)
                elif len(rows):
                    grown |= pooled.automaton.replay(own[rows], links[rows], labels[rows], not_tokens)
        return grown

    def search(self, search: Callable[[AutomatonTensors, np.ndarray], None], stops: Stops) -> None:
        """Go on with a search that stops where a row comes to states that are unfinished, until none does.

        Args:
            search: with the automata, and which of their states are unfinished; writes the latter to `stops`.
        """
        with LOCK:
            while True:
                search(self.tensors, self.unfinished)
                counts = stops.counts
                if not counts.any():
                    return
                self.enter(stops.states[np.arange(stops.states.shape[1]) < counts[:, None]])

    def enter(self, states: np.ndarray) -> bool:
        """Compose what the scores in some states int32 `[N]` hang on; whether there was anything."""
        return any([pooled.automaton.enter(pooled.outside(states)) for pooled in self.growing])

    def read(self, starts: Tensor, roots: Tensor, texts: Tensor, lengths: Tensor, context_length: int) -> bool:
        """Compose the states along texts, see `BackoffAutomaton.states_after`: `[B]`, `[B]`, `[B, L]` and `[B]`."""
        of_texts = [np.ascontiguousarray(part.cpu().numpy(), dtype=np.int32) for part in (texts, lengths)]
        grown = False
        for pooled in self.growing:
            first, empty = (pooled.outside(part.cpu().numpy()) for part in (starts, roots))
            grown |= pooled.automaton.read(Texts(context_length, first, empty, *of_texts))
        return grown
