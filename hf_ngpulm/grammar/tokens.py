"""Compile a deterministic automaton of words to a backoff automaton over a recogniser's tokens.

All spellings after all states form one trie, whose first level is the states. A state of the result is a node of the trie, or a
state between words; where a spelling ends, its node backs off to the state between words that it leads to. So most of the
result is the trie itself, and lists of 100,000 entries take about a second.

This isn't deterministic in three cases: a spelling's last node continues with tokens that may also follow the spelling ("new"
and "new york" before "york road"), a spelling leads to two states, or a state is under a wildcard. There, a state of the result
is a set of *places* (subset construction). Free words have their own place, "inside a free word", which every token keeps; that
set is a root that backs off to itself. Other sets back off to it, so any token may follow.

State 0 is outside the grammar; every token leads back to it and costs nothing. A state without another backoff backs off to
state 0, at the price of leaving. So a transcript that leaves the grammar scores minus that price, plus the weights of the words
before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..automaton import BackoffAutomaton
from ..automaton.tensors import AutomatonTensors, token_dtype
from ..config.config import MAX_CONTEXT_LENGTH
from ..errors import GrammarError
from ..lexicon.trie import build_trie
from ..text.spelling import Speller
from .covering import covering
from .keys import Keys
from .spelling import SpelledSymbols
from .words import WordAutomaton

OUTSIDE = 0
NODE, BETWEEN, FREE = range(3)  # kinds of places
MOST_STATES = 5_000_000
Place = tuple[int, int, float]  # kind; node, or state of words; weight so far, compared with the best place of the set
Places = tuple[Place, ...]


class _Backoff(NamedTuple):
    """The backoff of a set of places. States are numbered by `rank`, so that a backoff state comes before its users."""

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
    """Return the automaton over tokens. As in a language model, the token V ends a sentence. `words`: the automaton over
    classes of symbols. `price`: cost of leaving the grammar (natural log).
    """
    return _Compiler(words, symbols, speller, price).compiled()


class _Compiler:
    def __init__(self, words: WordAutomaton, symbols: SpelledSymbols, speller: Speller, price: float) -> None:
        self.words, self.price, self.vocab_size = words, price, speller.vocabulary.size
        self.delimiter, self.members = speller.delimiter, symbols.members
        self.begins = np.asarray(speller.begins_word, dtype=bool)
        self.start = len(words.arcs)  # a copy of the start, whose spellings may lack a blank
        self.finals = np.array([np.nan if final is None else final for final in (*words.finals, words.finals[0])])
        self.defaults = [*words.defaults, words.defaults[0]]
        keys = Keys(words, symbols, self.delimiter, self.start)
        self.trie = build_trie(keys.offsets, keys.tokens)
        self.child_tokens, self.child_bounds = self.trie.child_tokens.tolist(), self.trie.child_offsets.tolist()
        self.keys, self.ends_of, self.shared = keys, keys.ends_of, keys.shared
        self._find_free()
        self._measure(keys)
        self.arcs = _Arcs([], [], [], [])
        self.sets: dict[Places, int] = {}
        self.waiting: list[Places] = []
        self.backoffs: dict[int, _Backoff] = {}

    def _find_free(self) -> None:
        """Find the spellings that end at nodes of the trie, and the states under a lasting wildcard."""
        trie, words = self.trie, self.words
        first, last = trie.child_offsets[0], trie.child_offsets[1]
        self.node_of = np.full(len(self.keys.users), -1, dtype=np.int64)
        self.node_of[trie.child_tokens[first:last]] = trie.child_nodes[first:last]
        at_end = trie.path_nodes[trie.path_offsets[1:] - 1]
        self.form_at = np.full(trie.num_nodes, -1, dtype=np.int64)  # the spelling that ends at a node
        forms = np.flatnonzero(at_end >= 0)
        self.form_at[at_end[forms]] = forms
        arcs = [(state, arc) for state, of_state in enumerate(words.arcs) for arc in of_state.values()]
        is_weighted = (
            any(weight for _, (weight, _) in arcs) or any(words.finals) or any(each and each[0] for each in self.defaults)
        )
        self.covering: dict[int, set[int]] = {}
        free_of = np.full(self.start + 1, -1, dtype=np.int64)
        if not is_weighted:
            lasting = {state for state, default in enumerate(self.defaults) if default == (0.0, state)}
            for state, default in enumerate(self.defaults):
                if default is not None and default[1] in lasting:
                    free_of[state] = default[1]
            self.covering = covering(words, free_of[:-1], self._is_free)
        self.free_of = free_of[self.keys.users]  # of each owner
        self._follow_free_words()

    def _follow_free_words(self) -> None:
        """Find the places beside each arc of the trie: those that free words reach while a spelling is read.

        `besides` has the different sets of places, and `beside` each arc's number among them, -1 for none. A single place keeps
        the state of free words in `only`.
        """
        trie, delimiter = self.trie, self.delimiter
        self.parents = np.repeat(np.arange(trie.num_nodes), np.diff(trie.child_offsets))
        self.owners = self.keys.tokens[self.keys.offsets[trie.end_forms - 1]].astype(np.int64)
        self.arc_of = np.zeros(trie.num_nodes, dtype=np.int64)
        inner = np.flatnonzero(trie.child_nodes >= 0)
        self.arc_of[trie.child_nodes[inner]] = inner
        frees = sorted(set(self.free_of.tolist()) - {-1})
        self.besides: list[Places] = [((FREE, free, 0.0),) for free in frees]
        self.beside = np.full(len(self.parents), -1, dtype=np.int64)
        opened = [place * self.vocab_size + token for place, free in enumerate(frees) for token in self._tokens_after(free)]
        numbers = {places: number for number, places in enumerate(self.besides)}
        after: dict[int, int] = {}
        depths = trie.depths[self.parents]
        for depth in range(1, int(trie.depths.max(initial=0)) + 1) if frees else ():
            at = np.flatnonzero(depths == depth)
            tokens = trie.child_tokens[at].astype(np.int64)
            if depth == 1:
                free = self.free_of[self.owners[self.parents[at]]]
                self.beside[at] = np.where((free < 0) | (tokens == delimiter), -1, np.searchsorted(frees, free))
                continue
            before = self.beside[self.arc_of[self.parents[at]]]
            steps = before * self.vocab_size + tokens
            stays = np.isin(steps, opened, invert=True) | ~self.begins[tokens] if delimiter is None else tokens != delimiter
            stays = (before < 0) | (before < len(frees)) & stays
            for step in set(steps[~stays].tolist()) - after.keys():
                places = self._reduced(self._after(self.besides[step // self.vocab_size], step % self.vocab_size))
                key = tuple(sorted((*place, weight) for place, weight in places.items()))
                after[step] = numbers.setdefault(key, len(numbers)) if key else -1
                if after[step] == len(self.besides):
                    self.besides.append(key)
            self.beside[at] = before
            self.beside[at[~stays]] = [after[step] for step in steps[~stays].tolist()]
        self.only = np.array([places[0][1] if len(places) == 1 else -1 for places in self.besides] + [-1])

    def _is_free(self, symbol: Any) -> bool:
        """Return whether all spellings of a symbol can be read as free words."""
        return self.delimiter is not None or all(self.begins[each[0]] for each in self.members[symbol][0])

    def _covers(self, state: int, other: int) -> bool:
        """Return whether all that may follow the other state may follow the state."""
        return state == other or state in self.covering.get(other, ())

    def _places_beside(self, arc: int) -> Places:
        """Return the places that free words reach on the way to the end of an arc of the trie."""
        return self.besides[self.beside[arc]] if self.beside[arc] >= 0 else ()

    def _measure(self, keys: Keys) -> None:
        """Find the largest weight of the spellings through each node, and which nodes at the end of spellings need a set."""
        trie = self.trie
        sizes = np.diff(trie.path_offsets)
        self.pushed = np.full(trie.num_nodes, -np.inf)
        inner = trie.path_nodes >= 0
        np.maximum.at(self.pushed, trie.path_nodes[inner], np.repeat(keys.weights, sizes)[inner])
        self.pushed[trie.depths <= 1] = 0.0
        # Before a delimiter that ends a word, the transcript may end too.
        self.node_finals = np.full(trie.num_nodes, np.nan)
        if self.delimiter is not None:
            for child in np.flatnonzero((trie.child_tokens == self.delimiter) & (trie.depths[self.parents] > 1)).tolist():
                form = trie.child_forms[child] if trie.child_nodes[child] < 0 else self.form_at[trie.child_nodes[child]]
                ends = [weight + self.finals[state] for state, weight in self.ends_of(int(form))] if form >= 0 else []
                if not np.isnan(ends).all():
                    self.node_finals[self.parents[child]] = np.nanmax(ends)
        self.is_mixed = np.zeros(trie.num_nodes, dtype=bool)
        firsts: dict[int, set[int]] = {}
        for node in np.flatnonzero(self.form_at >= 0).tolist():
            ends = self.ends_of(int(self.form_at[node]))
            (state, _), *others = ends
            if state not in firsts:
                firsts[state] = set(self._tokens_after(state))
            beside = self.beside[self.arc_of[node]]
            has_free = self.defaults[state] is not None or beside >= 0
            self.is_mixed[node] = (
                bool(others)
                or (has_free and not (beside >= 0 and self.only[beside] == self.free_of[state]))
                or not firsts[state].isdisjoint(self._tokens_at(node))
            )

    def _tokens_at(self, node: int) -> list[int]:
        """Return the tokens of a node's children."""
        if node < 0:
            return []
        return self.child_tokens[self.child_bounds[node] : self.child_bounds[node + 1]]

    def _tokens_after(self, state: int) -> list[int]:
        """Return the tokens that begin the spellings after a state. Some may be there more than once."""
        owners = [state, *(owner for owner, _ in self.shared.get(state, ()))]
        return [token for owner in owners for token in self._tokens_at(int(self.node_of[owner]))]

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
        """Add the states between words and the trie's nodes, except nodes that need a set of places."""
        trie, parents = self.trie, self.parents
        of_states = np.full(trie.num_nodes, -1, dtype=np.int64)  # the state between words of a node of the first level
        has_node = np.flatnonzero(self.node_of >= 0)
        of_states[self.node_of[has_node]] = has_node
        sources = np.where(of_states[parents] >= 0, 1 + of_states[parents], self.first_node + parents)
        nodes, forms = trie.child_nodes, trie.child_forms
        targets = self.first_node + nodes.astype(np.int64)
        weights = self.pushed[np.maximum(nodes, 0)] - self.pushed[parents]
        ends = np.flatnonzero((nodes < 0) & self.keys.is_single[forms])
        states, of_ends = self.keys.single(forms[ends])
        is_plain = np.array([default is None for default in self.defaults])[states]
        if self.delimiter is not None:
            is_plain |= self.free_of[states] >= 0
        # Free words stay possible after the words of a state that they are possible after.
        beside = self.beside[ends]
        simple = np.where(beside >= 0, (self.free_of[states] >= 0) & (self.only[beside] == self.free_of[states]), is_plain)
        ends, states, of_ends = ends[simple], states[simple], of_ends[simple]
        targets[ends], weights[ends] = 1 + states, of_ends - self.pushed[parents[ends]]
        rest = (parents > 0) & ((nodes < 0) | self.is_mixed[np.maximum(nodes, 0)])
        rest[ends] = False
        for child in np.flatnonzero(rest).tolist():
            places = [*self._entered(int(nodes[child]), int(forms[child]), 0.0), *self._places_beside(child)]
            weight, targets[child] = self._numbered(places)
            weights[child] = weight - self.pushed[parents[child]]
        real = (parents > 0) & (of_states[parents] <= self.start) & ~np.isin(of_states[parents], [*self.shared])
        self.arcs.add(sources[real], trie.child_tokens[real], weights[real], targets[real])
        self._add_shared(weights, targets)
        # Ends of sentences between words, and before delimiters.
        final = np.flatnonzero(~np.isnan(self.finals) | (self.free_of[: self.start + 1] >= 0))
        self._add_finals(1 + final, np.nan_to_num(self.finals[final], nan=-self.price))
        final = np.flatnonzero(~np.isnan(self.node_finals))
        self._add_finals(self.first_node + final, self.node_finals[final] - self.pushed[final])

    def _add_shared(self, weights: np.ndarray, targets: np.ndarray) -> None:
        """Add the first tokens of shared lists to the states that read them. `weights`, `targets`: of the trie's arcs."""
        tokens, offsets = self.trie.child_tokens, self.trie.child_offsets
        for state, owners in self.shared.items():
            nodes = [(int(self.node_of[owner]), more) for owner, more in [(state, 0.0), *owners] if self.node_of[owner] >= 0]
            arcs = np.concatenate([np.arange(offsets[node], offsets[node + 1]) for node, _ in nodes])
            more = np.concatenate([np.full(offsets[node + 1] - offsets[node], weight) for node, weight in nodes])
            found, firsts, counts = np.unique(tokens[arcs], return_index=True, return_counts=True)
            arc_weights, ends = weights[arcs[firsts]] + more[firsts], targets[arcs[firsts]]
            for place in np.flatnonzero(counts > 1).tolist():  # several lists have the token
                places = self._begun(state, int(found[place]), 0.0)
                if self.free_of[state] >= 0 and found[place] != self.delimiter:
                    places.append((FREE, int(self.free_of[state]), 0.0))
                arc_weights[place], ends[place] = self._numbered(places)
            self.arcs.add(np.full(len(found), 1 + state), found, arc_weights, ends)

    def _add_finals(self, sources: np.ndarray, weights: np.ndarray) -> None:
        self.arcs.add(sources, np.full(len(sources), self.vocab_size), weights, np.full(len(sources), OUTSIDE))

    def _entered(self, node: int, form: int, weight: float) -> list[Place]:
        """Return the places after the token that leads to a node. If `node` is -1, the token ends the spelling `form`."""
        places: list[Place] = []
        if node >= 0:
            places.append((NODE, node, weight))
            form = int(self.form_at[node])
        if form >= 0:
            places += [(BETWEEN, state, weight + more) for state, more in self.ends_of(form)]
        return places

    def _numbered(self, places: list[Place]) -> tuple[float, int]:
        """Return the weight of entering a set of places, and the number of its state."""
        best = self._reduced(places)
        if len(best) == 1:
            ((kind, which), weight) = next(iter(best.items()))
            has_root = self.delimiter is not None and kind == BETWEEN and self.free_of[which] >= 0
            if kind == BETWEEN and (self.defaults[which] is None or has_root):
                return weight, 1 + which
        elif len(best) == 2 and self.delimiter is None:
            (_, free), (kind, which) = sorted(best, reverse=True)
            if kind == BETWEEN and (FREE, free) in best and free == self.free_of[which] and self._covers(which, free):
                return 0.0, 1 + which
        # A node of which the spelling ends stands for the state behind it as well, if that is deterministic.
        for kind, node in best:
            if kind == NODE and not self.is_mixed[node]:
                beside = self._places_beside(int(self.arc_of[node]))
                if self._reduced([*self._entered(node, -1, best[NODE, node]), *beside]) == best:
                    return best[NODE, node] + self.pushed[node], self.first_node + node
        most = max(weight + (self.pushed[which] if kind == NODE else 0.0) for (kind, which), weight in best.items())
        is_even = not most and not any(best.values())
        key = sorted((kind, which, 0.0 if is_even else round(weight - most, 6)) for (kind, which), weight in best.items())
        return most, self._set(tuple(key))

    def _reduced(self, places: list[Place]) -> dict[tuple[int, int], float]:
        """Return the largest weight of each place, without places that others cover."""
        best: dict[tuple[int, int], float] = {}
        for kind, which, weight in places:
            best[kind, which] = max(weight, best.get((kind, which), -np.inf))
        for kind in (BETWEEN, FREE) if len(best) > 1 and self.covering else ():
            present = {which for of, which in best if of == kind}
            for other in present:
                if not present.isdisjoint(self.covering.get(other, ())):
                    del best[kind, other]
        return best

    def _set(self, key: Places) -> int:
        if key not in self.sets:
            self.sets[key] = self.first_set + len(self.sets)
            self.waiting.append(key)
        return self.sets[key]

    def _children(self, node: int, token: int, weight: float) -> list[Place]:
        if node < 0:
            return []
        last = self.child_bounds[node + 1]
        child = bisect_left(self.child_tokens, token, self.child_bounds[node], last)
        if child == last or self.child_tokens[child] != token:
            return []
        return self._entered(int(self.trie.child_nodes[child]), int(self.trie.child_forms[child]), weight)

    def _begun(self, state: int, token: int, weight: float) -> list[Place]:
        """Return the places after the first token of the spellings after a state."""
        owners = [(state, 0.0), *self.shared.get(state, ())]
        return [place for owner, more in owners for place in self._children(int(self.node_of[owner]), token, weight + more)]

    def _after(self, places: Places, token: int) -> list[Place]:
        """Return the places after a token. This defines the tokens that a set of places accepts."""
        is_delimiter = token == self.delimiter
        # With a delimiter, any other token may begin a free word; without one, a free word's first token shows that.
        begins = not is_delimiter if self.delimiter is not None else bool(self.begins[token])
        after: list[Place] = []
        compares = self.covering and begins and self.delimiter is None
        ended = {which for kind, which, _ in places if kind != NODE} if compares else set()
        for kind, which, weight in places:
            if kind != NODE and not ended.isdisjoint(self.covering.get(which, ())):
                continue  # whatever may follow may also follow the other state
            if kind == NODE:
                after += self._children(which, token, weight)
            elif kind == BETWEEN:
                after += self._begun(which, token, weight)
                default = self.defaults[which]
                if default is not None and begins:
                    after.append((FREE, default[1], weight + default[0]))
            elif is_delimiter:
                after.append((BETWEEN, which, weight))
            elif self.delimiter is None and begins:  # another free word
                default = self.defaults[which]
                if default is not None:
                    after.append((FREE, default[1], weight + default[0]))
                after += self._begun(which, token, weight)
            else:
                after.append((FREE, which, weight))
        return after

    def _add_set(self, places: Places) -> None:
        """Add the state of a set of places, with its arcs and backoff."""
        number = self.sets[places]
        nodes = [which for kind, which, _ in places if kind == NODE]
        if nodes:
            # Tokens that continue no spelling lead where they lead without the nodes.
            finals = [self._final(place) for place in places]
            if not np.isnan(finals).all():
                self._add_finals(np.array([number]), np.array([np.nanmax(finals)]))
            self._add_arcs(number, places, {token for node in nodes for token in self._tokens_at(node)})
            others = [place for place in places if place[0] != NODE]
            if others:
                weight, state = self._numbered(others)
                self.backoffs[number] = _Backoff(4 + 2 * int(self.trie.depths[nodes].max()), state, weight)
            return
        inside = [(FREE, which, weight) for kind, which, weight in places if kind == FREE]
        # After a token that begins a free word.
        begun = [
            (FREE, default[1], weight + default[0])
            for kind, which, weight in places
            if (kind == BETWEEN or (kind == FREE and self.delimiter is None)) and (default := self.defaults[which]) is not None
        ]
        tokens = {token for kind, which, _ in places if kind == BETWEEN for token in self._tokens_after(which)}
        finals = [self._final(place) for place in places]
        can_end = not np.isnan(finals).all()
        if can_end or inside or begun:  # else the backoff of a free word would answer
            self._add_finals(np.array([number]), np.array([np.nanmax(finals) if can_end else -self.price]))
        if not inside and not begun:
            self._add_arcs(number, places, tokens)
        elif len(inside) == len(places) and self._is_lasting(inside):
            self.backoffs[number] = _Backoff(1, number, 0.0)
            self._add_arcs(number, places, self._openings(which for _, which, _ in places))
        elif self._is_lasting(begun or inside):
            weight, root = self._numbered(begun or inside)
            # Only arcs tell the first token of a free word from the others, and from words that may follow free words.
            if set(inside) != set(begun):
                tokens |= self._openings(which for _, which, _ in (*inside, *begun))
                tokens |= set(np.flatnonzero(~self.begins).tolist()) if self.delimiter is None else set()
            self._add_arcs(number, places, tokens)
            self.backoffs[number] = _Backoff(3, root, weight)
        else:
            self._add_arcs(number, places, set(range(self.vocab_size)))

    def _is_lasting(self, places: list[Place]) -> bool:
        """Return whether places inside free words stay the same after any further free word."""
        return self.delimiter is not None or all(self.defaults[which] == (0.0, which) for _, which, _ in places)

    def _openings(self, states: Iterable[int]) -> set[int]:
        """Return the tokens with which the words after free words begin."""
        if self.delimiter is not None:
            return {self.delimiter}
        found = {token for state in states for token in self._tokens_after(state)}
        return {token for token in found if self.begins[token]}

    def _final(self, place: Place) -> float:
        kind, which, weight = place
        return weight + float(self.node_finals[which] if kind == NODE else self.finals[which])

    def _add_arcs(self, number: int, places: Places, wanted: set[int]) -> None:
        """Add the arcs of a set for some tokens. A token after which no place is left leads outside the grammar."""
        tokens = sorted(wanted)
        ends = [self._after(places, token) for token in tokens]
        numbered = [self._numbered(end) if end else (-self.price, OUTSIDE) for end in ends]
        weights, targets = zip(*numbered) if numbered else ((), ())
        self.arcs.add(
            np.full(len(tokens), number), np.array(tokens, dtype=np.int64), np.array(weights), np.array(targets, np.int64)
        )

    def _assembled(self, start: int) -> BackoffAutomaton:
        """Number the states so that backoff states come first, and leave out those that can't be reached."""
        size = self.first_set + len(self.sets)
        backoffs, weights = np.zeros(size, dtype=np.int64), np.full(size, -self.price)
        ranks = np.full(size, 3)
        ranks[OUTSIDE], weights[OUTSIDE] = 0, 0.0
        ranks[self.first_node : self.first_set] += 2 * self.trie.depths
        for number, (rank, state, weight) in self.backoffs.items():
            ranks[number], backoffs[number], weights[number] = rank, state, weight
        states = np.flatnonzero(self.free_of[: self.start + 1] >= 0)
        backoffs[1 + states], weights[1 + states] = [self.roots[free] for free in self.free_of[states].tolist()], 0.0
        # Tokens that don't continue a spelling continue the free words beside it.
        nodes = np.flatnonzero(self.beside[self.arc_of] >= 0)
        backoffs[self.first_node + nodes] = self.state_beside[self.beside[self.arc_of[nodes]]]
        weights[self.first_node + nodes] = 0.0
        # The end of a spelling backs off to the state behind it.
        nodes = np.flatnonzero((self.form_at >= 0) & ~self.is_mixed)
        states, of_ends = self.keys.single(self.form_at[nodes])
        backoffs[self.first_node + nodes], weights[self.first_node + nodes] = 1 + states, of_ends - self.pushed[nodes]
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
    """Return which states can be reached from the start, bool; OUTSIDE is among them."""
    reached = np.zeros(len(backoffs), dtype=bool)
    reached[[OUTSIDE, start]] = True
    while True:
        before = int(reached.sum())
        reached[targets[reached[sources]]] = True
        reached[backoffs[reached]] = True
        if int(reached.sum()) == before:
            return reached
