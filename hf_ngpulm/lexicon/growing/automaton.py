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
from typing import Any

import numpy as np
import torch

from ...automaton.tensors import AutomatonTensors
from ...errors import NGramFormatError
from ..spellings import Boundaries
from ..trie import Trie
from ..word_lm import FormArcs, WordLM
from .composing import (
    ARCS,
    COMPOSED,
    DONE,
    NO_ROOM,
    NO_ROOM_FOR_WORDS,
    READ,
    STATES,
    WORD_ARCS,
    Grown,
    OfTrie,
    OfWords,
    Settings,
    compose_states,
    end_forms,
    score_ends,
    weigh_words,
    with_backoffs,
)
from .replaying import Texts, follow, follow_texts
from .root import compose_root

# Searches with growing automata take turns: one that reads a state which another composes at that moment wouldn't notice.
LOCK = RLock()
# What of a base is changed before anything else is made: its tensors, and how many states are the LM's own, to other tensors.
# States behind those may move up by a number that all share.
Change = Callable[[AutomatonTensors, int], AutomatonTensors]
OF_WORDS, OF_STATES, OF_ARCS = slice(3, 8), slice(8, 14), slice(16, 19)  # fields of `Grown` of one length
OF_STATE = (np.int32, np.int32, np.float64, np.int64, np.int32, np.int32)
SMALLEST = 1024  # room
# Tokens that words may go on with, composed ahead of a search that is done again: more make fewer searches, and more states.
AHEAD = 2


