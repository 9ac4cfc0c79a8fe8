"""The groups of spellings that states share, against each state's own spellings."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from test_compiled import THINGS, expressions, few  # noqa: F401
from words_in_pieces import pieces

from hf_ngpulm.grammar.keys import Keys
from hf_ngpulm.grammar.network import Network
from hf_ngpulm.grammar.spelling import spelled
from hf_ngpulm.grammar.words import determinised
from hf_ngpulm.text.spelling import speller_of

DELIMITER = 99


@settings(max_examples=examples(60), deadline=None)
@given(expressions(True), THINGS, st.sampled_from([None, DELIMITER]), st.data())
def test_groups_have_each_states_spellings(expression, things, delimiter, data):
    network = Network({"do": expression}, {"things": [(thing, None) for thing in things]})
    symbols = spelled(network, speller_of(pieces()), False)._replace(marks=frozenset([98]))
    words = determinised(network, symbols.classes)
    start = len(words.arcs)
    free_of = np.array(data.draw(st.lists(st.sampled_from([-1, 0]), min_size=start + 1, max_size=start + 1)))
    keys = Keys(words, symbols, delimiter, start, free_of)
    end = () if delimiter is None else (delimiter,)
    targets = {target for arcs in words.arcs for _, target in arcs.values()} | {each[1] for each in words.defaults if each}
    ends: dict[int, set] = {}  # by group: spellings, and where they lead
    for form, (first, last) in enumerate(zip(keys.offsets, keys.offsets[1:])):
        group, *tokens = keys.tokens[first:last].tolist()
        ends.setdefault(group, set()).update((tuple(tokens), state, weight) for state, weight in keys.ends_of(form))
    seen: dict = {}
    for state in range(start + 1):
        groups = keys.groups[keys.bounds[state] : keys.bounds[state + 1]].tolist()
        firsts = keys.firsts[keys.bounds[state] : keys.bounds[state + 1]].tolist()
        assert firsts == sorted(firsts)
        for group, first in zip(groups, firsts):
            assert {tokens[0] for tokens, *_ in ends[group]} == {first}
            assert free_of[keys.users[group]] == free_of[state]
            if state < start:  # states share all that they can
                assert seen.setdefault((free_of[state], frozenset(ends[group])), group) == group
        expected = [
            ((*tokens, *end), target, weight)
            for symbol, (weight, target) in words.arcs[0 if state == start else state].items()
            for sequences in symbols.members[symbol][: 2 if state == start else 1]
            for tokens in sequences
        ]
        expected += [((mark,), state, 0.0) for mark in symbols.marks if state in targets]
        expected += [(end, state, 0.0)] if end else []
        found = [each for group in groups for each in ends[group]]
        assert {each[:2] for each in found} == {each[:2] for each in expected}
        best = {each[:2]: max(other[2] for other in expected if other[:2] == each[:2]) for each in expected}
        assert all(best[tokens, target] == weight for tokens, target, weight in found)
