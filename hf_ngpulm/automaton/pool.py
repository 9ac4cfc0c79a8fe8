"""Keep several automata in one set of tensors. Automata can be added and dropped. Rows of a batch can follow different
automata.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engines.locks import lock_across_forks
from .automaton import BackoffAutomaton
from .tensors import AutomatonTensors

# Hold this lock while a pool changes or is read. A pool with a lazily composed model uses the lock of these models instead.
LOCK = lock_across_forks()
SMALLEST = 1024  # initial capacity, in states and in arcs
LARGEST = 2**31 - 1


class Place(NamedTuple):
    """The place of an automaton in a pool: its root, its start, the range of its states, and the range of its arcs. A range is
    a pair (first, number).
    """

    root: int
    start: int
    states: tuple[int, int]
    arcs: tuple[int, int]


class AutomatonPool:
    """A set of tensors for automata over one vocabulary, on one device.

    Adding or dropping an automaton doesn't move the other automata, so their states stay valid. When the tensors are full,
    copies of twice the size replace the tensors. State 0 belongs to no automaton. In state 0 all tokens score 0.

    Args:
        vocab_size: V, the same for all automata.
        device: device of the tensors.
    """

    # The tensors must not be inference tensors, which couldn't be changed outside of inference mode.
    @torch.inference_mode(False)
    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.places: dict[Hashable, Place] = {}
        self._states, self._arcs = _Room(2), _Room()
        # For each state, whether its scores aren't final yet, on the CPU; lazy language models set it.
        self.unfinished = np.zeros(2, dtype=np.uint8)
        self.tensors = AutomatonTensors.zeros(2, 0, vocab_size, device)

    @torch.inference_mode(False)
    def add(self, key: Hashable, automaton: BackoffAutomaton) -> Place:
        """Copy a single automaton to the pool, under a key, and return its place. If the pool already has the key, only return
        the place of the automaton with this key.

        Raises:
            ValueError: the vocabulary size differs, or the pool would have more states or arcs than can be addressed.
        """
        if key in self.places:
            return self.places[key]
        if automaton.vocab_size != self.vocab_size:
            sizes = f"{self.vocab_size} and {automaton.vocab_size}"
            raise ValueError(f"automata over vocabularies of different sizes ({sizes}) can't be used in one batch")
        t = automaton.tensors
        # One extra state, which nothing leads to: the end of its arcs is arbitrary, so any automaton may follow it.
        states, arcs = self.take(t.num_states + 1, t.num_arcs)
        self.write("arc_offsets", states, t.arc_offsets + arcs)
        self.write("arc_tokens", arcs, t.arc_tokens)
        self.write("arc_weights", arcs, t.arc_weights)
        self.write("arc_targets", arcs, t.arc_targets + states)
        self.write("backoff_states", states, t.backoff_states + states)
        self.write("backoff_weights", states, t.backoff_weights)
        root, start = int(automaton.roots[0]) + states, int(automaton.starts[0]) + states
        self.places[key] = Place(root, start, (states, t.num_states + 1), (arcs, t.num_arcs))
        return self.places[key]

    def drop(self, key: Hashable) -> None:
        """Drop an automaton; callers must not query its states any more."""
        self.give_back(self.places.pop(key))

    @torch.inference_mode(False)
    def take(self, states: int, arcs: int) -> tuple[int, int]:
        """Reserve room for some states and arcs. Return the first state and the first arc. `states`: number of states. `arcs`:
        number of arcs.
        """
        first = self._take(self._states, states), self._take(self._arcs, arcs)
        self._grow()
        return first

    @torch.inference_mode(False)
    def write(self, name: str, first: int, values: Tensor | np.ndarray) -> None:
        """Write values into the tensor `name` (a field of `AutomatonTensors`), starting at index `first`."""
        values = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        getattr(self.tensors, name)[first : first + len(values)] = values.to(self.device)

    def give_back(self, place: Place) -> None:
        """Free the states and arcs of a place."""
        self._states.give_back(*place.states)
        self.unfinished[slice(place.states[0], sum(place.states))] = 0
        self._arcs.give_back(*place.arcs)

    def _take(self, room: _Room, size: int) -> int:
        first = room.take(size)
        if room.size > LARGEST:
            raise ValueError(
                f"language models and phrases in use have {room.size} states or arcs, at most {LARGEST} can be addressed"
            )
        return first

    def _grow(self) -> None:
        states, arcs = self._states.size, self._arcs.size
        grown = []
        for tensor, size in zip(self.tensors, (states + 1, arcs, arcs, arcs, states, states)):
            room = tensor.numel()
            grown.append(tensor)
            if room < size:
                more = min(max(size, 2 * room, SMALLEST), LARGEST) - room
                grown[-1] = torch.nn.functional.pad(tensor, (0, more))
        if all(new is old for new, old in zip(grown, self.tensors)):
            return
        self.tensors = AutomatonTensors(*grown)
        missing = self.tensors.num_states - len(self.unfinished)
        self.unfinished = np.append(self.unfinished, np.zeros(missing, dtype=np.uint8))


class _Room:
    """The numbers that are free: a sorted list of ranges below `size`, and all numbers from `size` on."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self._free: list[tuple[int, int]] = []  # first, number

    def take(self, size: int) -> int:
        """Take `size` adjacent numbers from the first free range that is large enough. Return the first number."""
        for i, (first, number) in enumerate(self._free):
            if number >= size:
                self._free[i : i + 1] = [(first + size, number - size)] if number > size else []
                return first
        first, self.size = self.size, self.size + size
        return first

    def give_back(self, first: int, number: int) -> None:
        if not number:
            return
        insort(self._free, (first, number))
        joined: list[tuple[int, int]] = []
        for first, number in self._free:
            if joined and sum(joined[-1]) == first:
                joined[-1] = (joined[-1][0], joined[-1][1] + number)
            else:
                joined.append((first, number))
        if joined and sum(joined[-1]) == self.size:
            self.size = joined.pop()[0]
        self._free = joined
