"""A growing automaton in a pool: parts of it lie wherever there was room when they came."""

from __future__ import annotations

import numpy as np
import torch

from ...automaton.pool import AutomatonPool, Place
from ...automaton.tensors import AutomatonTensors
from .automaton import GrowingAutomaton


class Pooled:
    """A copy in a pool, which `update` brings up to date. States keep their places.

    Args:
        automaton: which grows.
        pool: of any device.
    """

    def __init__(self, automaton: GrowingAutomaton, pool: AutomatonPool) -> None:
        self.automaton, self.pool = automaton, pool
        # Where the states of each part begin in the automaton, and what part of the pool they have.
        self.own = np.zeros(0, dtype=np.int64)
        self.places: list[Place] = []
        self._states = self._arcs = self._epsilons = 0
        self.update()

    @property
    def root(self) -> int:
        return self.places[0].root

    @property
    def start(self) -> int:
        return self.places[0].start

    @torch.inference_mode(False)
    def update(self) -> None:
        """Have all that the automaton has."""
        grown, pool = self.automaton, self.pool
        if grown.num_states == self._states:
            return
        states, arcs = slice(self._states, grown.num_states), slice(self._arcs, grown.num_arcs)
        counts = states.stop - states.start, arcs.stop - arcs.start
        first, first_arc = pool.take(counts[0] + 1, counts[1])  # the state behind says where the arcs of the last one end
        self.own = np.append(self.own, states.start)
        place = Place(first, first + grown.begin - states.start, (first, counts[0] + 1), (first_arc, counts[1]))
        self.places.append(place)
        arrays = dict(zip(AutomatonTensors._fields, grown.arrays))
        offsets = arrays["arc_offsets"][states.start : states.stop + 1] + np.int32(first_arc - arcs.start)
        pool.write("arc_offsets", first, offsets)
        pool.write("arc_tokens", first_arc, arrays["arc_tokens"][arcs])
        pool.write("arc_weights", first_arc, arrays["arc_weights"][arcs])
        pool.write("arc_targets", first_arc, self.in_pool(arrays["arc_targets"][arcs]))
        pool.write("backoff_states", first, self.in_pool(arrays["backoff_states"][states]))
        pool.write("backoff_weights", first, arrays["backoff_weights"][states])
        epsilons = grown.epsilons.used[self._epsilons :]
        if len(epsilons):
            where = torch.from_numpy(self.in_pool(epsilons).astype(np.int64)).to(pool.device)
            to = torch.from_numpy(self.in_pool(arrays["backoff_states"][epsilons])).to(pool.device)
            pool.tensors.backoff_states[where] = to
            pool.tensors.backoff_weights[where] = 0.0
        self._states, self._arcs, self._epsilons = states.stop, arcs.stop, grown.epsilons.size

    def in_pool(self, states: np.ndarray) -> np.ndarray:
        """The numbers in the pool of states of the automaton, int32."""
        part = np.searchsorted(self.own, states, side="right") - 1
        shifts = np.array([place.states[0] for place in self.places]) - self.own
        return (states + shifts[part]).astype(np.int32)

    def outside(self, states: np.ndarray) -> np.ndarray:
        """The numbers in the automaton of states in the pool, int32; -1 for those of other automata."""
        firsts, counts = np.array([place.states for place in self.places]).T
        order = np.argsort(firsts)
        part = order[np.searchsorted(firsts[order], states, side="right") - 1]
        within = states - firsts[part]
        return np.where((within >= 0) & (within < counts[part] - 1), within + self.own[part], -1).astype(np.int32)

    def leave(self) -> None:
        """Give back the room; no state of it may be queried any more."""
        for place in self.places:
            self.pool.give_back(place)
