"""A word-level LM composed with a lexicon as far as searches have come.

Composing all states of a large LM (see `hf_ngpulm.lexicon.composition`) takes more memory than there is, and a search enters
few of them. Here a state (h, x), prefix x under state h of the LM, is *made* when the state before it is composed, with its
number, its mass, and what it backs off to; and *composed*, its arcs written, when a search enters it. So the first state of a
word costs reading the words that the LM has after h, once, and a later one those of these words that begin with x.

A state's scores are right once it and all that it backs off to are composed; until then it is *unfinished*. What a search reads
in such a state isn't right: as if the LM had no n-grams of its own there. So the core composes a state where a search enters
it, as long as there is spare room, if the search reads these arrays themselves (`composing`). Elsewhere, and without room,
searches stop where they enter one, or say afterwards which states they have entered (`replay`); these are composed, and the
search goes on, or is done again. No state that anyone knows changes its number or what it means. (Which number it gets may hang
on which thread was the first; nothing else does.) A search that has entered no unfinished state has scored as the whole
composed automaton does, to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..automaton.tensors import AutomatonTensors
from ..engines.locks import lock_across_forks
from ..engines.native import ELEMENTS, Function, Struct
from ..errors import NGramFormatError
from .composition import SpelledLM, compose_states
from .weights import Grades, grade_unknown_words

# Searches with lazy automata take turns: one that reads a state which another composes at that moment wouldn't notice. So do
# changes of the pools that hold copies of their states; and a fork waits, so that no state is half composed in the child.
LOCK = lock_across_forks()
SMALLEST = 1024  # room
# Tokens that words may go on with, composed ahead of a search that is done again: more make fewer searches, and more states.
AHEAD = 2
# Why composing has stopped.
DONE, NO_ROOM, NO_ROOM_FOR_WORDS, BAD_STATE = range(4)
# What is counted.
STATES, ARCS, READ, FORMS, COMPOSED = range(5)
# The arrays of `LazyStates`: the type of their elements, and what they have one of each of. Of the K states the k-th has the
# number 2 * k, so that its arcs may lie anywhere. `arc_tokens` are as small as the vocabulary allows.
ARRAYS: dict[str, tuple[str, str]] = {
    # The LM's states: their numbers among those that have been read, and their states of the empty prefix, more by one.
    "read": ("int32_t", "lm"),
    "own_state": ("int32_t", "lm"),
    # Of those that have been read, their forms.
    "word_offsets": ("int64_t", "read"),
    "forms": ("int32_t", "forms"),
    "log_probs": ("double", "forms"),
    "targets": ("int32_t", "forms"),
    "probs": ("double", "forms"),
    "lower_probs": ("double", "forms"),  # in the state that they back off to
    # Of each state: the LM's, the node, the log of its mass, its first form, and the state of the same node further down.
    "of_lm": ("int32_t", "states"),
    "nodes": ("int32_t", "states"),
    "mass": ("double", "states"),
    "first_word_arc": ("int64_t", "states"),
    "lower": ("int32_t", "states"),
    "composed": ("int32_t", "states"),  # in the order in which they have been composed
    "unfinished": ("uint8_t", "numbers"),  # those that have no arcs yet, or back off to such
    # The automaton.
    "arc_offsets": ("int32_t", "ends"),
    "arc_tokens": ("void", "arcs"),
    "arc_weights": ("float", "arcs"),
    "arc_targets": ("int32_t", "arcs"),
    "backoff_states": ("int32_t", "numbers"),
    "backoff_weights": ("float", "numbers"),
}


class NgpulmLazyAutomaton(Struct):
    """`LazyStates` as the core reads and writes them.

    Members:
        counts: `[5]`, how many states, arcs, states of the LM that have been read, their forms, and states that have been
            composed there are.
        delimiter: -1 for none.
        start: the LM's state that sentences begin in.
        longest_chain: states of the LM in a row of backoffs, at most.
        begin: the LM's state whose delimiters get no bonus, -1 for none.
    """

    members = (
        " ".join(f"{kind}* {name};" for name, (kind, _) in ARRAYS.items())
        + """
        int64_t* counts;
        int64_t room_for_read;
        int64_t room_for_forms;
        int64_t room_for_states;
        int64_t room_for_arcs;
        int32_t token_bytes;
        int32_t vocab_size;
        int32_t delimiter;
        int32_t start;
        int32_t longest_chain;
        int32_t begin;
        double unknown_token;
        double word_bonus;
        double delimiter_bonus;
    """
    )


class NgpulmComposing(Struct):
    """Hold what a search needs that composes states as it comes to them, on several threads.

    Members:
        made, lm, words, trie: as for the functions that compose.
        is_busy: `[1]`, whether a thread composes.
    """


_enter = Function("ngpulm_lazy_enter")
_replay = Function("ngpulm_lazy_replay")
_read = Function("ngpulm_lazy_read")


class Bonuses(NamedTuple):
    """Hold what differs from the word-level model's own probabilities.

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