class GrowingAutomaton:
    """A composed automaton that grows, in arrays on the CPU. State 0 is its root; states have even numbers.

    The arrays have spare room behind the states and arcs that there are, and are other ones after that is used up.

    Args:
        lm: over words.
        trie: of their spellings.
        boundaries: of words.
        unknown_score, unknown_token_score: see `hf_ngpulm.lexicon.composition.compose_automaton`.
        word_bonus: natural log, added to each word.
        delimiter_bonus: natural log, added to each delimiter where no word has begun, but at the start of a text.
        begins_at_start: whether texts begin behind `<s>`, or without context.
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
        delimiter = boundaries.delimiter_id
        begin = lm.start if begins_at_start else 0
        self._settings = Settings(
            lm.num_words, self.vocab_size, delimiter, lm.start, lm.automaton.context_length + 1,
            begin, float(unknown_token_score), float(word_bonus), float(delimiter_bonus),
        )  # fmt: skip
        arrays = (trie.path_offsets, trie.path_nodes, trie.path_tokens, trie.depths, trie.child_offsets, trie.child_tokens,
                  trie.child_nodes, trie.child_forms)  # fmt: skip
        self._trie = OfTrie(*arrays, end_forms(trie.path_offsets, trie.path_nodes, trie.num_nodes))
        self._counts = np.zeros(5, dtype=np.int64)
        self._stack = np.empty(4 * self._settings.order + 16, dtype=np.int64)
        self._grown: Grown
        self._words = OfWords(*[tensor.numpy() for tensor in lm.automaton.tensors], *lm.spelled)  # type: ignore[call-arg]
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
        sizes = self._counts[[WORD_ARCS, STATES, ARCS]].tolist()
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
        """The number of a state of the LM, with the empty prefix."""
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
        wanted, grown = np.empty(now.size, dtype=np.int32), False
        while True:
            arguments: tuple[Any, ...] = (*self.arrays, self.unfinished, self.vocab_size, now, steps, links, labels)
            arguments += (not_tokens, wanted)
            count = follow(*arguments)
            if not count:
                return grown
            entered = wanted[:count].copy()
            self._compose(entered)
            for _ in range(AHEAD):
                entered = self._behind(entered)
                self._compose(entered)
            grown = True

    def read(self, texts: Texts) -> bool:
        """The same for the states along texts, from where `BackoffAutomaton.states_after` begins to read them."""
        now, positions = texts.beginnings()
        wanted, grown = np.empty(len(now), dtype=np.int32), False
        while True:
            arguments: tuple[Any, ...] = (*self.arrays, self.unfinished, self.vocab_size, now, positions)
            arguments += (texts.tokens, texts.lengths, wanted)
            count = follow_texts(*arguments)
            if not count:
                return grown
            self._compose(wanted[:count])
            grown = True

    def enter(self, states: np.ndarray) -> bool:
        """Compose what the scores in some states int32 `[N]` (below 0 for none) hang on; whether there was anything."""
        wanted = states[(states >= 0) & (self.unfinished[states] > 0)]
        if len(wanted):
            self._compose(wanted)
        return len(wanted) > 0

    def _behind(self, states: np.ndarray) -> np.ndarray:
        """The states that the arcs of some lead to within a word and that are unfinished."""
        first, end = (self._grown.arc_offsets[states + behind].astype(np.int64) for behind in (0, 1))
        counts = end - first
        arcs = np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)
        targets = np.unique(self._grown.arc_targets[arcs])
        return targets[(self.unfinished[targets] > 0) & (self._grown.nodes[targets >> 1] > 0)]

    def _compose(self, wanted: np.ndarray) -> None:
        """Compose some states that are unfinished."""
        done = 0
        with LOCK:
            while True:
                arguments = (self._words, self._trie, self._grown, self._counts, self._settings, wanted, self._stack, done)
                why, done, of_lm = compose_states(*arguments)
                if why == DONE:
                    return
                if why == NO_ROOM:
                    self._widen(OF_STATES, OF_ARCS)
                elif why == NO_ROOM_FOR_WORDS:
                    self._widen(OF_WORDS)
                else:
                    self._read(of_lm)

    def _widen(self, *parts: slice) -> None:
        """Twice the room for some of what grows."""
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
        self._grown = grown._replace(**{name: _widened(getattr(grown, name), size) for name, size in arrays.items()})

    def _read(self, of_lm: int) -> None:
        """Read what the LM has behind one of its states, several words of which have one spelling."""
        arcs = self.lm.forms(np.array([of_lm]))
        first = int(self._counts[WORD_ARCS])
        end = first + len(arcs.forms)
        while end > len(self._grown.forms) or self._counts[READ] + 2 > len(self._grown.word_offsets):
            self._widen(OF_WORDS)
        for column, values in zip(self._grown[OF_WORDS], (arcs.forms, arcs.log_probs, arcs.targets)):
            column[first:end] = values
        weigh_words(self._words, self._grown, self._counts, of_lm, end)

    def _begin(self, unknown: float, unknown_token: float, change: Change | None) -> None:
        """Compose the LM's root, with all nodes; make the states of what follows each word there."""
        lm, trie, words = self.lm, self.trie, self._words
        arcs = lm.forms(np.zeros(1, dtype=np.int64))
        of_lm = np.concatenate([arcs.targets, [lm.unknown_target, lm.start]])
        behind = with_backoffs(words.backoff_states, of_lm)  # in ascending order, and the root is the first one
        first = 1 + trie.num_nodes  # of the states that have no arcs yet
        own = np.zeros(len(words.backoff_states), dtype=np.int32)
        own[behind[1:]] = first + np.arange(len(behind) - 1)
        ends = score_ends(words, lm.num_words + 1, of_lm) if self.boundaries.delimiter is not None else np.zeros(len(of_lm))
        states = own[of_lm].astype(np.int64)
        of_unknown = (unknown, int(states[-2]), float(ends[-2]), unknown_token)
        sizes = (first, first + len(behind) - 1)
        root = compose_root(arcs, trie, self.boundaries, states, ends, int(states[-1]), of_unknown, sizes[1])
        tensors = root.tensors
        if self._settings.word_bonus or self._settings.delimiter_bonus:  # see `hf_ngpulm.lexicon.reweighing`
            weights = tensors.arc_weights[: self.vocab_size]
            spaces = 0.0 if self._settings.begin == 0 else self._settings.delimiter_bonus
            is_delimiter = torch.arange(self.vocab_size) == self._settings.delimiter
            weights += torch.where(is_delimiter, spaces, self._settings.word_bonus)
        if change is not None:
            tensors = change(tensors, 1)
        moved = tensors.num_states - sizes[1]
        own[behind] += moved * (behind > 0) + 1
        first += moved
        self._lay(tensors, own, arcs, first)
        # Of the states: the unknown word's are that of no prefix, and nobody looks for them by one.
        grown, counts = self._grown, self._counts
        grown.nodes[2 + moved : first] = np.arange(1, trie.num_nodes)
        grown.mass[2 + moved : first] = root.mass[1:]
        grown.of_lm[first : counts[STATES]] = behind[1:]
        grown.lower[first : counts[STATES]] = own[words.backoff_states[behind[1:]]] - 1
        backoffs = grown.backoff_states
        numbers = 2 * np.arange(first, counts[STATES])
        backoffs[numbers] = 2 * grown.lower[first : counts[STATES]]
        grown.backoff_weights[numbers] = words.backoff_weights[behind[1:]]
        # Words that others begin with back off to the next word, which has no arcs yet; so does the unknown word.
        grown.unfinished[numbers] = 1
        numbers = 2 * np.arange(1, first)
        grown.unfinished[numbers] = backoffs[numbers] >= 2 * first
        self._compose(numbers[: 1 + moved].astype(np.int32))

    def _lay(self, tensors: AutomatonTensors, own: np.ndarray, arcs: FormArcs, first: int) -> None:
        """Make room, and lay down the root with its words."""
        counts, states, num_arcs = self._counts, tensors.num_states, len(tensors.arc_weights)
        counts[:] = states, num_arcs, 0, 0, 0
        words, rooms = len(arcs.forms) + SMALLEST, (states + SMALLEST, num_arcs + SMALLEST)
        arrays = [
            np.zeros(len(own), dtype=np.int32), own, np.zeros(SMALLEST, dtype=np.int64),
            *(np.zeros(words, dtype=dtype) for dtype in (np.int32, np.float64, np.int32, np.float64, np.float64)),
            *(np.zeros(rooms[0], dtype=dtype) for dtype in OF_STATE),
            np.zeros(2 * rooms[0], dtype=np.uint8), np.zeros(2 * rooms[0] + 1, dtype=np.int32),
            *(np.zeros(rooms[1], dtype=tensor.numpy().dtype) for tensor in tensors[1:4]),
            np.zeros(2 * rooms[0], dtype=np.int32), np.zeros(2 * rooms[0], dtype=np.float32),
        ]  # fmt: skip
        grown = self._grown = Grown(*arrays)
        for column, values in zip(grown[OF_WORDS], arcs[1:4]):
            column[: len(values)] = values
        weigh_words(self._words, grown, counts, 0, len(arcs.forms))
        offsets, *of_arcs = (tensor.numpy() for tensor in tensors)
        grown.arc_offsets[: 2 * first : 2], grown.arc_offsets[1 : 2 * first : 2] = offsets[:first], offsets[1 : first + 1]
        grown.arc_tokens[:num_arcs], grown.arc_weights[:num_arcs] = of_arcs[:2]
        grown.arc_targets[:num_arcs] = 2 * of_arcs[2]
        grown.backoff_states[: 2 * states : 2], grown.backoff_weights[: 2 * states : 2] = 2 * of_arcs[3], of_arcs[4]


def _widened(array: np.ndarray, size: int) -> np.ndarray:
    made = np.zeros(size, dtype=array.dtype)
    made[: len(array)] = array
    return made
