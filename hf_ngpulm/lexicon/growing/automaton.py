"""A word-level LM composed with a lexicon as far as searches have come.

Composing all states of a large LM (see `hf_ngpulm.lexicon.composition`) takes more memory than there is, and a search enters
few of them. Here some states h of the LM are *expanded*: composed with the lexicon exactly as there, together with all states
that they back off to. An arc that leads to another state g leads to a *stub*: a state without arcs, which backs off to what g
would first come to that is expanded. What a search reads there is not yet right, as if g had no n-grams of its own; and so are
states that back off to a stub (a word that is another's beginning, where words have a mark).

Whoever has searched says which states it has entered (`replay`), and those of them whose scores hang on stubs are expanded:
their states and arcs are appended, and the stub becomes an epsilon, which backs off to the new state for nothing. So no state
that anyone knows changes its number or what it means. Then the search is done again. When it enters no stub, none of its scores
depended on one: the result is that of the whole composed automaton, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np
import torch

from ...automaton.cpu import compiled
from ...automaton.tensors import AutomatonTensors, token_dtype
from ...errors import NGramFormatError
from .. import loops
from ..spellings import Boundaries
from ..trie import Trie
from ..word_lm import WordLM
from .columns import Column
from .replaying import follow, follow_text, stubs_behind

# Searches with growing automata take turns: one that reads a stub which another expands at that moment wouldn't notice.
LOCK = RLock()
# What of a base is changed before anything else is made: its tensors, and how many states are the LM's own, to other tensors.
# States behind those may move up by a number that all share; targets below 0 are to stay.
Change = Callable[[AutomatonTensors, int], AutomatonTensors]


class GrowingAutomaton:
    """A composed automaton that grows, in arrays on the CPU. State 0 is its root.

    The arrays have spare room behind the states and arcs that there are, and are other ones after that is used up.

    Args:
        lm: over words.
        trie: of their spellings.
        boundaries: of words.
        unknown_score, unknown_token_score: see `hf_ngpulm.lexicon.composition.compose_automaton`.
        word_bonus: natural log, added to each word.
        delimiter_bonus: natural log, added to each delimiter where no word has begun, but at the start of a text.
        begins_at_start: whether texts begin behind `<s>`, or without context.
        change: of the first states: the LM's root, and those behind `<s>` and `<unk>`.
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
        self.unknown_score, self.unknown_token_score = unknown_score, unknown_token_score
        self.word_bonus, self.delimiter_bonus = word_bonus, delimiter_bonus
        self.vocab_size = len(boundaries.begins_word)
        self.of_words = tuple(tensor.numpy() for tensor in lm.automaton.tensors)
        # Of each state of the LM its number among those that are expanded, and its state in the automaton (its stub, while it
        # isn't expanded), both more by one; 0 for none. Pages that nobody writes to take no memory.
        self.expanded = np.zeros(lm.automaton.num_states, dtype=np.int32)
        self.own_state = np.zeros(lm.automaton.num_states, dtype=np.int32)
        # Of the states that are expanded, in the order in which they were.
        self.offsets, self.first_place = Column(np.int64), Column(np.int64)
        self.forms, self.log_probs, self.targets = Column(np.int32), Column(np.float64), Column(np.int32)
        self.ends, self.backoffs, self.weights = Column(np.float64), Column(np.int32), Column(np.float64)
        self.own_ids, self.shifts = Column(np.int64), Column(np.int64)
        self.nodes, self.mass, self.word_arcs = Column(np.int32), Column(np.float64), Column(np.int64)
        self.offsets.add(1)
        self.first_place.add(1)
        # The automaton. Of each state the one of the LM that it is the stub of, more by one, and 0 for all others.
        self.arc_offsets, self.arc_weights, self.arc_targets = Column(np.int32), Column(np.float32), Column(np.int32)
        self.arc_tokens = Column(np.int16 if token_dtype(self.vocab_size) == torch.int16 else np.int32)
        self.backoff_states, self.backoff_weights = Column(np.int32), Column(np.float32)
        self.stubs = Column(np.int32)
        self.arc_offsets.add(1)
        # Stubs that have become epsilons, in that order, and where the parts that were added at once end.
        self.epsilons = Column(np.int32)
        self.parts: list[tuple[int, int]] = []
        first = self._closed(np.array([0, lm.start, lm.unknown_target]))
        self.begin = int(np.searchsorted(first, lm.start)) if begins_at_start else 0
        self._expand(first, change)

    @property
    def num_states(self) -> int:
        return self.backoff_states.size

    @property
    def num_arcs(self) -> int:
        return self.arc_weights.size

    @property
    def nbytes(self) -> int:
        """Bytes of all that grows."""
        return sum(column.used.nbytes for column in vars(self).values() if isinstance(column, Column))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The fields of `AutomatonTensors`, with spare room."""
        if self.parts[-1] != (self.num_states, self.num_arcs):
            raise RuntimeError("composing a language model was broken off, by an error or a key; have it forget() its states")
        return tuple(getattr(self, name).array for name in AutomatonTensors._fields)

    def replay(self, states: np.ndarray, links: np.ndarray, labels: np.ndarray, not_tokens: int) -> bool:
        """Expand what a search of `B` rows and `K` hypotheses has entered.

        Args:
            states: int32 `[B, K]`, those in which its hypotheses began; -1 for none.
            links: int32 `[B, S, K]`, the hypothesis that each comes from at each step.
            labels: int32 `[B, S, K]`, the token that it gets; below 0 for none.
            not_tokens: a label that is none either.

        Returns:
            Whether there was anything to expand: then the search has to be done again.
        """
        wanted = np.empty(int((labels >= 0).sum()) + states.size, dtype=np.int32)
        arguments = (*self.arrays, self.vocab_size, self.stubs.array, states, links, labels, not_tokens, wanted)
        return self.expand(wanted[: follow(*arguments)])

    def read(self, starts: np.ndarray, roots: np.ndarray, texts: np.ndarray, lengths: np.ndarray, context_length: int) -> bool:
        """The same for the states along texts int32 `[B, L]`, from where `BackoffAutomaton.states_after` begins to read them.

        What is behind a stub is only known when that is expanded; so it is done until nothing is.
        """
        wanted, grown = np.empty(texts.size + len(texts), dtype=np.int32), False
        while True:
            arguments = (*self.arrays, self.vocab_size, self.stubs.array, starts, roots, texts, lengths, context_length, wanted)
            if not self.expand(wanted[: follow_text(*arguments)]):
                return grown
            grown = True

    def enter(self, states: np.ndarray) -> bool:
        """Expand what the scores in some states int32 `[N]` (-1 for none) hang on; whether there was anything."""
        grown = False
        wanted = np.empty(len(states), dtype=np.int32)
        while True:
            count = stubs_behind(self.backoff_states.array, self.stubs.array, states, wanted)
            if not self.expand(wanted[:count]):
                return grown
            grown = True

    def expand(self, stubs: np.ndarray) -> bool:
        """Expand the LM's states that some states of the automaton are the stubs of; whether there are any."""
        with LOCK:
            of_lm = self.stubs.array[stubs].astype(np.int64) - 1
            if not (of_lm >= 0).any():
                return False
            self._expand(self._closed(of_lm[of_lm >= 0]), None)
        return True

    def _closed(self, of_lm: np.ndarray) -> np.ndarray:
        """States of the LM with all that they back off to, without those that are expanded; backoff states come first."""
        return np.unique(_with_backoffs(self.of_words[4], self.expanded, np.unique(of_lm)))

    def _expand(self, of_lm: np.ndarray, change: Change | None) -> None:
        arcs, first, trie = self.lm.forms(of_lm), self.own_ids.size, self.trie
        count, before = len(of_lm), self.num_states
        self.expanded[of_lm] = np.arange(first + 1, first + count + 1)
        counts = np.bincount(arcs.states, minlength=count)
        self.offsets.add(count)[:] = self.offsets.array[first] + np.cumsum(counts)
        self.forms.add(len(arcs.forms))[:] = arcs.forms
        self.log_probs.add(len(arcs.forms))[:] = arcs.log_probs
        self.ends.add(count)[:] = arcs.ends
        self.backoffs.add(count)[:] = self.expanded[self.of_words[4][of_lm]] - 1
        self.weights.add(count)[:] = self.of_words[5][of_lm]
        every = (first, first + count)
        self.first_place.add(count)
        of_forms = (self.offsets.array, self.forms.array)
        paths = (trie.path_offsets, trie.path_nodes)
        loops.count_places(*every, *of_forms, *paths, trie.num_nodes, self.first_place.array)
        places = int(self.first_place.array[first + count] - self.first_place.array[first])
        for column in (self.nodes, self.mass, self.word_arcs):
            column.add(places)
        known = (*of_forms, self.log_probs.array, self.backoffs.array, self.weights.array)
        at_places = (self.nodes.array, self.mass.array, self.word_arcs.array)
        arguments: tuple[Any, ...] = (*every, *known, *paths, self.first_place.array, trie.num_nodes, trie.longest, *at_places)
        loops.weigh(*arguments)

        # Stubs for what the arcs lead to.
        self.own_ids.add(count)[:] = before + np.arange(count)
        self.shifts.add(count)[:] = before + count - self.first_place.array[first]
        were_stubs = self.own_state[of_lm] - 1
        self.own_state[of_lm] = before + np.arange(1, count + 1)
        reached = np.append(arcs.targets, self.lm.unknown_target) if first == 0 else arcs.targets
        new = np.unique(reached[self.own_state[reached] == 0])
        stubs = before + count + places + np.arange(len(new))
        if int(stubs[-1] if len(new) else before + count + places) >= 2**31 - 1:
            raise NGramFormatError("composed as far as searches have come the language model has more than 2**31 - 1 states")
        self.own_state[new] = stubs + 1
        self.targets.add(len(arcs.targets))[:] = self.own_state[arcs.targets] - 1
        self._fill(every, known, places, len(new), arcs.targets)
        self._reweigh(before, count)
        if change is not None:
            stubs += self._change(change, count, stubs)
        self.stubs.array[stubs] = new + 1
        backoffs = (self.backoff_states.array, self.backoff_weights.array)
        arguments = (*self.of_words[4:], self.expanded, self.own_ids.array, new, stubs, *backoffs)
        _lay_stubs(*arguments)

        # What was a stub leads to what it stood for.
        epsilons = were_stubs[were_stubs >= 0]
        self.backoff_states.array[epsilons] = self.own_ids.array[first : first + count][were_stubs >= 0]
        self.backoff_weights.array[epsilons] = 0.0
        self.stubs.array[epsilons] = 0
        self.epsilons.add(len(epsilons))[:] = epsilons
        self.parts.append((self.num_states, self.num_arcs))

    def _fill(self, every: tuple[int, int], known: tuple[np.ndarray, ...], places: int, stubs: int, behind: np.ndarray) -> None:
        """Write states and arcs behind those that there are; stubs have none."""
        count, trie, lm = every[1] - every[0], self.trie, self.lm
        paths = (trie.path_offsets, trie.path_nodes)
        delimiter = self.boundaries.delimiter_id
        at_places = (self.first_place.array, self.nodes.array, self.mass.array, self.word_arcs.array)
        arguments: tuple[Any, ...] = (
            *every, *known[:2], self.ends.array, *paths, trie.child_offsets, *at_places[:2], at_places[3], delimiter,
            self.vocab_size, self.boundaries.num_unknown_arcs, trie.longest,
        )  # fmt: skip
        offsets = loops.count_arcs(*arguments)
        arcs_before = self.num_arcs
        if arcs_before + int(offsets[-1]) >= 2**31:
            raise NGramFormatError("composed as far as searches have come the language model has more than 2**31 - 1 arcs")
        arc_offsets = self.arc_offsets.add(count + places + stubs)
        arc_offsets[: count + places] = arcs_before + offsets[1:]
        arc_offsets[count + places :] = arcs_before + offsets[-1]
        written = [column.add(int(offsets[-1])) for column in (self.arc_tokens, self.arc_weights, self.arc_targets)]
        backoffs = [column.add(count + places + stubs) for column in (self.backoff_states, self.backoff_weights)]
        self.stubs.add(count + places + stubs)
        ends_behind = np.zeros(1)
        if delimiter >= 0:
            asked = np.append(behind, lm.unknown_target)
            arguments = (*self.of_words[:3], *self.of_words[4:], lm.num_words + 1, asked)
            ends_behind = _score_ends(*arguments)
        start, behind_unknown = (int(self.own_state[state]) - 1 for state in (lm.start, lm.unknown_target))
        arguments = (
            *every, *known, self.ends.array, ends_behind, self.targets.array, self.own_ids.array, self.shifts.array, start,
            self.unknown_score, behind_unknown, ends_behind[-1], self.unknown_token_score,
            *paths, trie.path_tokens, trie.depths, trie.child_offsets, trie.child_tokens, trie.child_nodes, trie.child_forms,
            *at_places, self.boundaries.begins_word, delimiter, self.vocab_size, trie.longest, offsets, *written, *backoffs,
        )  # fmt: skip
        broken = loops.fill(*arguments)
        assert broken < 0, f"state {broken} of {count + places} has another number of arcs than were counted"

    def _reweigh(self, first: int, count: int) -> None:
        """See `hf_ngpulm.lexicon.reweighing`."""
        if not (self.word_bonus or self.delimiter_bonus):
            return
        bounds = self.arc_offsets.array[first : first + count + 1]
        arcs = slice(int(bounds[0]), int(bounds[-1]))
        tokens = self.arc_tokens.array[arcs]
        added = np.where(tokens < self.vocab_size, np.float32(self.word_bonus), np.float32(0.0))
        if self.boundaries.delimiter is not None:
            spaces = np.where(np.arange(first, first + count) == self.begin, 0.0, self.delimiter_bonus).astype(np.float32)
            is_delimiter = tokens == self.boundaries.delimiter
            added[is_delimiter] = np.repeat(spaces, np.diff(bounds))[is_delimiter]
        self.arc_weights.array[arcs] += added

    def _change(self, change: Change, count: int, stubs: np.ndarray) -> int:
        """Change the first states; how much further up those behind the LM's own ones and the unknown word are then."""
        before = self.num_states
        tensors = AutomatonTensors(*(torch.from_numpy(getattr(self, name).used) for name in AutomatonTensors._fields))
        for name, tensor in zip(AutomatonTensors._fields, change(tensors, count)):
            column = getattr(self, name)
            column.add(len(tensor) - column.size)[:] = 0
            column.used[:] = tensor.numpy()
        moved = self.num_states - before
        self.stubs.add(moved)[:] = 0
        self.shifts.used[:] += moved
        self.targets.used[self.targets.used > count] += moved
        self.own_state[self.own_state > count + 1] += moved
        return moved


