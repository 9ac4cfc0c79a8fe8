"""Follow the spellings of an automaton of words token by token.

The spellings of all arcs form one trie. The first level of the trie has groups (`hf_ngpulm.grammar.keys`). A state has a group
for each first token of its arcs' spellings, and the spellings are below the group. States share groups. A *place* is a node of
the trie, a state between words, or the inside of a free word, which any further token may continue. Several places may be
possible after the same tokens. The weight of a place is the weight of the best path to it. A free word is any word that a
wildcard matches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..lexicon.trie import build_trie
from ..text.spelling import Speller
from .covering import Covering
from .keys import Keys
from .spelling import SpelledSymbols
from .words import WordAutomaton

NODE, BETWEEN, FREE = range(3)  # kinds of places
Place = tuple[int, int, float]  # kind; node, or state of words; weight so far, relative to the best place of the set
Places = tuple[Place, ...]


class Spelled:
    """The spellings of an automaton of words, and the places after tokens."""

    def __init__(self, words: WordAutomaton, symbols: SpelledSymbols, speller: Speller) -> None:
        self.words, self.vocab_size = words, speller.vocabulary.size
        self.delimiter, self.members = speller.delimiter, symbols.members
        self.begins = np.asarray(speller.begins_word, dtype=bool)
        self.start = len(words.arcs)  # copy of the start state, whose spellings may lack the blank before the first word
        self.finals = np.array([np.nan if final is None else final for final in (*words.finals, words.finals[0])])
        self.defaults = [*words.defaults, words.defaults[0]]
        self._find_free()
        self.keys = Keys(words, symbols, self.delimiter, self.start, self.free_of)
        self.ends_of = self.keys.ends_of
        self.trie = build_trie(self.keys.offsets, self.keys.tokens)
        self._find_spellings()
        self._follow_free_words()
        self._measure()

    def _find_free(self) -> None:
        """Find the state after any number of free words (`free_of`), and set `covering`, a `Covering` or None."""
        words = self.words
        weights = [weight for of_state in words.arcs for weight, _ in of_state.values()]
        is_weighted = any(weights) or any(words.finals) or any(each and each[0] for each in self.defaults)
        self.covering: Covering | None = None
        self.free_of = np.full(self.start + 1, -1, dtype=np.int64)
        if not is_weighted:
            lasting = {state for state, default in enumerate(self.defaults) if default == (0.0, state)}
            for state, default in enumerate(self.defaults):
                if default is not None and default[1] in lasting:
                    self.free_of[state] = default[1]
            self.covering = Covering(words, self.free_of[:-1], self._is_free) if lasting else None

    def _find_spellings(self) -> None:
        """For each state, find the trie's arcs for the first tokens of the state's spellings. For each node, find the spelling
        that ends there.
        """
        trie, keys = self.trie, self.keys
        first, last = trie.child_offsets[0], trie.child_offsets[1]
        self.first_arcs = trie.child_offsets[trie.child_nodes[first:last]][keys.groups]  # a group has one first token
        self.first_tokens, self.first_bounds = keys.firsts.tolist(), keys.bounds.tolist()
        self.arcs_of_firsts = self.first_arcs.tolist()
        self.child_tokens, self.child_bounds = trie.child_tokens.tolist(), trie.child_offsets.tolist()
        self.child_nodes, self.child_forms = trie.child_nodes.tolist(), trie.child_forms.tolist()
        at_end = trie.path_nodes[trie.path_offsets[1:] - 1]
        self.form_at = np.full(trie.num_nodes, -1, dtype=np.int64)  # the spelling that ends at a node
        forms = np.flatnonzero(at_end >= 0)
        self.form_at[at_end[forms]] = forms

    def _is_free(self, symbol: Any) -> bool:
        """Return whether all spellings of a symbol can be read as free words."""
        return self.delimiter is not None or all(self.begins[each[0]] for each in self.members[symbol][0])

    def _follow_free_words(self) -> None:
        """Find the places beside each arc of the trie. The tokens up to an arc's end may also be read as free words. The places
        beside the arc are the places to which this second reading leads.

        `besides` lists the different sets of such places. `beside` gives each arc the index of its set, or -1 for no places. If
        a set has a single place, `only` has the state of this place, otherwise -1.
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
        opened = [place * self.vocab_size + token for place, free in enumerate(frees) for token in self.tokens_after(free)]
        numbers = {places: number for number, places in enumerate(self.besides)}
        after: dict[int, int] = {}
        depths = trie.depths[self.parents]
        for depth in range(1, int(trie.depths.max(initial=0)) + 1) if frees else ():
            at = np.flatnonzero(depths == depth)
            tokens = trie.child_tokens[at].astype(np.int64)
            if depth == 1:
                free = self.free_of[self.keys.users[self.owners[self.parents[at]]]]
                self.beside[at] = np.where((free < 0) | (tokens == delimiter), -1, np.searchsorted(frees, free))
                continue
            before = self.beside[self.arc_of[self.parents[at]]]
            steps = before * self.vocab_size + tokens
            stays = np.isin(steps, opened, invert=True) | ~self.begins[tokens] if delimiter is None else tokens != delimiter
            stays = (before < 0) | (before < len(frees)) & stays
            for step in set(steps[~stays].tolist()) - after.keys():
                places = self.reduced(self.after(self.besides[step // self.vocab_size], step % self.vocab_size))
                key = tuple(sorted((*place, weight) for place, weight in places.items()))
                after[step] = numbers.setdefault(key, len(numbers)) if key else -1
                if after[step] == len(self.besides):
                    self.besides.append(key)
            self.beside[at] = before
            self.beside[at[~stays]] = [after[step] for step in steps[~stays].tolist()]
        self.only = np.array([places[0][1] if len(places) == 1 else -1 for places in self.besides] + [-1])

    def _measure(self) -> None:
        """Compute values of the trie's nodes and arcs.

        `pushed` has the largest weight of the spellings through a node. `node_finals` has the weight of ending a sentence at a
        node. `is_mixed` marks the nodes at which a spelling ends, but the next state isn't certain: the spelling leads to
        several states, or free words make further places possible. At the other ends of spellings, an arc may continue a longer
        spelling with a token that may also begin the next spelling. `clashes` has the places before each of these arcs.
        """
        trie = self.trie
        sizes = np.diff(trie.path_offsets)
        self.pushed = np.full(trie.num_nodes, -np.inf)
        inner = trie.path_nodes >= 0
        np.maximum.at(self.pushed, trie.path_nodes[inner], np.repeat(self.keys.weights, sizes)[inner])
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
        # Arcs that continue a longer spelling with a token that may also follow the shorter one; the places before them.
        self.clashes: dict[int, Places] = {}
        firsts: dict[int, set[int]] = {}
        for node in np.flatnonzero(self.form_at >= 0).tolist():
            ends = self.ends_of(int(self.form_at[node]))
            (state, _), *others = ends
            if state not in firsts:
                firsts[state] = set(self.tokens_after(state))
            beside = self.beside[self.arc_of[node]]
            has_free = self.defaults[state] is not None or beside >= 0
            is_lasting = beside >= 0 and self.only[beside] == self.free_of[state]
            self.is_mixed[node] = bool(others) or (has_free and not is_lasting)
            if not self.is_mixed[node]:
                before = (*self.entered(node, -1, 0.0), *self.places_beside(int(self.arc_of[node])))
                for arc in range(self.child_bounds[node], self.child_bounds[node + 1]):
                    if self.child_tokens[arc] in firsts[state]:
                        self.clashes[arc] = before

    def places_beside(self, arc: int) -> Places:
        """Return the places that are possible after an arc's tokens if free words are read (see `_follow_free_words`)."""
        return self.besides[self.beside[arc]] if self.beside[arc] >= 0 else ()

    def covers(self, state: int, other: int) -> bool:
        """Return whether all continuations of `other` are continuations of `state`."""
        return state == other or (self.covering is not None and self.covering.is_covered(other, (state,)))

    def reduced(self, places: list[Place]) -> dict[tuple[int, int], float]:
        """Return the largest weight of each place. Places that another place covers are removed (`grammar.covering`)."""
        best: dict[tuple[int, int], float] = {}
        for kind, which, weight in places:
            best[kind, which] = max(weight, best.get((kind, which), -np.inf))
        if len(best) > 1 and self.covering is not None:
            for kind in (BETWEEN, FREE):
                present = [which for of, which in best if of == kind]
                for other in present if len(present) > 1 else ():
                    if self.covering.is_covered(other, present):
                        del best[kind, other]
        return best

    def tokens_at(self, node: int) -> list[int]:
        """Return the tokens of a node's children."""
        if node < 0:
            return []
        return self.child_tokens[self.child_bounds[node] : self.child_bounds[node + 1]]

    def tokens_after(self, state: int) -> list[int]:
        """Return the first tokens of the spellings after a state, in ascending order. Tokens may repeat."""
        return self.first_tokens[self.first_bounds[state] : self.first_bounds[state + 1]]

    def openings_of(self, states: Iterable[int]) -> set[int]:
        """Return the tokens that may begin a word after free words. `states`: the states after the free words."""
        if self.delimiter is not None:
            return {self.delimiter}
        firsts = {token for state in states for token in self.tokens_after(state)}
        return {token for token in firsts if self.begins[token]}

    def is_lasting(self, places: list[Place]) -> bool:
        """Return whether the set of places inside free words stays the same if more free words follow."""
        return self.delimiter is not None or all(self.defaults[which] == (0.0, which) for _, which, _ in places)

    def entered(self, node: int, form: int, weight: float) -> list[Place]:
        """Return the places after a token that leads to a node of the trie. If the token leads to no node, `node` is -1, and
        the token ends the spelling with the number `form`. `weight`: the weight before the token.
        """
        places: list[Place] = []
        if node >= 0:
            places.append((NODE, node, weight))
            form = int(self.form_at[node])
        if form >= 0:
            places += [(BETWEEN, state, weight + more) for state, more in self.ends_of(form)]
        return places

    def _children(self, node: int, token: int, weight: float) -> list[Place]:
        if node < 0:
            return []
        last = self.child_bounds[node + 1]
        child = bisect_left(self.child_tokens, token, self.child_bounds[node], last)
        if child == last or self.child_tokens[child] != token:
            return []
        return self.entered(self.child_nodes[child], self.child_forms[child], weight)

    def begun(self, state: int, token: int, weight: float) -> list[Place]:
        """Return the places after `token` as the first token of a spelling after a state. `weight`: the state's weight."""
        places: list[Place] = []
        last = self.first_bounds[state + 1]
        first = bisect_left(self.first_tokens, token, self.first_bounds[state], last)
        while first < last and self.first_tokens[first] == token:
            child = self.arcs_of_firsts[first]
            places += self.entered(self.child_nodes[child], self.child_forms[child], weight)
            first += 1
        return places

    def after(self, places: Places, token: int) -> list[Place]:
        """Return the places after a token. If the set `places` doesn't accept the token, return no places."""
        is_delimiter = token == self.delimiter
        # With a delimiter, any other token may begin a free word. Without one, only tokens that begin words may.
        begins = not is_delimiter if self.delimiter is not None else bool(self.begins[token])
        after: list[Place] = []
        compares = self.covering and begins and self.delimiter is None
        ended = {which for kind, which, _ in places if kind != NODE} if compares else ()
        for kind, which, weight in places:
            if kind != NODE and len(ended) > 1 and self.covering and self.covering.is_covered(which, ended):
                continue  # another possible state covers this one
            if kind == NODE:
                after += self._children(which, token, weight)
            elif kind == BETWEEN:
                after += self.begun(which, token, weight)
                default = self.defaults[which]
                if default is not None and (begins or which == self.start):  # the first word may lack its blank
                    after.append((FREE, default[1], weight + default[0]))
            elif is_delimiter:
                after.append((BETWEEN, which, weight))
            elif self.delimiter is None and begins:  # another free word
                default = self.defaults[which]
                if default is not None:
                    after.append((FREE, default[1], weight + default[0]))
                after += self.begun(which, token, weight)
            else:
                after.append((FREE, which, weight))
        return after
