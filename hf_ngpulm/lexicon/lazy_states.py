"""Compose a word-level LM with a lexicon as far as searches have reached.

The states of a large LM (see `hf_ngpulm.lexicon.composition`) take more memory than a machine has, but a search enters only a
few of the states. A state (h, x) is prefix x under state h of the LM. It is *made* (it gets a number, a mass and a backoff
state) when the state before it is composed. It is *composed* (its arcs are written) when a search enters it. Composing the
first state of a word takes one pass over the words in the LM's n-grams after h. Composing a later state takes one pass over the
words that begin with x.

A state's scores are final once the state and its whole backoff chain are composed. Until then the state is *unfinished*, and
scores tokens as if the LM had no n-grams in this state. `hf_ngpulm.lexicon.lazy_search` composes the states that a search
enters. States never change their number or meaning. (Numbers may depend on which thread came first; nothing else does.) If a
search has entered no unfinished state, its scores equal the scores of the fully composed automaton, bit for bit.
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

# Hold this lock to compose states. Only one search with lazy automata runs at a time, because a search wouldn't notice that
# another search composes the state that it reads. Changes of pools that have copies of states also need the lock. A fork waits
# for the lock, so that no state is half composed in the child.
LOCK = lock_across_forks()
SMALLEST = 1024  # initial spare room of each array
# Number of tokens composed ahead of a repeated search: more tokens mean fewer repetitions and more states.
AHEAD = 2
# Reasons why composing has stopped.
DONE, NO_ROOM, NO_ROOM_FOR_WORDS, BAD_STATE = range(4)
# Indices of `counts`.
STATES, ARCS, READ, FORMS, COMPOSED = range(5)
# The arrays of `LazyStates`: C type of the elements, and the unit that each element belongs to. State k has the number 2 * k.
# So it has both elements 2 * k and 2 * k + 1 of `arc_offsets`, and its arcs may lie anywhere. The type of `arc_tokens` is the
# smallest that fits the vocabulary.
ARRAYS: dict[str, tuple[str, str]] = {
    # For each state of the LM: its index among the states that have been read, and its state of the empty prefix plus one.
    "read": ("int32_t", "lm"),
    "own_state": ("int32_t", "lm"),
    # The forms of the LM's states that have been read.
    "word_offsets": ("int64_t", "read"),
    "forms": ("int32_t", "forms"),
    "log_probs": ("double", "forms"),
    "targets": ("int32_t", "forms"),
    "probs": ("double", "forms"),
    "lower_probs": ("double", "forms"),  # probabilities in the LM's backoff state
    # For each state: the LM's state, the node, the log of its mass, its first form, and the state of the same node further
    # along the backoff chain.
    "of_lm": ("int32_t", "states"),
    "nodes": ("int32_t", "states"),
    "mass": ("double", "states"),
    "first_word_arc": ("int64_t", "states"),
    "lower": ("int32_t", "states"),
    "composed": ("int32_t", "states"),  # in order of composition
    "unfinished": ("uint8_t", "numbers"),  # states without arcs yet, or that back off to such states
    # The automaton.
    "arc_offsets": ("int32_t", "ends"),
    "arc_tokens": ("void", "arcs"),
    "arc_weights": ("float", "arcs"),
    "arc_targets": ("int32_t", "arcs"),
    "backoff_states": ("int32_t", "numbers"),
    "backoff_weights": ("float", "numbers"),
}


class NgpulmLazyAutomaton(Struct):
    """The arrays of `LazyStates`, which the core reads and writes.

    Members:
        counts: `[5]`, five counts: all states; all arcs; LM states whose n-grams have been read; forms (spellings of words)
            that are stored for these LM states; and composed states.
        delimiter: id of the delimiter, or -1 if the vocabulary has none.
        start: the LM's state at the start of sentences.
        longest_chain: the longest backoff chain of the LM, in states.
        begin: the LM's state in which delimiters get no bonus, or -1 if there is no such state.
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


_enter = Function("ngpulm_lazy_enter")
_replay = Function("ngpulm_lazy_replay")
_read = Function("ngpulm_lazy_read")


class Bonuses(NamedTuple):
    """Additions to the word-level model's log-probabilities."""

    word: float = 0.0  # natural log, added for each word
    delimiter: float = 0.0  # natural log, added for each delimiter between words, except at the beginning of a text
    begins_at_start: bool = True  # whether texts begin after `<s>`; otherwise they begin without context
    grades: Grades | None = None  # costs of unknown words by length; None charges a constant per token


