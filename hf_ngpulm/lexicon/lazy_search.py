"""Searches with lazily composed language models: what they enter is composed until nothing is left to compose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..automaton.pool import AutomatonPool, Place
from ..automaton.tensors import AutomatonTensors
from .lazy_states import LOCK, LazyStates, NgpulmComposing

LEAST_STATES, LEAST_ARCS = 1 << 12, 1 << 12  # of a part of a pool


class LazySearch:
    """The lazily composed automata of a search. As long as there is one of these, states stay what they are.

    Args:
        pool: in which all automata of the search lie; None if there is only one, which is searched where it lies.
        models: the `LazyAutomaton` of each that is lazy.
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
        """Those that are searched, with all that has been composed so far."""
        if self.pool is None:
            return self._only.tensors
        with LOCK:
            for copy in self.copies:
                copy.update()
            return self.pool.tensors

    @property
    def unfinished(self) -> np.ndarray:
        """uint8, by the number of a state in the `tensors` that were asked for last: whether its scores aren't right yet."""
        return self._only.states.arrays["unfinished"] if self.pool is None else self.pool.unfinished

    def _each(self, states: np.ndarray) -> Iterator[tuple[LazyStates, np.ndarray]]:
        """Yield each model's states, and the numbers that some states of the search have there; -1 for those of others."""
        if self.pool is None:
            yield self._only.states, states
        for copy in self.copies:
            yield copy.states, copy.outside(states)

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
        """Return what a search that holds the lock composes states by as it comes to them; None in a pool, which has copies."""
        return self._only.states.composing() if self.pool is None else None

    def search(self, search: Callable[[AutomatonTensors, np.ndarray], None], states: np.ndarray, counts: np.ndarray) -> None:
        """Go on with a search that stops where a row comes to states that are unfinished, until none does.

        Args:
            search: with the automata, and which of their states are unfinished. It may compose some by `composing`.
            states, counts: `[B, N]` and `[B]`, where it writes which ones each row has stopped at, and how many they are.
        """
        with LOCK:
            while True:
                search(self.tensors, self.unfinished)
                if not counts.any():
                    return
                self.enter(states[np.arange(states.shape[1]) < counts[:, None]])

    def enter(self, states: np.ndarray) -> bool:
        """Compose what the scores in some states int32 `[N]` hang on; whether there was anything."""
        with LOCK:
            return any([lazy.enter(own) for lazy, own in self._each(states)])

    def read(self, starts: Tensor, roots: Tensor, texts: Tensor, lengths: Tensor, context_length: int) -> bool:
        """Compose the states along texts, see `BackoffAutomaton.states_after`: `[B]`, `[B]`, `[B, L]` and `[B]`."""
        tokens, sizes = (np.ascontiguousarray(part.cpu().numpy(), dtype=np.int32) for part in (texts, lengths))
        with LOCK:
            each = zip(self._each(starts.cpu().numpy()), self._each(roots.cpu().numpy()))
            return any([lazy.read(context_length, first, empty, tokens, sizes) for (lazy, first), (_, empty) in each])


class InPool:
    """A copy of lazy states in a pool, which `update` brings up to date. States keep their places.

    Parts of it lie wherever there was room when they came.

    Args:
        states: of which there may be more later.
        pool: of any device.
    """

    def __init__(self, states: LazyStates, pool: AutomatonPool) -> None:
        self.states, self.pool = states, pool
        # Parts of the states, by the numbers that they begin with there and in the pool. Each has room for half as many as
        # there are already, so that they are few; so have those of the arcs.
        self.own, self.firsts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.places: list[Place] = []
        self._state_room = self._arc_room = 0  # how far the last part goes, in the automaton
        self._arc_shift = 0  # from an arc there to the one in the pool
        self._states = self._arcs = self._composed = 0  # that have been copied
        self.update()

    @property
    def place(self) -> Place:
        """Return where its first states lie, and in which searches begin."""
        start = int(self.in_pool(np.array([self.states.begin]))[0])
        return self.places[0]._replace(root=int(self.firsts[0]), start=start)

    @torch.inference_mode(False)
    def update(self) -> None:
        """Copy all that has been made and composed since."""
        states, arcs, composed = 2 * self.states.num_states, self.states.num_arcs, self.states.composed
        if (states, len(composed)) == (self._states, self._composed):
            return
        self._take_room(states, arcs)
        arrays, pool = self.states.tensors, self.pool
        # States that are new, as they are when they are made, and those that have been composed since.
        made, since = slice(self._states, states), composed[self._composed :]
        first = self.firsts[-1] + self._states - self.own[-1]
        # (Of states without arcs both ends come to the same, whatever that is.)
        pool.write("arc_offsets", first, np.maximum(arrays["arc_offsets"][made] + np.int32(self._arc_shift), 0))
        pool.write("backoff_states", first, self.in_pool(arrays["backoff_states"][made]))
        pool.write("backoff_weights", first, arrays["backoff_weights"][made])
        pool.unfinished[first : first + states - self._states] = self.states.arrays["unfinished"][made]
        pool.unfinished[self.in_pool(since)] = 0
        since = since[arrays["arc_offsets"][since] >= self._arcs]  # the others, under the root, have had their arcs before
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
        """Take room for more states and arcs, in one part from the first one that hasn't been copied yet."""
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
        """Return the numbers in the pool of states of the automaton, int32."""
        part = np.searchsorted(self.own, states, side="right") - 1
        return (states + (self.firsts - self.own)[part]).astype(np.int32)

    def outside(self, states: np.ndarray) -> np.ndarray:
        """Return the numbers in the automaton of states in the pool, int32; -1 for those of other automata."""
        order = np.argsort(self.firsts)
        part = order[np.searchsorted(self.firsts[order], states, side="right") - 1]
        within = states - self.firsts[part]
        counts = np.append(self.own[1:], self._states) - self.own
        return np.where((within >= 0) & (within < counts[part]), within + self.own[part], -1).astype(np.int32)

    def leave(self) -> None:
        """Give back the room; no state of it may be queried any more."""
        for place in self.places:
            self.pool.give_back(place)