@compiled
def _with_backoffs(backoff_states, expanded, states):
    """Some states and all that they back off to, but for those that are expanded."""
    found = []
    for state in states:
        while expanded[state] == 0:
            found.append(state)
            if backoff_states[state] == state:
                break
            state = np.int64(backoff_states[state])
    return np.array(found)


@compiled
def _score_ends(arc_offsets, arc_tokens, arc_weights, backoff_states, backoff_weights, end, states):
    """log p(</s> | state of the LM): the last arc of those that have one of their own."""
    scores = np.empty(states.size)
    for i in range(states.size):
        state, score = states[i], 0.0
        while arc_offsets[state] == arc_offsets[state + 1] or arc_tokens[arc_offsets[state + 1] - 1] != end:
            score += np.float64(backoff_weights[state])
            state = backoff_states[state]
        scores[i] = score + np.float64(arc_weights[arc_offsets[state + 1] - 1])
    return scores


@compiled
def _lay_stubs(lower, weights, expanded, own_ids, of_lm, stubs, backoff_states, backoff_weights):
    """Have stubs back off to what the LM's states first come to that is expanded."""
    for i in range(stubs.size):
        state, weight = of_lm[i], 0.0
        while expanded[state] == 0:
            weight += np.float64(weights[state])
            state = lower[state]
        backoff_states[stubs[i]] = own_ids[expanded[state] - 1]
        backoff_weights[stubs[i]] = weight