class LazyStates:
    """Hold the states of an automaton that have been composed so far, in arrays on the CPU. State 0 is the root. All state
    numbers are even.

    The arrays have spare room at the end. When the room is used up, the arrays are replaced by larger arrays.

    Args:
        spelled: the LM and its spellings.
        bonuses: additions to the LM's log-probabilities.

    Attributes:
        arrays: see `ARRAYS`.
        begin: the initial state of texts.
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
        self.enter(np.array([self.begin], dtype=np.int32))  # every search reads this state first

    @property
    def num_states(self) -> int:
        """Number of states made so far."""
        return int(self._counts[STATES])

    @property
    def num_arcs(self) -> int:
        return int(self._counts[ARCS])

    @property
    def composed(self) -> np.ndarray:
        """Numbers of the composed states, in order of composition."""
        return 2 * self.arrays["composed"][: self._counts[COMPOSED]]

    @property
    def nbytes(self) -> int:
        """Size in bytes of all states made so far."""
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
        """The arrays for the fields of `AutomatonTensors`, with spare room."""
        return {name: self.arrays[name] for name in AutomatonTensors._fields}

    def replay(self, states: np.ndarray, links: np.ndarray, labels: np.ndarray, not_tokens: int) -> bool:
        """Compose the states that a search of `B` rows, `S` steps and `K` hypotheses has entered.

        Args:
            states: int32 `[B, K]`, the initial states of the search's hypotheses; -1 for a missing hypothesis.
            links: int32 `[B, S, K]`, for each hypothesis after a step, the index of the continued hypothesis before the step.
            labels: int32 `[B, S, K]`, new token of each hypothesis. A label below 0 means no token.
            not_tokens: another label that isn't a token.

        Returns:
            Whether any state was composed. If so, the search must be repeated.
        """
        now, steps = np.array(states, dtype=np.int32), np.full(len(states), -1, dtype=np.int64)
        return self._compose(_replay, now, steps, links, labels, *labels.shape, not_tokens, AHEAD)

    def read(self, context_length: int, starts: np.ndarray, roots: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> bool:
        """Compose the states along texts. Return whether any state was composed.

        Args:
            context_length: longest context in tokens. If a text is longer, only its last `context_length` tokens are read.
            starts: int32 `[B]`, initial states; below 0 for rows to skip.
            roots: int32 `[B]`, initial states for texts of `context_length` tokens and more.
            tokens, lengths: int32 `[B, L]` and `[B]`.
        """
        now, positions = np.array(starts, dtype=np.int32), np.full(len(starts), -1, dtype=np.int64)
        return self._compose(_read, now, positions, roots, tokens, lengths, *tokens.shape, context_length)

    def enter(self, states: np.ndarray) -> bool:
        """Compose all states that determine the token scores in `states`, int32 `[N]`. Return whether any state was composed.

        Numbers below 0 are skipped.
        """
        return self._compose(_enter, states, len(states))

    @property
    def native(self) -> dict[str, Struct]:
        """The arguments of the composing functions, by name. `made` is replaced when the arrays grow."""
        lm, words, trie = self._parts
        return {"made": self._native, "lm": lm, "words": words, "trie": trie}

    def _compose(self, compose: Function, *arguments: Any) -> bool:
        """Call `compose`, a function of the core. While the arrays lack room, make more room and call `compose` again. Return
        whether any state was composed.
        """
        has_grown = np.zeros(1, dtype=np.uint8)
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
                    f"searches have composed more than {size // 2:,} {kind} of the language model, the most that can be "
                    "addressed: call its forget() to drop them, or lower most_bytes"
                )
        self._rooms |= rooms
        sizes = {"numbers": 2 * self._rooms["states"], "ends": 2 * self._rooms["states"] + 1, **self._rooms}
        for name, (element, kind) in ARRAYS.items():
            old = self.arrays[name] if name in self.arrays else np.zeros(0, dtype=ELEMENTS[element])
            if len(old) < sizes[kind]:
                larger = np.zeros(sizes[kind], dtype=old.dtype)
                larger[: len(old)] = old
                self.arrays[name] = larger  # readers of finished states needn't wait meanwhile
        self._native = NgpulmLazyAutomaton(
            **self.arrays, **self._settings, counts=self._counts, token_bytes=self.arrays["arc_tokens"].itemsize,
            **{f"room_for_{kind}": self._rooms[kind] for kind in ("read", "forms", "states", "arcs")},
        )  # fmt: skip

    def _compose_root(self, bonuses: Bonuses) -> None:
        """Compose the states under the LM's root, one per node of the trie. Make the LM states after single words."""
        lm, trie, settings = self.spelled.lm, self.spelled.trie, self._settings
        root, lm_backoffs = lm.over_forms(1), lm.automaton.tensors.backoff_states.numpy()
        of_lm = np.concatenate([root.targets, [lm.unknown_target, lm.start]]).astype(np.int32)
        after = _with_backoffs(lm_backoffs, of_lm)  # in ascending order, starting with the root
        first = 1 + trie.num_nodes  # first state without arcs
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
        # The states of unknown words have no prefix, and are never looked up by a prefix.
        a, last = self.arrays, self.num_states
        a["nodes"][2 + moved : first] = np.arange(1, trie.num_nodes)
        a["mass"][2 + moved : first] = mass[1:]
        a["of_lm"][first:last] = after[1:]
        a["lower"][first:last] = own[lm_backoffs[after[1:]]] - 1
        numbers = 2 * np.arange(first, last)
        a["backoff_states"][numbers] = 2 * a["lower"][first:last]
        a["backoff_weights"][numbers] = lm.automaton.tensors.backoff_weights.numpy()[after[1:]]
        # A word that is a prefix of others backs off to the next word's state, which has no arcs yet; so does the unknown word.
        a["unfinished"][numbers] = 1
        numbers = 2 * np.arange(1, first)
        a["unfinished"][numbers] = a["backoff_states"][numbers] >= 2 * first
        self.enter(numbers[: 1 + moved].astype(np.int32))

    def _lay(self, tensors: AutomatonTensors, own: np.ndarray, num_forms: int, first: int) -> None:
        """Write the states under the root to the arrays, and mark them as composed. States from `first` on have no arcs yet.

        `own` is the array `own_state` of `ARRAYS`. `num_forms` is the number of spellings.
        """
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
    """Return the given states of the LM together with all states of their backoff chains, in ascending order, int64."""
    is_reached = np.zeros(len(backoff_states), dtype=bool)
    while len(states):
        is_reached[states] = True
        states = np.unique(backoff_states[states])
        states = states[~is_reached[states]]
    return np.flatnonzero(is_reached)
