"""A word-level LM composed with a lexicon as far as searches have come.

Composing all states of a large LM (see `hf_ngpulm.lexicon.composition`) takes more memory than there is, and a search enters
few of them. Here a state (h, x), prefix x under state h of the LM, is *made* when the state before it is composed, with its
number, its mass, and what it backs off to; and *composed*, its arcs written, when a search enters it. So the first state of a
word costs reading the words that the LM has after h, once, and a later one those of these words that begin with x.

A state's scores are right once it and all that it backs off to are composed; until then it is *unfinished*. What a search reads
in such a state isn't right: as if the LM had no n-grams of its own there. So searches stop where they enter one, or say
afterwards which states they have entered (`replay`); these are composed, and the search goes on, or is done again. No state
that anyone knows changes its number or what it means. A search that has entered no unfinished state has scored as the whole
composed automaton does, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch

from ..automaton.tensors import AutomatonTensors
from ..engines.native import Function
from ..errors import NGramFormatError
from .composition import compose_states
from .lazy_arrays import ARCS, COMPOSED, FORMS, OF_ARCS, OF_STATE, OF_STATES, OF_WORDS, STATES, Grown, NgpulmLazyAutomaton
from .spellings import Boundaries
from .trie import Trie
from .word_lm import FormLM, WordLM

# Searches with growing automata take turns: one that reads a state which another composes at that moment wouldn't notice.
LOCK = RLock()
# What of a base is changed before anything else is made: its tensors, and how many states are the LM's own, to other tensors.
# States after those may move up by a number that all share.
Change = Callable[[AutomatonTensors, int], AutomatonTensors]
SMALLEST = 1024  # room
# Tokens that words may go on with, composed ahead of a search that is done again: more make fewer searches, and more states.
AHEAD = 2
# Why composing has stopped.
DONE, NO_ROOM, NO_ROOM_FOR_WORDS, BAD_STATE = range(4)

_enter = Function("ngpulm_lazy_enter")
_replay = Function("ngpulm_lazy_replay")
_read = Function("ngpulm_lazy_read")


class Texts(NamedTuple):
    """Texts that are read, see `BackoffAutomaton.states_after`.

    Args:
        context_length: tokens of a context.
        starts, roots: int32 `[B]`, where each begins, and where it does if that lies too far back; below 0 for none.
        tokens: int32 `[B, L]`.
        lengths: int32 `[B]`.
    """

    context_length: int
    starts: np.ndarray
    roots: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray


class GrowingAutomaton:
    """A composed automaton that grows, in arrays on the CPU. State 0 is its root; states have even numbers.

    The arrays have spare room after the states and arcs that there are, and are other ones after that is used up.

    Args:
        lm: over words.
        trie: of their spellings.
        boundaries: of words.
        unknown_score, unknown_token_score: see `hf_ngpulm.lexicon.composition.compose_automaton`.
        word_bonus: natural log, added to each word.
        delimiter_bonus: natural log, added to each delimiter where no word has begun, but at the start of a text.
        begins_at_start: whether texts begin after `<s>`, or without context.
        change: of the first states: those under the LM's root.
    """

    def __init__(
        self,
        lm: WordLM,
        trie: Trie,
        boundaries: Boundaries,
        unknown_score: float,
        unknown_token_score: float,
        word_bonus: float = 0.0,
        delimiter_bonus: float = 0.0,
        begins_at_start: bool = True,
        change: Change | None = None,
    ) -> None:
        self.lm, self.trie, self.boundaries = lm, trie, boundaries
        self.vocab_size = len(boundaries.begins_word)
        begin = lm.start if begins_at_start else 0
        self._settings = {
            "vocab_size": self.vocab_size, "delimiter": boundaries.delimiter_id, "start": lm.start,
            "longest_chain": lm.automaton.context_length + 1, "begin": begin, "unknown_token": float(unknown_token_score),
            "word_bonus": float(word_bonus), "delimiter_bonus": float(delimiter_bonus),
        }  # fmt: skip
        self._counts = np.zeros(5, dtype=np.int64)
        self._parts = (*lm.native, trie.native)
        self._grown: Grown
        self._native: NgpulmLazyAutomaton
        self._begin(unknown_score, unknown_token_score, change)
        self.begin = self.state_of(begin)
        self.enter(np.array([self.begin], dtype=np.int32))  # whoever begins a search may read it

    @property
    def num_states(self) -> int:
        """States that have been made."""
        return int(self._counts[STATES])

    @property
    def num_arcs(self) -> int:
        return int(self._counts[ARCS])

    @property
    def composed(self) -> np.ndarray:
        """Numbers of the states that have been composed, in the order in which they were."""
        return 2 * self._grown.composed[: self._counts[COMPOSED]]

    @property
    def nbytes(self) -> int:
        """Bytes of all that grows."""
        sizes = self._counts[[FORMS, STATES, ARCS]].tolist()
        parts = ((self._grown[part], size) for part, size in zip((OF_WORDS, OF_STATES, OF_ARCS), sizes))
        return sum(size * array.itemsize for arrays, size in parts for array in arrays) + sizes[1] * 2 * (1 + 4 + 4 + 4)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The fields of `AutomatonTensors`, with spare room."""
        return self._grown[15:]

    @property
    def unfinished(self) -> np.ndarray:
        """uint8, by number of a state: whether it is unfinished."""
        return self._grown.unfinished

    def state_of(self, of_lm: int) -> int:
        """Return the number of a state of the LM, with the empty prefix."""
        return 2 * int(self._grown.own_state[of_lm]) - 2

    def replay(self, states: np.ndarray, links: np.ndarray, labels: np.ndarray, not_tokens: int) -> bool:
        """Compose what a search of `B` rows and `K` hypotheses has entered.

        Args:
            states: int32 `[B, K]`, those in which its hypotheses began; -1 for none.
            links: int32 `[B, S, K]`, the hypothesis that each comes from at each step.
            labels: int32 `[B, S, K]`, the token that it gets; below 0 for none.
            not_tokens: a label that is none either.

        Returns:
            Whether there was anything to compose: then the search has to be done again.
        """
        now, steps = np.array(states, dtype=np.int32), np.full(len(states), -1, dtype=np.int64)
        return self._compose(_replay, now, steps, links, labels, *labels.shape, not_tokens, AHEAD)

    def read(self, texts: Texts) -> bool:
        """Return the same for the states along texts, from where `BackoffAutomaton.states_after` begins to read them."""
        now, positions = np.array(texts.starts, dtype=np.int32), np.full(len(texts.starts), -1, dtype=np.int64)
        return self._compose(
            _read, now, positions, texts.roots, texts.tokens, texts.lengths, *texts.tokens.shape, texts.context_length
        )

    def enter(self, states: np.ndarray) -> bool:
        """Compose what the scores in some states int32 `[N]` (below 0 for none) hang on; whether there was anything."""
        return self._compose(_enter, states, len(states))

    def _compose(self, compose: Function, *arguments: Any) -> bool:
        """Have something composed, making room until there is enough; whether there was anything."""
        has_grown = np.zeros(1, dtype=np.uint8)
        with LOCK:
            while (why := compose(self._native, *self._parts, *arguments, has_grown)) != DONE:
                if why == BAD_STATE:
                    raise IndexError(f"a search names states that aren't among 0, 2, .., {2 * self.num_states - 2}")
                self._widen(*((OF_STATES, OF_ARCS) if why == NO_ROOM else (OF_WORDS,)))
        return bool(has_grown[0])

    def _widen(self, *parts: slice) -> None:
        """Double the room for some of what grows."""
        grown, arrays = self._grown, dict[str, int]()
        for part in parts:
            size = 2 * len(grown[part][0])
            arrays |= dict.fromkeys(Grown._fields[part], size)
            if part is OF_WORDS:
                arrays["word_offsets"] = 2 * len(grown.word_offsets)
            if part is OF_STATES:
                arrays |= {"unfinished": 2 * size, "arc_offsets": 2 * size + 1, "backoff_states": 2 * size}
                arrays["backoff_weights"] = 2 * size
            if size >= 2**30 if part is OF_STATES else size >= 2**32:
                what = "states" if part is OF_STATES else "arcs"
                raise NGramFormatError(
                    f"composed as far as searches have come the language model has more than {size // 2:,} {what}, which "
                    "can't be addressed: have it forget() its states, or lower most_bytes"
                )
        self._use(grown._replace(**{name: _widened(getattr(grown, name), size) for name, size in arrays.items()}))

    def _use(self, grown: Grown) -> None:
        self._grown = grown
        self._native = NgpulmLazyAutomaton(
            **grown._asdict(), counts=self._counts, room_for_read=len(grown.word_offsets), room_for_forms=len(grown.forms),
            room_for_states=len(grown.of_lm), room_for_arcs=len(grown.arc_weights),
            token_bytes=grown.arc_tokens.itemsize, **self._settings,
        )  # fmt: skip

    def _begin(self, unknown: float, unknown_token: float, change: Change | None) -> None:
        """Compose the LM's root, with all nodes; make the states of what follows each word there."""
        lm, trie, settings = self.lm, self.trie, self._settings
        arcs, lm_backoffs = lm.forms(1), lm.automaton.tensors.backoff_states.numpy()
        of_lm = np.concatenate([arcs.targets, [lm.unknown_target, lm.start]]).astype(np.int32)
        behind = with_backoffs(lm_backoffs, of_lm)  # in ascending order, and the root is the first one
        first = 1 + trie.num_nodes  # of the states that have no arcs yet
        own = np.zeros(len(lm_backoffs), dtype=np.int32)
        own[behind[1:]] = first + np.arange(len(behind) - 1)
        states = own[of_lm]
        none = (np.zeros(1, dtype=np.int32), np.zeros(1))
        root = FormLM(*arcs._replace(targets=states[:-2]), *none, int(states[-1]), unknown, int(states[-2]))
        ends = lm.score_ends(of_lm[:-1])
        of_root = compose_states(root, trie, self.boundaries, unknown, settings["unknown_token"], ends, len(behind) - 1)
        tensors = of_root.tensors
        if settings["word_bonus"] or settings["delimiter_bonus"]:  # see `hf_ngpulm.lexicon.reweighing`
            weights = tensors.arc_weights[: self.vocab_size]
            spaces = 0.0 if settings["begin"] == 0 else settings["delimiter_bonus"]
            is_delimiter = torch.arange(self.vocab_size) == settings["delimiter"]
            weights += torch.where(is_delimiter, spaces, settings["word_bonus"])
        if change is not None:
            tensors = change(tensors, 1)
        moved = tensors.num_states - (first + len(behind) - 1)
        own[behind] += moved * (behind > 0) + 1
        first += moved
        self._lay(tensors, own, len(arcs.forms), first)
        # Of the states: the unknown word's are that of no prefix, and nobody looks for them by one.
        grown, counts = self._grown, self._counts
        grown.nodes[2 + moved : first] = np.arange(1, trie.num_nodes)
        grown.mass[2 + moved : first] = of_root.mass[1:]
        grown.of_lm[first : counts[STATES]] = behind[1:]
        grown.lower[first : counts[STATES]] = own[lm_backoffs[behind[1:]]] - 1
        backoffs = grown.backoff_states
        numbers = 2 * np.arange(first, counts[STATES])
        backoffs[numbers] = 2 * grown.lower[first : counts[STATES]]
        grown.backoff_weights[numbers] = lm.automaton.tensors.backoff_weights.numpy()[behind[1:]]
        # Words that others begin with back off to the next word, which has no arcs yet; so does the unknown word.
        grown.unfinished[numbers] = 1
        numbers = 2 * np.arange(1, first)
        grown.unfinished[numbers] = backoffs[numbers] >= 2 * first
        self.enter(numbers[: 1 + moved].astype(np.int32))

    def _lay(self, tensors: AutomatonTensors, own: np.ndarray, num_forms: int, first: int) -> None:
        """Make room, and lay down what is under the root."""
        counts, states, num_arcs = self._counts, tensors.num_states, len(tensors.arc_weights)
        counts[:] = states, num_arcs, 0, 0, 0
        words, rooms = num_forms + SMALLEST, (states + SMALLEST, num_arcs + SMALLEST)
        arrays = [
            np.zeros(len(own), dtype=np.int32), own, np.zeros(SMALLEST, dtype=np.int64),
            *(np.zeros(words, dtype=dtype) for dtype in (np.int32, np.float64, np.int32, np.float64, np.float64)),
            *(np.zeros(rooms[0], dtype=dtype) for dtype in OF_STATE),
            np.zeros(2 * rooms[0], dtype=np.uint8), np.zeros(2 * rooms[0] + 1, dtype=np.int32),
            *(np.zeros(rooms[1], dtype=tensor.numpy().dtype) for tensor in tensors[1:4]),
            np.zeros(2 * rooms[0], dtype=np.int32), np.zeros(2 * rooms[0], dtype=np.float32),
        ]  # fmt: skip
        grown = Grown(*arrays)
        offsets, *of_arcs = (tensor.numpy() for tensor in tensors)
        grown.arc_offsets[: 2 * first : 2], grown.arc_offsets[1 : 2 * first : 2] = offsets[:first], offsets[1 : first + 1]
        grown.arc_tokens[:num_arcs], grown.arc_weights[:num_arcs] = of_arcs[:2]
        grown.arc_targets[:num_arcs] = 2 * of_arcs[2]
        grown.backoff_states[: 2 * states : 2], grown.backoff_weights[: 2 * states : 2] = 2 * of_arcs[3], of_arcs[4]
        self._use(grown)


def with_backoffs(backoff_states: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return some states of the LM and all that they back off to, in ascending order, int64."""
    found = np.zeros(len(backoff_states), dtype=bool)
    while len(states):
        found[states] = True
        states = np.unique(backoff_states[states])
        states = states[~found[states]]
    return np.flatnonzero(found)


def _widened(array: np.ndarray, size: int) -> np.ndarray:
    made = np.zeros(size, dtype=array.dtype)
    made[: len(array)] = array
    return made
