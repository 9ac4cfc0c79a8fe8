"""Run searches with lazily composed language models. States that a search enters are composed until none is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..automaton.pool import AutomatonPool, Place
from ..automaton.tensors import AutomatonTensors
from .lazy_states import LOCK, LazyStates, NgpulmComposing

LEAST_STATES, LEAST_ARCS = 1 << 12, 1 << 12  # states and arcs in the smallest part of a pool


class LazySearch:
    """The lazily composed automata of a search. While this object lives, states keep their numbers.

    Args:
        pool: the pool with all automata of the search; None if the search has only one automaton, which it reads in place.
        models: the `LazyAutomaton`s of the search.
    """

    lock = LOCK

    def __init__(self, pool: AutomatonPool | None, models: Sequence[Any]) -> None:
        self.pool = pool
        self._only = models[0]
        for model in models:
            model.hold(self)
        self.copies: list[InPool] = [] if pool is None else [model.copies[pool] for model in models]

    @property
    def tensors(self) -> AutomatonTensors:
        """The tensors that the search reads, with all states composed so far."""
        if self.pool is None:
            return self._only.tensors
        with LOCK:
            for copy in self.copies:
                copy.update()
            return self.pool.tensors

    @property
    def unfinished(self) -> np.ndarray:
        """Mask of the states in the latest `tensors` whose scores aren't final yet (uint8)."""
        return self._only.states.arrays["unfinished"] if self.pool is None else self.pool.unfinished

    def _each(self, states: np.ndarray) -> Iterator[tuple[LazyStates, np.ndarray]]:
        """Yield each model's states, and the search's states as state numbers of that model; states of another model become
        -1.
        """
        if self.pool is None:
            yield self._only.states, states
        for copy in self.copies:
            yield copy.states, copy.outside(states)

    def replay(self, states: Tensor, links: np.ndarray | None, labels: np.ndarray, not_tokens: int = -1) -> bool:
        """Compose the states that a search has entered.

        Args:
            states: int32 `[B, K, M]`, the initial states of the search's hypotheses in each model.
            links, labels: int32 `[B, S, K]`, the parent and the new token of each hypothesis at each step. A label below 0
                means no token. If `links` is None, each hypothesis is its own parent.
            not_tokens: a further label that isn't a token.

        Returns:
            Whether any state was composed. If so, the search must be repeated.
        """
        if links is None:
            links = np.broadcast_to(np.arange(labels.shape[2], dtype=np.int32), labels.shape)
        links, labels = (np.ascontiguousarray(part, dtype=np.int32) for part in (links, labels))
        began, is_new = states.cpu().numpy(), False
        with LOCK:
            for column in range(began.shape[2]):
                for lazy, own in self._each(began[..., column]):
                    rows = np.flatnonzero((own >= 0).any(1))
                    if len(rows) == len(own):
                        is_new |= lazy.replay(own, links, labels, not_tokens)
                    elif len(rows):
                        is_new |= lazy.replay(own[rows], links[rows], labels[rows], not_tokens)
        return is_new

    @property
    def composing(self) -> NgpulmComposing | None:
        """The core's struct for composing during a search that holds the lock. It is None for a pool, which has copies of
        states.
        """
        return self._only.states.composing() if self.pool is None else None

    def search(self, search: Callable[[AutomatonTensors, np.ndarray], None], states: np.ndarray, counts: np.ndarray) -> None:
        """Repeat a search that stops at unfinished states, and compose these states, until the search completes.

        Args:
            search: function that takes the automata and their unfinished states. It may compose states with `composing`.
            states, counts: arrays `[B, N]` and `[B]` that the function writes: the states at which each row stopped, and their
                number.
        """
        with LOCK:
            while True:
                search(self.tensors, self.unfinished)
                if not counts.any():
                    return
                self.enter(states[np.arange(states.shape[1]) < counts[:, None]])

    def enter(self, states: np.ndarray) -> bool:
        """Compose all states on which the scores of `states`, int32 `[N]`, depend. Return whether any state was composed."""
        with LOCK:
            return any([lazy.enter(own) for lazy, own in self._each(states)])

    def read(self, starts: Tensor, roots: Tensor, texts: Tensor, lengths: Tensor, context_length: int) -> bool:
        """Compose the states along texts. The arguments are those of `BackoffAutomaton.states_after`: `[B]`, `[B]`, `[B, L]`,
        `[B]`.

        Return whether any state was composed.
        """
        tokens, sizes = (np.ascontiguousarray(part.cpu().numpy(), dtype=np.int32) for part in (texts, lengths))
        with LOCK:
            each = zip(self._each(starts.cpu().numpy()), self._each(roots.cpu().numpy()))
            return any([lazy.read(context_length, first, empty, tokens, sizes) for (lazy, first), (_, empty) in each])


