"""A growing automaton in a pool: parts of it lie wherever there was room when they came."""

from __future__ import annotations

import numpy as np
import torch

from ..automaton.pool import AutomatonPool, Place
from ..automaton.tensors import AutomatonTensors
from .lazy_automaton import GrowingAutomaton

LEAST_STATES, LEAST_ARCS = 1 << 12, 1 << 12  # of a part


class Pooled:
    """A copy in a pool, which `update` brings up to date. States keep their places.

    Args:
        automaton: which grows.
        pool: of any device.
    """

    def __init__(self, automaton: GrowingAutomaton, pool: AutomatonPool) -> None:
        self.automaton, self.pool = automaton, pool
        # Parts of the automaton's states, by the numbers that they begin with there and in the pool. Each has room for half as
        # many as there are already, so that they are few; so have those of the arcs.
        self.own, self.firsts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.places: list[Place] = []
        self._state_room = self._arc_room = 0  # how far the last part goes, in the automaton
        self._arc_shift = 0  # from an arc there to the one in the pool
        self._states = self._arcs = self._composed = 0  # that have been copied
        self.update()

    @property
    def root(self) -> int:
        return int(self.firsts[0])

    @property
    def start(self) -> int:
        return int(self.in_pool(np.array([self.automaton.begin]))[0])

    @torch.inference_mode(False)
    def update(self) -> None:
        """Have all that the automaton has."""
        grown = self.automaton
        states, arcs, composed = 2 * grown.num_states, grown.num_arcs, grown.composed
        if (states, len(composed)) == (self._states, self._composed):
            return
        arrays = dict(zip(AutomatonTensors._fields, grown.arrays))
        if states > self._state_room:
            self._take_states(states)
        if arcs > self._arc_room:
            self._take_arcs(arcs)
        # States that are new, as they are when they are made, and those that have been composed since.
        made, since = slice(self._states, states), composed[self._composed :]
        first = self.firsts[-1] + self._states - self.own[-1]
        # (Of states without arcs both ends come to the same, whatever that is.)
        offsets = arrays["arc_offsets"][made] + np.int32(self._arc_shift)
        self.pool.write("arc_offsets", first, np.maximum(offsets, 0))
        self.pool.write("backoff_states", first, self.in_pool(arrays["backoff_states"][made]))
        self.pool.write("backoff_weights", first, arrays["backoff_weights"][made])
        self.pool.unfinished[first : first + states - self._states] = grown.unfinished[made]
        self.pool.unfinished[self.in_pool(since)] = 0
        since = since[arrays["arc_offsets"][since] >= self._arcs]  # the others, under the root, have had their arcs before
        at_pool = self.in_pool(since)
        where = torch.from_numpy(at_pool.astype(np.int64)).to(self.pool.device)
        tensors = self.pool.tensors
        for behind in (0, 1):
            ends = torch.from_numpy(arrays["arc_offsets"][since + behind] + np.int32(self._arc_shift))
            tensors.arc_offsets[where + behind] = ends.to(self.pool.device)
        tensors.backoff_states[where] = torch.from_numpy(self.in_pool(arrays["backoff_states"][since])).to(self.pool.device)
        tensors.backoff_weights[where] = torch.from_numpy(arrays["backoff_weights"][since]).to(self.pool.device)
        own_arcs, first_arc = slice(self._arcs, arcs), self._arcs + self._arc_shift
        self.pool.write("arc_tokens", first_arc, arrays["arc_tokens"][own_arcs])
        self.pool.write("arc_weights", first_arc, arrays["arc_weights"][own_arcs])
        self.pool.write("arc_targets", first_arc, self.in_pool(arrays["arc_targets"][own_arcs]))
        self._states, self._arcs, self._composed = states, arcs, len(composed)

    def _take_states(self, states: int) -> None:
        """Take room for more states, in one part from the first one that hasn't been copied yet."""
        count = max(states - self._states, states // 4 * 2, LEAST_STATES)
        first, _ = self.pool.take(count, 0)
        self.own, self.firsts = np.append(self.own, self._states), np.append(self.firsts, first)
        self._state_room = self._states + count
        self.places.append(Place(first, first, (first, count), (0, 0)))

    def _take_arcs(self, arcs: int) -> None:
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


class Alone:
    """A growing automaton that searches use where it lies, as long as nothing else takes part in them."""

    def __init__(self, automaton: GrowingAutomaton) -> None:
        self.automaton = automaton

    def update(self) -> None:
        """Do nothing: it is where it grows."""

    def outside(self, states: np.ndarray) -> np.ndarray:
        """Return the same states."""
        return states
