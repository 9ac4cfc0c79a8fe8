"""Compile a deterministic automaton of words to a backoff automaton over a recogniser's tokens.

Most states of the result are nodes of the trie of spellings (`hf_ngpulm.grammar.places`) or states between words. The node at a
spelling's end backs off to the state between words after the spelling. So most of the result is the trie itself, and lists of
100,000 entries take about a second. A free word is any word that a wildcard matches.

Sometimes several places are possible: several spellings have begun, or the tokens after a spelling's last node may also follow
the complete spelling ("new" and "new york" before "york road"). Then the state is a set of places (subset construction). A set
backs off to the same set without its nodes. If the tokens of a node may also be free words, the node backs off to the places
inside these free words. A set inside free words is a root: it backs off to itself, so a token without an arc stays in the set.

State 0 is outside the grammar. Every token leads from state 0 back to state 0, with score 0. A state without another backoff
backs off to state 0, and the backoff weight is minus `price`, the penalty for leaving the grammar. So a transcript that leaves
the grammar scores minus the price, plus the weights of the words before the transcript left the grammar.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..automaton import BackoffAutomaton
from ..automaton.tensors import AutomatonTensors, token_dtype
from ..config.config import MAX_CONTEXT_LENGTH
from ..errors import GrammarError
from ..text.spelling import Speller
from .places import BETWEEN, FREE, NODE, Place, Places, Spelled
from .spelling import SpelledSymbols
from .words import WordAutomaton

OUTSIDE = 0
MOST_STATES = 5_000_000


class _Backoff(NamedTuple):
    """The backoff state and weight of a set of places, and the set's rank. States are numbered in the order of their ranks, so
    that a backoff state has a lower number than the states that back off to it.
    """

    rank: int
    state: int
    weight: float


class _Arcs(NamedTuple):
    sources: list[np.ndarray]
    tokens: list[np.ndarray]
    weights: list[np.ndarray]
    targets: list[np.ndarray]

    def add(self, sources: np.ndarray, tokens: np.ndarray, weights: np.ndarray, targets: np.ndarray) -> None:
        for column, values in zip(self, (sources, tokens, weights, targets)):
            column.append(np.asarray(values))


def compile_words(words: WordAutomaton, symbols: SpelledSymbols, speller: Speller, price: float) -> BackoffAutomaton:
    """Return the automaton over tokens. The token id V (the vocabulary's size) ends a sentence, as in a language model.
    `words`: the automaton over classes of symbols. `price`: the penalty for leaving the grammar (natural log).
    """
    return _Compiler(words, symbols, speller, price).compiled()


class _Compiler(Spelled):
    def __init__(self, words: WordAutomaton, symbols: SpelledSymbols, speller: Speller, price: float) -> None:
        super().__init__(words, symbols, speller)
        self.price = price
        self.arcs, self.arcs_of_sets = _Arcs([], [], [], []), list[tuple[int, int, float, int]]()
        self.sets: dict[Any, int] = {}
        self.waiting: list[Places] = []
        self.backoffs: dict[int, _Backoff] = {}

    def compiled(self) -> BackoffAutomaton:
        trie = self.trie
        self.first_node = 1 + len(self.defaults)
        self.first_set = self.first_node + trie.num_nodes
        self.roots = {free: self._numbered([(FREE, free, 0.0)])[1] for free in set(self.free_of.tolist()) - {-1}}
        self.state_beside = np.array([self._numbered([*places])[1] for places in self.besides], dtype=np.int64)
        _, start = self._numbered([(BETWEEN, self.start, 0.0)])
        self._add_trie()
        while self.waiting:
            if len(self.sets) > MOST_STATES:
                raise GrammarError(f"the grammar needs more than {MOST_STATES:,} states of tokens: use fewer wildcards")
            self._add_set(self.waiting.pop())
        return self._assembled(start)

    def _add_trie(self) -> None:
        """Add the arcs of the states between words, and the arcs of the trie's nodes. If several places are possible after an
        arc, the arc leads to the state of this set of places (see `_numbered`).
        """
        trie, parents = self.trie, self.parents
        nodes, forms = trie.child_nodes, trie.child_forms
        targets = self.first_node + nodes.astype(np.int64)
        weights = self.pushed[np.maximum(nodes, 0)] - self.pushed[parents]
        ends = np.flatnonzero((nodes < 0) & self.keys.is_single[forms])
        states, of_ends = self.keys.single(forms[ends])
        is_plain = np.array([default is None for default in self.defaults])[states]
        if self.delimiter is not None:
            is_plain |= self.free_of[states] >= 0
        # If free words are possible in a state, they stay possible after its words.
        beside = self.beside[ends]
        simple = np.where(beside >= 0, (self.free_of[states] >= 0) & (self.only[beside] == self.free_of[states]), is_plain)
        ends, states, of_ends = ends[simple], states[simple], of_ends[simple]
        targets[ends], weights[ends] = 1 + states, of_ends - self.pushed[parents[ends]]
        rest = (parents > 0) & ((nodes < 0) | self.is_mixed[np.maximum(nodes, 0)])
        rest[ends] = False
        rest[[*self.clashes]] = True
        for child in np.flatnonzero(rest).tolist():
            places = [*self.entered(int(nodes[child]), int(forms[child]), 0.0), *self.places_beside(child)]
            if child in self.clashes:
                places = self.after(self.clashes[child], int(trie.child_tokens[child]))
            weight, targets[child] = self._numbered(places)
            weights[child] = weight - self.pushed[parents[child]]
        inner = trie.depths[parents] > 1
        self.arcs.add(self.first_node + parents[inner], trie.child_tokens[inner], weights[inner], targets[inner])
        self._add_firsts(weights[self.first_arcs], targets[self.first_arcs])
        # A sentence may end between words, or before a delimiter.
        final = np.flatnonzero(~np.isnan(self.finals) | (self.free_of[: self.start + 1] >= 0))
        self._add_finals(1 + final, np.nan_to_num(self.finals[final], nan=-self.price))
        final = np.flatnonzero(~np.isnan(self.node_finals))
        self._add_finals(self.first_node + final, self.node_finals[final] - self.pushed[final])

    def _add_firsts(self, weights: np.ndarray, targets: np.ndarray) -> None:
        """Add the arcs of the states between words. `weights`, `targets`: the weight and target of the arc from each state to
        each group of the state.
        """
        states, tokens = np.repeat(np.arange(self.start + 1), np.diff(self.keys.bounds)), self.keys.firsts
        heads = np.flatnonzero((np.diff(states, prepend=-1) != 0) | (np.diff(tokens, prepend=-1) != 0))
        for at in heads[np.diff(heads, append=len(states)) > 1].tolist():  # several groups begin with the token
            state, token = int(states[at]), int(tokens[at])
            places = self.begun(state, token, 0.0)
            if self.free_of[state] >= 0 and token != self.delimiter:
                places.append((FREE, int(self.free_of[state]), 0.0))
            weights[at], targets[at] = self._numbered(places)
        self.arcs.add(1 + states[heads], tokens[heads], weights[heads], targets[heads])

    def _add_finals(self, sources: np.ndarray, weights: np.ndarray) -> None:
        self.arcs.add(sources, np.full(len(sources), self.vocab_size), weights, np.full(len(sources), OUTSIDE))

    def _numbered(self, places: list[Place]) -> tuple[float, int]:
        """Return the weight of an arc to a set of places, and the number of the set's state."""
        best = self.reduced(places)
        # A single state between words needs no set, because this state backs off to its free words. The free words before a
        # state add nothing if the state covers these free words.
        if len(best) == 1:
            ((kind, which), weight) = next(iter(best.items()))
            has_root = self.delimiter is not None and kind == BETWEEN and self.free_of[which] >= 0
            if kind == BETWEEN and (self.defaults[which] is None or has_root):
                return weight, 1 + which
        elif len(best) == 2 and self.delimiter is None:
            (_, free), (kind, which) = sorted(best, reverse=True)
            if kind == BETWEEN and (FREE, free) in best and free == self.free_of[which] and self.covers(which, free):
                return 0.0, 1 + which
        # A node at a spelling's end also stands for the state after the spelling, if that is deterministic.
        for kind, node in best:
            if kind == NODE and not self.is_mixed[node]:
                beside = self.places_beside(int(self.arc_of[node]))
                if self.reduced([*self.entered(node, -1, best[NODE, node]), *beside]) == best:
                    return best[NODE, node] + self.pushed[node], self.first_node + node
        most = max(weight + (self.pushed[which] if kind == NODE else 0.0) for (kind, which), weight in best.items())
        is_even = not most and not any(best.values())
        key = sorted((kind, which, 0.0 if is_even else round(weight - most, 6)) for (kind, which), weight in best.items())
        return most, self._set(tuple(key))

    def _set(self, key: Places) -> int:
        if key not in self.sets:
            self.sets[key] = self.first_set + len(self.sets)
            self.waiting.append(key)
        return self.sets[key]

    def _add_set(self, places: Places) -> None:
        """Add the state of a set of places, with its arcs and backoff."""
        number = self.sets[places]
        nodes = [which for kind, which, _ in places if kind == NODE]
        if nodes:
            # Tokens that continue no spelling don't need the nodes, so the backoff is the set without them.
            self._add_final(number, places)
            self._add_arcs(number, places, {token for node in nodes for token in self.tokens_at(node)})
            others = [place for place in places if place[0] != NODE]
            if others:
                weight, state = self._numbered(others)
                self.backoffs[number] = _Backoff(4 + 2 * int(self.trie.depths[nodes].max()), state, weight)
            return
        inside = [(FREE, which, weight) for kind, which, weight in places if kind == FREE]
        # The places after a token that begins a free word.
        begun = [
            (FREE, default[1], weight + default[0])
            for kind, which, weight in places
            if (kind == BETWEEN or (kind == FREE and self.delimiter is None)) and (default := self.defaults[which]) is not None
        ]
        tokens = {token for kind, which, _ in places if kind == BETWEEN for token in self.tokens_after(which)}
        # With free words the set backs off to a root. Without an end of its own, the set would take the root's end.
        self._add_final(number, places, -self.price if inside or begun else None)
        if not inside and not begun:
            self._add_arcs(number, places, tokens)
        elif len(inside) == len(places) and self.is_lasting(inside):
            self.backoffs[number] = _Backoff(1, number, 0.0)
            self._add_arcs(number, places, self.openings_of(which for _, which, _ in places))
        elif self.is_lasting(begun or inside):
            weight, root = self._numbered(begun or inside)
            # The first token of a free word leads to another place than the later tokens, and may begin a word after the free
            # words. So the first token needs an arc.
            if set(inside) != set(begun):
                tokens |= self.openings_of(which for _, which, _ in (*inside, *begun))
                if self.delimiter is None:
                    is_start = any(place[:2] == (BETWEEN, self.start) for place in places)  # the first word may lack its blank
                    weight, root = 0.0, self._within(begun if is_start else inside, weight, root)
            self._add_arcs(number, places, tokens)
            self.backoffs[number] = _Backoff(3, root, weight)
        else:
            self._add_arcs(number, places, set(range(self.vocab_size)))

    def _within(self, inside: list[Place], weight: float, root: int) -> int:
        """Return the number of a state in a free word. Tokens that continue the word lead to the places `inside`. All other
        tokens back off to the state `root`, with the backoff weight `weight`.
        """
        key = tuple(inside), weight, root
        if key not in self.sets:
            number = self.sets[key] = self.first_set + len(self.sets)
            tokens = np.flatnonzero(~self.begins)
            more, state = self._numbered(inside) if inside else (-self.price, OUTSIDE)
            self.arcs.add(np.full(len(tokens), number), tokens, np.full(len(tokens), more), np.full(len(tokens), state))
            self.backoffs[number] = _Backoff(2, root, weight)
        return self.sets[key]

    def _add_final(self, number: int, places: Places, otherwise: float | None = None) -> None:
        """Give the state `number` an arc for the end of the sentence, with the largest weight that the end has in `places`. If
        no sentence may end in `places`, the arc has the weight `otherwise`; None adds no arc.
        """
        ends = [
            weight + final
            for kind, which, weight in places
            if (final := (self.node_finals if kind == NODE else self.finals)[which]) == final  # not NaN
        ]
        if ends or otherwise is not None:
            weight = max(ends) if ends else float(otherwise or 0.0)
            self.arcs_of_sets.append((number, self.vocab_size, weight, OUTSIDE))

    def _add_arcs(self, number: int, places: Places, tokens: Iterable[int]) -> None:
        """Give the state `number`, which belongs to the set `places`, an arc for each token in `tokens`. If no place is
        possible after a token, the token's arc leads outside the grammar.
        """
        for token in tokens:
            after = self.after(places, token)
            weight, target = self._numbered(after) if after else (-self.price, OUTSIDE)
            self.arcs_of_sets.append((number, token, weight, target))

    def _assembled(self, start: int) -> BackoffAutomaton:
        """Return the automaton of the reachable states. A backoff state comes before the states that back off to it."""
        size = self.first_set + len(self.sets)
        backoffs, weights = np.zeros(size, dtype=np.int64), np.full(size, -self.price)
        ranks = np.full(size, 3)
        ranks[OUTSIDE], weights[OUTSIDE] = 0, 0.0
        ranks[self.first_node : self.first_set] += 2 * self.trie.depths
        for number, (rank, state, weight) in self.backoffs.items():
            ranks[number], backoffs[number], weights[number] = rank, state, weight
        states = np.flatnonzero(self.free_of[: self.start + 1] >= 0)
        backoffs[1 + states], weights[1 + states] = [self.roots[free] for free in self.free_of[states].tolist()], 0.0
        # A token that doesn't continue a spelling continues the free words beside it.
        nodes = np.flatnonzero(self.beside[self.arc_of] >= 0)
        backoffs[self.first_node + nodes] = self.state_beside[self.beside[self.arc_of[nodes]]]
        weights[self.first_node + nodes] = 0.0
        # The node at a spelling's end backs off to the state after the spelling.
        nodes = np.flatnonzero((self.form_at >= 0) & ~self.is_mixed)
        states, of_ends = self.keys.single(self.form_at[nodes])
        backoffs[self.first_node + nodes], weights[self.first_node + nodes] = 1 + states, of_ends - self.pushed[nodes]
        if self.arcs_of_sets:
            self.arcs.add(*map(np.array, zip(*self.arcs_of_sets)))
        sources, tokens, arc_weights, targets = (np.concatenate(column) for column in self.arcs)
        reached = _reached(start, backoffs, sources, targets)
        order = np.flatnonzero(reached)
        order = order[np.argsort(ranks[order], kind="stable")]
        place = np.full(size, -1, dtype=np.int64)
        place[order] = np.arange(len(order))
        kept = reached[sources]
        sources, tokens, arc_weights, targets = (column[kept] for column in (sources, tokens, arc_weights, targets))
        by_arc = np.lexsort((tokens, place[sources]))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(place[sources], minlength=len(order)))])

        def integers(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values.astype(np.int32))

        tensors = AutomatonTensors(
            arc_offsets=integers(offsets),
            arc_tokens=integers(tokens[by_arc]).to(token_dtype(self.vocab_size)),
            arc_weights=torch.from_numpy(arc_weights[by_arc].astype(np.float32)),
            arc_targets=integers(place[targets[by_arc]]),
            backoff_states=integers(place[backoffs[order]]),
            backoff_weights=torch.from_numpy(weights[order].astype(np.float32)),
        )
        return BackoffAutomaton(
            tensors, self.vocab_size, MAX_CONTEXT_LENGTH, integers(place[[OUTSIDE]]), integers(place[[start]])
        )


def _reached(start: int, backoffs: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return a bool mask of the states that can be reached from the start; the mask includes OUTSIDE."""
    reached = np.zeros(len(backoffs), dtype=bool)
    reached[[OUTSIDE, start]] = True
    while True:
        before = int(reached.sum())
        reached[targets[reached[sources]]] = True
        reached[backoffs[reached]] = True
        if int(reached.sum()) == before:
            return reached