class InPool:
    """A copy of lazy states in a pool. `update` brings the copy up to date; states keep their numbers in the pool.

    The copy has several parts. Each part is at a free place that the pool had when the part was added.

    Args:
        states: the states, which may grow.
        pool: the pool, on any device.
    """

    def __init__(self, states: LazyStates, pool: AutomatonPool) -> None:
        self.states, self.pool = states, pool
        # The first number of each part of the states, in the model and in the pool. Each new part has room for half as many
        # states as exist, so that there are few parts; likewise for arcs.
        self.own, self.firsts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.places: list[Place] = []
        self._state_room = self._arc_room = 0  # end of the last part, as a number in the model
        self._arc_shift = 0  # offset from arcs there to arcs in the pool
        self._states = self._arcs = self._composed = 0  # numbers copied so far
        self.update()

    @property
    def place(self) -> Place:
        """The place of the copy's first part. Its `root` and `start` are those of the model."""
        start = int(self.in_pool(np.array([self.states.begin]))[0])
        return self.places[0]._replace(root=int(self.firsts[0]), start=start)

    @torch.inference_mode(False)
    def update(self) -> None:
        """Copy all states that were made or composed since the last call."""
        states, arcs, composed = 2 * self.states.num_states, self.states.num_arcs, self.states.composed
        if (states, len(composed)) == (self._states, self._composed):
            return
        self._take_room(states, arcs)
        arrays, pool = self.states.tensors, self.pool
        # Copy the states made since then, and the states composed since then.
        made, since = slice(self._states, states), composed[self._composed :]
        first = self.firsts[-1] + self._states - self.own[-1]
        # (States without arcs have equal, arbitrary bounds.)
        pool.write("arc_offsets", first, np.maximum(arrays["arc_offsets"][made] + np.int32(self._arc_shift), 0))
        pool.write("backoff_states", first, self.in_pool(arrays["backoff_states"][made]))
        pool.write("backoff_weights", first, arrays["backoff_weights"][made])
        pool.unfinished[first : first + states - self._states] = self.states.arrays["unfinished"][made]
        pool.unfinished[self.in_pool(since)] = 0
        since = since[arrays["arc_offsets"][since] >= self._arcs]  # the other states, under the root, already had their arcs
        where = torch.from_numpy(self.in_pool(since).astype(np.int64)).to(pool.device)
        offsets = [arrays["arc_offsets"][since + end] + np.int32(self._arc_shift) for end in (0, 1)]
        for tensor, at, values in (
            (pool.tensors.arc_offsets, where, offsets[0]),
            (pool.tensors.arc_offsets, where + 1, offsets[1]),
            (pool.tensors.backoff_states, where, self.in_pool(arrays["backoff_states"][since])),
            (pool.tensors.backoff_weights, where, arrays["backoff_weights"][since]),
        ):
            tensor[at] = torch.from_numpy(values).to(pool.device)
        own_arcs, first_arc = slice(self._arcs, arcs), self._arcs + self._arc_shift
        pool.write("arc_tokens", first_arc, arrays["arc_tokens"][own_arcs])
        pool.write("arc_weights", first_arc, arrays["arc_weights"][own_arcs])
        pool.write("arc_targets", first_arc, self.in_pool(arrays["arc_targets"][own_arcs]))
        self._states, self._arcs, self._composed = states, arcs, len(composed)

    def _take_room(self, states: int, arcs: int) -> None:
        """Reserve room for more states and arcs, as a new part. The part begins at the first number that isn't copied yet."""
        if states > self._state_room:
            count = max(states - self._states, states // 4 * 2, LEAST_STATES)
            first, _ = self.pool.take(count, 0)
            self.own, self.firsts = np.append(self.own, self._states), np.append(self.firsts, first)
            self._state_room = self._states + count
            self.places.append(Place(first, first, (first, count), (0, 0)))
        if arcs > self._arc_room:
            count = max(arcs - self._arcs, arcs // 2, LEAST_ARCS)
            _, first = self.pool.take(0, count)
            self._arc_shift, self._arc_room = first - self._arcs, self._arcs + count
            self.places.append(Place(0, 0, (0, 0), (first, count)))

    def in_pool(self, states: np.ndarray) -> np.ndarray:
        """Convert state numbers of the model to state numbers of the pool, int32."""
        part = np.searchsorted(self.own, states, side="right") - 1
        return (states + (self.firsts - self.own)[part]).astype(np.int32)

    def outside(self, states: np.ndarray) -> np.ndarray:
        """Convert state numbers of the pool to state numbers of the model, int32; states of another automaton become -1."""
        order = np.argsort(self.firsts)
        part = order[np.searchsorted(self.firsts[order], states, side="right") - 1]
        within = states - self.firsts[part]
        counts = np.append(self.own[1:], self._states) - self.own
        return np.where((within >= 0) & (within < counts[part]), within + self.own[part], -1).astype(np.int32)

    def leave(self) -> None:
        """Free the room in the pool. Callers must not query the copied states any more."""
        for place in self.places:
            self.pool.give_back(place)
