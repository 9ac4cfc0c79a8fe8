"""Define `LazyAutomaton`: a word-level LM that is composed with its lexicon on the fly, as searches reach its states."""

from __future__ import annotations

import copy
import logging
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from ..automaton import BackoffAutomaton
from ..automaton.pool import AutomatonPool
from ..automaton.tensors import AutomatonTensors
from ..engines.choice import check_engine
from .composition import SpelledLM
from .lazy_search import InPool
from .lazy_states import LOCK, Bonuses, LazyStates

logger = logging.getLogger(__name__)

# A model drops its composed states when they exceed this number of bytes.
MOST_BYTES = 1 << 31


class LazyAutomaton(BackoffAutomaton):
    """A word-level model composed on the fly, because of `composition="on_the_fly"` or because the model is large.

    The scores equal the scores of the statically composed model, bit for bit. But this model holds only the model over words,
    and the states over tokens that searches have reached (see `hf_ngpulm.lexicon.lazy_states`). These states remain for later
    searches. If the states exceed `most_bytes` and no other search is running, the next search drops them before it begins. The
    model over words stays on the CPU.

    Args:
        spelled: the LM and its spellings.
        engine: as for `NGramLM.from_arpa`.
        bonuses: additions to the word-level model's log-probabilities.

    Attributes:
        most_bytes: limit for the composed states, without the initial states; 2 GiB by default. Copies for searches take
            another 50% of this memory.
        copies: the copy of the states in each `AutomatonPool`.
    """

    is_lazy = True

    def __init__(self, spelled: SpelledLM, engine: str = "auto", bonuses: Bonuses | None = None) -> None:
        nn.Module.__init__(self)
        self.vocab_size, self.context_length = spelled.vocab_size, spelled.context_length
        self.engine = check_engine(engine)
        self.spelled, self.bonuses = spelled, bonuses or Bonuses()
        self.most_bytes = MOST_BYTES
        self._begin()
        self.register_buffer("roots", torch.zeros(1, dtype=torch.int32))
        self.register_buffer("starts", torch.tensor([self.states.begin], dtype=torch.int32))

    def _begin(self) -> None:
        self.states = LazyStates(self.spelled, self.bonuses)
        self._first_bytes = self.states.nbytes
        self.copies: WeakKeyDictionary[AutomatonPool, InPool] = WeakKeyDictionary()
        # The searches that use the states, and whether a caller of the model's own queries may hold some states.
        self._searches: WeakSet[Any] = WeakSet()
        self._handed_out = self._has_told = False
        self._tensors: tuple[Any, AutomatonTensors] | None = None

    def forget(self) -> None:
        """Drop all composed states. States returned earlier become invalid.

        Raises:
            RuntimeError: a search (or an open stream) uses the states.
        """
        if len(self._searches):
            raise RuntimeError("a search uses this language model: close its streams first")
        copies = dict(self.copies)
        self._begin()
        for pool, old in copies.items():
            old.leave()
            self.join_pool(pool)

    def changed(self, bonuses: Bonuses, context_length: int | None = None) -> LazyAutomaton:
        """Return a copy with other bonuses. The copy shares the model over words."""
        spelled = self.spelled if context_length is None else self.spelled._replace(context_length=context_length)
        made = LazyAutomaton(spelled, self.engine, bonuses)
        made.most_bytes = self.most_bytes
        return made.to(self.device)

    def continued(self, share: float, context_length: int) -> LazyAutomaton:
        """Return a copy in which sentences follow one another; see `hf_ngpulm.automaton.continuation.continued`."""
        spelled = self.spelled.continued(share)._replace(context_length=context_length)
        made = LazyAutomaton(spelled, self.engine, self.bonuses)
        made.most_bytes = self.most_bytes
        return made.to(self.device)

    # -- for searches

    def join_pool(self, pool: AutomatonPool) -> None:
        """Copy all states that have been composed into a pool."""
        with LOCK:
            self._start_anew_if_large()
            if pool not in self.copies:
                self.copies[pool] = InPool(self.states, pool)
            self.copies[pool].update()
            pool.places[id(self)] = self.copies[pool].place

    def hold(self, search: Any) -> None:
        """Keep the composed states as long as `search`, a `LazySearch`, lives."""
        with LOCK:
            if search.pool is None:
                self._start_anew_if_large()
            self._searches.add(search)

    def _start_anew_if_large(self) -> None:
        if self.states.nbytes - self._first_bytes <= self.most_bytes:
            return
        size = f"{self.states.nbytes >> 20} MiB of states that have been composed, more than {self.most_bytes >> 20} MiB"
        if not len(self._searches) and not self._handed_out:
            logger.info("the language model over words starts anew: it has %s", size)
            self.forget()
        elif not self._has_told:
            self._has_told = True
            why = "streams are open" if len(self._searches) else "states were asked of the model itself; see its forget()"
            logger.warning("the language model over words has %s, which must stay: %s", size, why)

    # -- the model's own queries

    @property
    def searched(self) -> AutomatonTensors:  # type: ignore[override]
        """The tensors of the states composed so far, with spare room at the end."""
        arrays = self.states.tensors
        # On the CPU the tensors share memory with the arrays; for other devices they are copied again after states were added.
        count = len(self.states.composed) if self.device.type != "cpu" else 0
        key = (self.device, *map(id, arrays.values()), self.states.num_states, count)
        cached = self._tensors  # read once, since other threads may replace it
        if cached is None or cached[0] != key:
            cached = key, AutomatonTensors(*(torch.from_numpy(each).to(self.device) for each in arrays.values()))
            self._tensors = cached
        return cached[1]

    @property
    def num_states(self) -> int:
        """Number of states composed so far."""
        return self.states.num_states

    @property
    def num_arcs(self) -> int:
        """Number of arcs of the states composed so far."""
        return self.states.num_arcs

    @property
    def nbytes(self) -> int:
        """Total size in bytes of the model over words, its lexicon, and the states composed so far."""
        lm = self.spelled.lm
        return lm.automaton.nbytes + sum(a.nbytes for a in (*self.spelled.trie, lm.word_of, lm.form_of)) + self.states.nbytes

    def _states(self, states: Tensor) -> Tensor:
        """Check states, compose all states that a query about them will read, and return the checked states.

        Raises:
            IndexError: `states` contains a number that no state has.
        """
        self._handed_out = True
        checked = super()._states(states)
        numbers = checked.cpu().numpy()
        last = 2 * self.states.num_states - 2
        bad = np.flatnonzero((numbers < 0) | (numbers > last) | (numbers % 2 > 0))
        if len(bad):
            raise IndexError(f"state {numbers[bad[0]]} in row {bad[0]} is none of 0, 2, .., {last}")
        with LOCK:
            self.states.enter(numbers)
        return checked

    def score_tokens(
        self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True, which: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        self._read(token_ids, lengths, bos, which, token_ids.shape[-1] + 1)
        return super().score_tokens(token_ids, lengths, bos, which)

    def states_after(
        self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True, which: Tensor | None = None
    ) -> Tensor:
        self._read(token_ids, lengths, bos, which, self.context_length)
        return super().states_after(token_ids, lengths, bos, which)

    def _read(self, token_ids: Tensor, lengths: Tensor | None, bos: bool, which: Tensor | None, context_length: int) -> None:
        self._handed_out = True
        texts, of_texts = self._rows(token_ids, lengths)
        starts, roots = (self.initial_states(len(texts), after, which) for after in (bos, False))
        arrays = (np.ascontiguousarray(part.cpu().numpy()) for part in (starts, roots, texts, of_texts))
        with LOCK:
            self.states.read(context_length, *arrays)

    def validate(self) -> None:
        """Check the model over words. Errors are as for `BackoffAutomaton.validate`."""
        self.spelled.lm.automaton.validate()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("copies", "_searches", "_tensors", "states")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()

    def __deepcopy__(self, memory: dict[int, Any]) -> LazyAutomaton:
        return copy.copy(self).changed(self.bonuses)
