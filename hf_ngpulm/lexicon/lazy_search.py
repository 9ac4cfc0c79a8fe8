"""Run searches with lazily composed language models. No other module knows when states are composed.

- A search of the core gets the automata from `LazySearch.lent`. The core composes a state when the search enters it. If there
  is no spare room, or if the search reads copies on another device, the core calls a Python function that composes the state.
- Any other search runs in `LazySearch.settled`. The search reports the states that it has entered, and is repeated until it
  enters no new state.
- A query gets the automata from `LazySearch.reading`. `LazySearch.read` composes the states along texts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..automaton.cpu import Automaton
from ..automaton.pool import AutomatonPool, Place
from ..automaton.tensors import AutomatonTensors
from ..engines.native import Function, Struct
from .lazy_states import LOCK, LazyStates

Result = TypeVar("Result")
LEAST_STATES, LEAST_ARCS = 1 << 12, 1 << 12  # states and arcs in the smallest part of a pool

IN_PLACE: dict[str, Any] = dict.fromkeys(("own", "firsts", "copied")) | dict.fromkeys(
    ("num_parts", "room_for_states", "room_for_arcs", "arc_shift"), 0
)
_Finish = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_finished = Function("ngpulm_lazy_finished")


class NgpulmComposing(Struct):
    """The arguments for composing states during a search on several threads.

    Members:
        sources: `[num_sources]`, addresses of `NgpulmLazySource` structs.
        unfinished: for each state, 1 if its scores aren't final yet.
        is_busy: `[1]`, 1 while a thread composes.
        finish: address of a function that composes a state if the core can't. It returns 0, or any other number on failure.
    """


class NgpulmLazySource(Struct):
    """A lazily composed model in a search of the core.

    Members:
        made, lm, words, trie: see `LazyStates.native`.
        own, firsts, copied, num_parts, room_for_states, room_for_arcs, arc_shift: these describe the copy of the states that
            the search reads, see `InPool`. `num_parts` is 0 if the search reads the model's own states.
    """


class LazySearch:
    """The lazily composed automata of a search. While this object lives, states keep their numbers.

    Args:
        pool: the pool with all automata of the search; None if the search has only one automaton, which it reads in place.
        models: the `LazyAutomaton`s of the search.
    """

    def __init__(self, pool: AutomatonPool | None, models: Sequence[Any]) -> None:
        self.pool = pool
        self._only = models[0]
        for model in models:
            model.hold(self)
        self.copies: list[InPool] = [] if pool is None else [model.copies[pool] for model in models]

    @property
    def tensors(self) -> AutomatonTensors:
        """The tensors that the search reads, with all states composed so far."""
        with LOCK:
            return self._updated()

    @contextmanager
    def lent(self, vocab_size: int) -> Iterator[Automaton]:
        """Lend the automata to calls of the core, as a context manager. The core composes the states that it enters. Until the
        context ends, other searches wait.

        Raises NGramFormatError if a model has more states than can be addressed.
        """
        errors: list[BaseException] = []
        replaced: list[Any] = []  # arrays and structs that other threads of the search may still read

        def finish(state: int) -> int:
            try:
                self.compose(np.array([state], dtype=np.int32))
                replaced.append((automaton._alive.copy(), composing._alive.copy()))
                tensors, sources, members = self._told()
                replaced.append(sources)
                automaton.num_states = tensors.num_states
                for struct, values in ((automaton, tensors._asdict()), (composing, members)):
                    for name, value in values.items():
                        struct.put(name, value)
            except BaseException as error:  # an exception must be kept, but must not pass through the core's frames
                errors.append(error)
            return len(errors)

        callback = _Finish(finish)
        with LOCK:
            tensors, sources, members = self._told()
            address = ctypes.c_void_p.from_buffer(callback).value  # ctypes.cast would make a cycle of references
            composing = NgpulmComposing(
                **members, is_busy=np.zeros(1, dtype=np.int32), num_sources=len(sources), finish=address
            )
            automaton = Automaton.of(tensors, vocab_size, composing)
            try:
                yield automaton
            except RuntimeError:
                if errors:
                    raise errors[0] from None
                raise

    def settled(
        self,
        search: Callable[[AutomatonTensors], Result],
        states: Tensor,
        trace: Callable[[Result], tuple[Any, Any]],
        not_tokens: int = -1,
    ) -> Result:
        """Repeat a search until it enters no new state, and return its last result.

        Args:
            search: function that takes the automata and returns a result. It may run again, so it must not change its own
                initial state.
            states: int32 `[B, K, M]`, the initial states of the search's hypotheses in each model.
            trace: function that takes a result and returns its links and labels, as for `replay`.
            not_tokens: as for `replay`.
        """
        with LOCK:
            while True:
                result = search(self._updated())
                if not self.replay(states, *trace(result), not_tokens):
                    return result

    def replay(self, states: Tensor, links: Any, labels: Any, not_tokens: int = -1) -> bool:
        """Compose the states that a search of `S` steps has entered.

        Args:
            states: int32 `[B, K, M]`, the initial states of the search's hypotheses in each model.
            links: `[B, S, K]`, for each hypothesis after a step, the index of the continued hypothesis before the step. None
                means that each hypothesis continues itself.
            labels: `[B, S, K]`, new token of each hypothesis. A label below 0 means no token.
            not_tokens: another label that isn't a token.

        Returns:
            Whether any state was composed. If so, the search must be repeated.
        """
        labels = _on_host(labels)
        links = np.broadcast_to(np.arange(labels.shape[2], dtype=np.int32), labels.shape) if links is None else links
        links, first, is_new = _on_host(links), _on_host(states), False
        with LOCK:
            for column in range(first.shape[2]):
                for lazy, own in self._each(first[..., column]):
                    rows = np.flatnonzero((own >= 0).any(1))
                    if len(rows):
                        is_new |= lazy.replay(own[rows], links[rows], labels[rows], not_tokens)
        return is_new

    def reading(self, states: Tensor) -> AutomatonTensors:
        """Compose all states on which the scores in `states` (a tensor of any shape) depend, and return the automata."""
        with LOCK:
            self.compose(_on_host(states).ravel())
            return self._updated()

    def read(self, starts: Tensor, roots: Tensor, texts: Tensor, lengths: Tensor, context_length: int) -> AutomatonTensors:
        """Compose the states along texts, and return the automata.

        The arguments `[B]`, `[B]`, `[B, L]` and `[B]` are as for `LazyStates.read`.
        """
        tokens, sizes = _on_host(texts), _on_host(lengths)
        with LOCK:
            for (lazy, own), (_, empty) in zip(self._each(_on_host(starts)), self._each(_on_host(roots))):
                lazy.read(context_length, own, empty, tokens, sizes)
            return self._updated()

    def compose(self, states: np.ndarray) -> None:
        """Compose all states on which the scores in `states`, int32 `[N]`, depend. The caller must hold the lock."""
        for lazy, own in self._each(states):
            lazy.enter(own)

    def _updated(self) -> AutomatonTensors:
        for pooled in self.copies:
            pooled.update()
        return self._only.tensors if self.pool is None else self.pool.tensors

    def _each(self, states: np.ndarray) -> Iterator[tuple[LazyStates, np.ndarray]]:
        """For each model, yield the model's `LazyStates`, and `states` in the model's own numbering. A state of another model
        becomes -1.
        """
        if self.pool is None:
            yield self._only.states, states
        for pooled in self.copies:
            yield pooled.states, pooled.outside(states)

    def _told(self) -> tuple[AutomatonTensors, list[NgpulmLazySource], dict[str, np.ndarray]]:
        """Return three values: the automata on the CPU, a struct for each model, and the members of `NgpulmComposing` that
        change.
        """
        tensors = AutomatonTensors(*(tensor.cpu() for tensor in self._updated()))
        if self.pool is None:
            states = self._only.states
            sources, unfinished = [NgpulmLazySource(**states.native, **IN_PLACE)], states.arrays["unfinished"]
        else:
            copies = self.copies if self.pool.device.type == "cpu" else []
            sources, unfinished = [pooled.native for pooled in copies], self.pool.unfinished
        addresses = np.array([ctypes.addressof(source) for source in sources], dtype=np.int64)
        return tensors, sources, {"sources": addresses, "unfinished": unfinished}


def _on_host(values: Any) -> np.ndarray:
    values = values.cpu().numpy() if isinstance(values, Tensor) else values
    return np.ascontiguousarray(values, dtype=np.int32)


class InPool:
    """A copy of lazy states in a pool. `update` brings the copy up to date. States keep their numbers in the pool.

    The copy has several parts. The numbers within a part are adjacent. When the states need more room, a new part is added.

    Args:
        states: the states, which may grow.
        pool: the pool, on any device.

    Attributes:
        own: int64 `[P]`, number of each part's first state in the model.
        firsts: int64 `[P]`, number of the same state in the pool.
        copied: int64 `[3]`, how many state numbers, arcs and composed states have been copied so far.
    """

    def __init__(self, states: LazyStates, pool: AutomatonPool) -> None:
        self.states, self.pool = states, pool
        # Each new part has room for half as many states as exist, so that there are few parts; likewise for arcs.
        self.own, self.firsts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.copied = np.zeros(3, dtype=np.int64)
        self.places: list[Place] = []
        self._state_room = self._arc_room = 0  # end of the last part, as a number in the model
        self._arc_shift = 0  # offset from arcs there to arcs in the pool
        self.update()

    @property
    def place(self) -> Place:
        """The place of the copy's first part. Its `root` and `start` are the model's root and start, as numbers in the pool."""
        start = int(self.in_pool(np.array([self.states.begin]))[0])
        return self.places[0]._replace(root=int(self.firsts[0]), start=start)

    @torch.inference_mode(False)
    def update(self) -> None:
        """Copy all states that were made or composed since the last call."""
        states, arcs, composed = 2 * self.states.num_states, self.states.num_arcs, self.states.composed
        old_states, old_arcs, old_composed = self.copied.tolist()
        if (states, len(composed)) == (old_states, old_composed):
            return
        self._take_room(states, arcs)
        arrays, pool = self.states.tensors, self.pool
        # Copy the states made since then, and the states composed since then.
        made, since = slice(old_states, states), composed[old_composed:]
        first = self.firsts[-1] + old_states - self.own[-1]
        # (States without arcs have equal, arbitrary bounds.)
        pool.write("arc_offsets", first, np.maximum(arrays["arc_offsets"][made] + np.int32(self._arc_shift), 0))
        pool.write("backoff_states", first, self.in_pool(arrays["backoff_states"][made]))
        pool.write("backoff_weights", first, arrays["backoff_weights"][made])
        pool.unfinished[first : first + states - old_states] = self.states.arrays["unfinished"][made]
        finished = self.in_pool(since)
        since = since[arrays["arc_offsets"][since] >= old_arcs]  # the other states, under the root, already had their arcs
        where = torch.from_numpy(self.in_pool(since).astype(np.int64)).to(pool.device)
        offsets = [arrays["arc_offsets"][since + end] + np.int32(self._arc_shift) for end in (0, 1)]
        for tensor, at, values in (
            (pool.tensors.arc_offsets, where, offsets[0]),
            (pool.tensors.arc_offsets, where + 1, offsets[1]),
            (pool.tensors.backoff_states, where, self.in_pool(arrays["backoff_states"][since])),
            (pool.tensors.backoff_weights, where, arrays["backoff_weights"][since]),
        ):
            tensor[at] = torch.from_numpy(values).to(pool.device)
        own_arcs, first_arc = slice(old_arcs, arcs), old_arcs + self._arc_shift
        pool.write("arc_tokens", first_arc, arrays["arc_tokens"][own_arcs])
        pool.write("arc_weights", first_arc, arrays["arc_weights"][own_arcs])
        pool.write("arc_targets", first_arc, self.in_pool(arrays["arc_targets"][own_arcs]))
        _finished(len(finished), finished, pool.unfinished)  # last, as another thread may read what is finished
        self.copied[:] = states, arcs, len(composed)

    def _take_room(self, states: int, arcs: int) -> None:
        """Reserve room in the pool so that `states` state numbers and `arcs` arcs fit. New room becomes a new part, for states
        and arcs that aren't copied yet.
        """
        copied_states, copied_arcs, _ = self.copied.tolist()
        if states > self._state_room:
            count = max(states - copied_states, states // 4 * 2, LEAST_STATES)
            first, _ = self.pool.take(count, 0)
            self.own, self.firsts = np.append(self.own, copied_states), np.append(self.firsts, first)
            self._state_room = copied_states + count
            self.places.append(Place(first, first, (first, count), (0, 0)))
        if arcs > self._arc_room:
            count = max(arcs - copied_arcs, arcs // 2, LEAST_ARCS)
            _, first = self.pool.take(0, count)
            self._arc_shift, self._arc_room = first - copied_arcs, copied_arcs + count
            self.places.append(Place(0, 0, (0, 0), (first, count)))

    @property
    def native(self) -> NgpulmLazySource:
        """The struct for the core."""
        return NgpulmLazySource(
            **self.states.native, own=self.own, firsts=self.firsts, copied=self.copied, num_parts=len(self.own),
            room_for_states=self._state_room, room_for_arcs=self._arc_room, arc_shift=self._arc_shift,
        )  # fmt: skip

    def in_pool(self, states: np.ndarray) -> np.ndarray:
        """Convert state numbers of the model to state numbers of the pool, int32."""
        part = np.searchsorted(self.own, states, side="right") - 1
        return (states + (self.firsts - self.own)[part]).astype(np.int32)

    def outside(self, states: np.ndarray) -> np.ndarray:
        """Convert state numbers of the pool to state numbers of the model, int32; states of another automaton become -1."""
        order = np.argsort(self.firsts)
        part = order[np.searchsorted(self.firsts[order], states, side="right") - 1]
        within = states - self.firsts[part]
        counts = np.append(self.own[1:], self.copied[0]) - self.own
        return np.where((within >= 0) & (within < counts[part]), within + self.own[part], -1).astype(np.int32)

    def leave(self) -> None:
        """Free the room in the pool. Callers must not query the copied states any more."""
        for place in self.places:
            self.pool.give_back(place)
