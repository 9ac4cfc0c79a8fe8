"""LazyAutomaton: a language model over tokens that is composed of one over words as searches come to its states."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from ..automaton import BackoffAutomaton
from ..automaton.pool import AutomatonPool
from ..automaton.tensors import AutomatonTensors
from ..config.word_summary import WordSummary
from ..engines.choice import check_engine
from .lazy_automaton import LOCK, GrowingAutomaton, Texts
from .lazy_pool import Alone, Pooled
from .unknowns import grade_unknown_words
from .word_parts import WordParts

logger = logging.getLogger(__name__)

# What the states that have been composed may take before a model starts anew, in bytes.
MOST_BYTES = 1 << 31


class Grades(NamedTuple):
    """What unknown words cost by their length, see `hf_ngpulm.lexicon.unknowns`."""

    piece_lengths: tuple[int, ...]
    scored: float
    charged: tuple[float, ...]
    whole: float


class Bonuses(NamedTuple):
    """What differs from the word-level model's own probabilities.

    Args:
        word: natural log, added to each word.
        delimiter: natural log, added to each delimiter where no word has begun, but at the beginning of a text.
        begins_at_start: whether texts begin after `<s>`, or without context.
        grades: of unknown words; None: each costs the same for each token.
    """

    word: float = 0.0
    delimiter: float = 0.0
    begins_at_start: bool = True
    grades: Grades | None = None


class LazyAutomaton(BackoffAutomaton):
    """A word-level model for which `composition="on_the_fly"` was asked, or which is too large to be composed as a whole.

    It scores as the whole would, to the bit; what it holds is the model over words, and those states over tokens that have been
    asked for (see `hf_ngpulm.lexicon.lazy_automaton`). These stay for the next search, until they take more than
    `most_bytes`: then the next search that begins while no other goes on starts anew. The model over words stays on the CPU.

    Args:
        parts: what is composed.
        words: what is known of it.
        vocab_size: V.
        engine: see `NGramLM.from_arpa`.
        bonuses: what differs from the word-level model's probabilities.

    Attributes:
        most_bytes: 2 GiB by default, besides what a model begins with. The copies that searches use take half as much again.
    """

    is_lazy = True

    def __init__(
        self,
        parts: WordParts,
        words: WordSummary,
        vocab_size: int,
        engine: str = "auto",
        bonuses: Bonuses | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.vocab_size, self.context_length = vocab_size, words.context_length
        self.engine = check_engine(engine)
        self.parts, self.words, self.bonuses = parts, words, bonuses or Bonuses()
        self.most_bytes = MOST_BYTES
        self._begin()
        self.register_buffer("roots", torch.zeros(1, dtype=torch.int32))
        self.register_buffer("starts", torch.tensor([self.growing.begin], dtype=torch.int32))

    def _begin(self) -> None:
        parts, bonuses, words = self.parts, self.bonuses, self.words

        def graded(tensors: AutomatonTensors, contexts: int) -> AutomatonTensors:
            assert bonuses.grades is not None
            return grade_unknown_words(tensors, replace(words, num_contexts=contexts), *bonuses.grades)

        self.growing = GrowingAutomaton(
            parts.lm, parts.trie, parts.boundaries, parts.unknown_score, parts.unknown_token_score, bonuses.word,
            bonuses.delimiter, bonuses.begins_at_start, None if bonuses.grades is None else graded,
        )  # fmt: skip
        self._first_bytes = self.growing.nbytes
        # Copies in pools, and the searches that use them; whether states are in the hands of who asked the model itself.
        self._pooled: WeakKeyDictionary[AutomatonPool, Pooled] = WeakKeyDictionary()
        self._searches: WeakSet[Any] = WeakSet()
        self._handed_out = self._has_told = False
        self._tensors: tuple[Any, AutomatonTensors] | None = None

    def forget(self) -> None:
        """Drop what has been composed. States that the model has given out mean nothing from then on.

        Raises:
            RuntimeError: a search (a stream that is open) goes on.
        """
        if len(self._searches):
            raise RuntimeError("a search goes on in this language model: end its streams first")
        pooled = dict(self._pooled)
        self._begin()
        for pool, old in pooled.items():
            old.leave()
            self.join_pool(pool)

    def changed(self, bonuses: Bonuses, words: WordSummary | None = None) -> LazyAutomaton:
        """Return the same with other bonuses; the model over words is shared."""
        made = LazyAutomaton(self.parts, words or self.words, self.vocab_size, self.engine, bonuses)
        made.most_bytes = self.most_bytes
        return made.to(self.device)

    # -- what searches ask

    def join_pool(self, pool: AutomatonPool) -> None:
        """Lie in a pool, with all that has been composed so far."""
        with LOCK:
            self._start_anew_if_large()
            if pool not in self._pooled:
                self._pooled[pool] = Pooled(self.growing, pool)
            self._pooled[pool].update()
            pooled = self._pooled[pool]
            pool.places[id(self)] = pooled.places[0]._replace(root=pooled.root, start=pooled.start)

    def joined(self, pool: AutomatonPool | None, search: object) -> Pooled | Alone:
        """Return what a search composes, and keep its states as long as the search is there; without a pool it uses them where
        they lie."""
        if pool is None:
            with LOCK:
                self._start_anew_if_large()
        self._searches.add(search)
        return Alone(self.growing) if pool is None else self._pooled[pool]

    def _start_anew_if_large(self) -> None:
        if self.growing.nbytes - self._first_bytes <= self.most_bytes:
            return
        size = f"{self.growing.nbytes >> 20} MiB of states that have been composed, more than {self.most_bytes >> 20} MiB"
        if not len(self._searches) and not self._handed_out:
            logger.info("the language model over words starts anew: it has %s", size)
            self.forget()
        elif not self._has_told:
            self._has_told = True
            why = "streams are open" if len(self._searches) else "states were asked of the model itself; see its forget()"
            logger.warning("the language model over words has %s, which must stay: %s", size, why)

    # -- what it is asked itself

    @property
    def tensors(self) -> AutomatonTensors:  # type: ignore[override]
        """Of what has been composed so far, with spare room after."""
        arrays = self.growing.arrays
        # On the CPU they share their memory; elsewhere they are copied when there is more.
        count = len(self.growing.composed) if self.device.type != "cpu" else 0
        key = (self.device, *map(id, arrays), self.growing.num_states, count)
        if self._tensors is None or self._tensors[0] != key:
            tensors = AutomatonTensors(*(torch.from_numpy(array).to(self.device) for array in arrays))
            self._tensors = (key, tensors)
        return self._tensors[1]

    @property
    def num_states(self) -> int:
        """States that have been composed so far."""
        return self.growing.num_states

    @property
    def num_arcs(self) -> int:
        """Arcs of these."""
        return self.growing.num_arcs

    @property
    def nbytes(self) -> int:
        """Bytes of the model over words, its lexicon, and what has been composed so far."""
        arrays = [*self.parts.trie, self.parts.lm.word_of, self.parts.lm.form_of]
        return self.parts.lm.automaton.nbytes + sum(array.nbytes for array in arrays) + self.growing.nbytes

    def scores(self, states: Tensor) -> Tensor:
        self._enter(states)
        return super().scores(states)

    def advance(self, states: Tensor) -> tuple[Tensor, Tensor]:
        self._enter(states)
        return super().advance(states)

    def step(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self._enter(states)
        return super().step(states, tokens)

    def final_scores(self, states: Tensor) -> Tensor:
        self._enter(states)
        return super().final_scores(states)

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

    def _enter(self, states: Tensor) -> None:
        self._handed_out = True
        numbers = self._states(states).cpu().numpy()
        last = 2 * self.growing.num_states - 2
        bad = np.flatnonzero((numbers < 0) | (numbers > last) | (numbers % 2 > 0))
        if len(bad):
            raise IndexError(f"state {numbers[bad[0]]} in row {bad[0]} is none of 0, 2, .., {last}")
        self.growing.enter(numbers)

    def _read(self, token_ids: Tensor, lengths: Tensor | None, bos: bool, which: Tensor | None, context_length: int) -> None:
        self._handed_out = True
        texts, of_texts = self._rows(token_ids, lengths)
        starts, roots = (self.initial_states(len(texts), behind, which) for behind in (bos, False))
        arrays = [np.ascontiguousarray(part.cpu().numpy()) for part in (starts, roots, texts, of_texts)]
        self.growing.read(Texts(context_length, *arrays))

    def validate(self) -> None:
        """Check the model over words. Raises what the same of `BackoffAutomaton` raises."""
        self.parts.lm.automaton.validate()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in ("_pooled", "_searches", "_tensors", "growing")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()

    def __deepcopy__(self, memory: dict[int, Any]) -> LazyAutomaton:
        return copy.copy(self).changed(self.bonuses)