class LazyStates:
    """The states of a composed automaton that there are so far, in arrays on the CPU. State 0 is its root; numbers are even.

    The arrays have spare room after the states and arcs that there are, and are other ones after that is used up.

    Args:
        spelled: what is composed.
        bonuses: what differs from its probabilities.

    Attributes:
        arrays: see `ARRAYS`.
        begin: the state in which texts begin.
    """

    def __init__(self, spelled: SpelledLM, bonuses: Bonuses) -> None:
        lm = spelled.lm
        begin = lm.start if bonuses.begins_at_start else 0
        self.spelled, self.arrays = spelled, dict[str, np.ndarray]()
        self._settings = {
            "vocab_size": spelled.vocab_size, "delimiter": spelled.boundaries.delimiter_id, "start": lm.start,
            "longest_chain": lm.automaton.context_length + 1, "begin": begin,
            "unknown_token": float(spelled.unknown_token_score), "word_bonus": float(bonuses.word),
            "delimiter_bonus": float(bonuses.delimiter),
        }  # fmt: skip
        self._counts, self._rooms = np.zeros(5, dtype=np.int64), dict[str, int]()
        self._parts = (*lm.native, spelled.trie.native)
        self._native: NgpulmLazyAutomaton
        self._compose_root(bonuses)
        self.begin = 2 * int(self.arrays["own_state"][begin]) - 2
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
        return 2 * self.arrays["composed"][: self._counts[COMPOSED]]

    @property
    def nbytes(self) -> int:
        """Bytes of all that there is so far."""
        states, numbers = self.num_states, 2 * self.num_states
        sizes = {
            "forms": int(self._counts[FORMS]),
            "states": states,
            "numbers": numbers,
            "ends": numbers,
            "arcs": self.num_arcs,
        }
        return sum(sizes.get(kind, 0) * self.arrays[name].itemsize for name, (_, kind) in ARRAYS.items())

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The fields of `AutomatonTensors`, with spare room."""
        return {name: self.arrays[name] for name in AutomatonTensors._fields}

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

    def read(self, context_length: int, starts: np.ndarray, roots: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> bool:
        """Return the same for the states along texts, from where `BackoffAutomaton.states_after` begins to read them.

        Args:
            context_length: tokens of a context.
            starts, roots: int32 `[B]`, where each begins, and where it does if that lies too far back; below 0 for none.
            tokens, lengths: int32 `[B, L]` and `[B]`.
        """
        now, positions = np.array(starts, dtype=np.int32), np.full(len(starts), -1, dtype=np.int64)
        return self._compose(_read, now, positions, roots, tokens, lengths, *tokens.shape, context_length)

    def enter(self, states: np.ndarray) -> bool:
        """Compose what the scores in some states int32 `[N]` (below 0 for none) hang on; whether there was anything."""
        return self._compose(_enter, states, len(states))

    def composing(self) -> NgpulmComposing:
        """Return what a search that holds `LOCK` composes states by while it goes on, as long as there is room for them."""
        made, (lm, words, trie) = self._native, self._parts
        return NgpulmComposing(made=made, lm=lm, words=words, trie=trie, is_busy=np.zeros(1, dtype=np.int32))

    def _compose(self, compose: Function, *arguments: Any) -> bool:
        """Have something composed, making room until there is enough; whether there was anything."""
        has_grown = np.zeros(1, dtype=np.uint8)
        with LOCK:
            while (why := compose(self._native, *self._parts, *arguments, has_grown)) != DONE:
                if why == BAD_STATE:
                    raise IndexError(f"a search names states that aren't among 0, 2, .., {2 * self.num_states - 2}")
                kinds = ("states", "arcs") if why == NO_ROOM else ("read", "forms")
                self._make_room({kind: 2 * self._rooms[kind] for kind in kinds})
        return bool(has_grown[0])

    def _make_room(self, rooms: dict[str, int]) -> None:
        for kind, size in rooms.items():
            if size >= (2**30 if kind == "states" else 2**32):
                raise NGramFormatError(
                    f"composed as far as searches have come the language model has more than {size // 2:,} {kind}, which can't "
                    "be addressed: have it forget() its states, or lower most_bytes"
                )
        self._rooms |= rooms
        sizes = {"numbers": 2 * self._rooms["states"], "ends": 2 * self._rooms["states"] + 1, **self._rooms}
        for name, (element, kind) in ARRAYS.items():
            old = self.arrays[name] if name in self.arrays else np.zeros(0, dtype=ELEMENTS[element])
            if len(old) < sizes[kind]:
                larger = np.zeros(sizes[kind], dtype=old.dtype)
                larger[: len(old)] = old
                self.arrays[name] = larger  # whoever reads scores of finished states meanwhile needn't wait
        self._native = NgpulmLazyAutomaton(
            **self.arrays, **self._settings, counts=self._counts, token_bytes=self.arrays["arc_tokens"].itemsize,
            **{f"room_for_{kind}": self._rooms[kind] for kind in ("read", "forms", "states", "arcs")},
        )  # fmt: skip

    def _compose_root(self, bonuses: Bonuses) -> None:
        """Compose the LM's root, with all nodes; make the states of what follows each word there."""
        lm, trie, settings = self.spelled.lm, self.spelled.trie, self._settings
        root, lm_backoffs = lm.over_forms(1), lm.automaton.tensors.backoff_states.numpy()
        of_lm = np.concatenate([root.targets, [lm.unknown_target, lm.start]]).astype(np.int32)
        after = _with_backoffs(lm_backoffs, of_lm)  # in ascending order, and the root is the first one
        first = 1 + trie.num_nodes  # of the states that have no arcs yet
        own = np.zeros(len(lm_backoffs), dtype=np.int32)
        own[after[1:]] = first + np.arange(len(after) - 1)
        states = own[of_lm]
        root = root._replace(targets=states[:-2], unknown_target=int(states[-2]), start=int(states[-1]))
        tensors, mass = compose_states(root, self.spelled, lm.score_ends(of_lm[:-1]), len(after) - 1)
        if bonuses.word or bonuses.delimiter:  # see `hf_ngpulm.lexicon.weights.reweighed`
            spaces = 0.0 if settings["begin"] == 0 else bonuses.delimiter
            is_delimiter = torch.arange(self.spelled.vocab_size) == settings["delimiter"]
            tensors.arc_weights[: self.spelled.vocab_size] += torch.where(is_delimiter, spaces, bonuses.word)
        moved = 0
        if bonuses.grades is not None:
            tensors, moved = grade_unknown_words(tensors, 1, bonuses.grades), len(bonuses.grades.charged) - 1
        own[after] += moved * (after > 0) + 1
        first += moved
        self._lay(tensors, own, len(root.forms), first)
        # Of the states: the unknown word's are that of no prefix, and nobody looks for them by one.
        a, last = self.arrays, self.num_states
        a["nodes"][2 + moved : first] = np.arange(1, trie.num_nodes)
        a["mass"][2 + moved : first] = mass[1:]
        a["of_lm"][first:last] = after[1:]
        a["lower"][first:last] = own[lm_backoffs[after[1:]]] - 1
        numbers = 2 * np.arange(first, last)
        a["backoff_states"][numbers] = 2 * a["lower"][first:last]
        a["backoff_weights"][numbers] = lm.automaton.tensors.backoff_weights.numpy()[after[1:]]
        # Words that others begin with back off to the next word, which has no arcs yet; so does the unknown word.
        a["unfinished"][numbers] = 1
        numbers = 2 * np.arange(1, first)
        a["unfinished"][numbers] = a["backoff_states"][numbers] >= 2 * first
        self.enter(numbers[: 1 + moved].astype(np.int32))

    def _lay(self, tensors: AutomatonTensors, own: np.ndarray, num_forms: int, first: int) -> None:
        """Make room, and lay down what is under the root; states from `first` on have no arcs."""
        states, num_arcs, a = tensors.num_states, tensors.num_arcs, self.arrays
        self._counts[:] = states, num_arcs, 0, 0, 0
        offsets, tokens, weights, targets, backoffs, backoff_weights = (tensor.numpy() for tensor in tensors)
        a |= {"own_state": own, "arc_tokens": tokens[:0]}
        sizes = {"lm": len(own) - SMALLEST, "read": 0, "forms": num_forms, "states": states, "arcs": num_arcs}
        self._make_room({kind: size + SMALLEST for kind, size in sizes.items()})
        a["arc_offsets"][: 2 * first : 2], a["arc_offsets"][1 : 2 * first : 2] = offsets[:first], offsets[1 : first + 1]
        a["arc_tokens"][:num_arcs], a["arc_weights"][:num_arcs], a["arc_targets"][:num_arcs] = tokens, weights, 2 * targets
        a["backoff_states"][: 2 * states : 2], a["backoff_weights"][: 2 * states : 2] = 2 * backoffs, backoff_weights


def _with_backoffs(backoff_states: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return some states of the LM and all that they back off to, in ascending order, int64."""
    found = np.zeros(len(backoff_states), dtype=bool)
    while len(states):
        found[states] = True
        states = np.unique(backoff_states[states])
        states = states[~found[states]]
    return np.flatnonzero(found)
