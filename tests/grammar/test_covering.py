"""Which states of automata of words cover others, against all short texts."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_compiled import THINGS, WORDS, beginnings

from hf_ngpulm.grammar.covering import Covering
from hf_ngpulm.grammar.expressions import Choice, List, Sequence, Wildcard, Words
from hf_ngpulm.grammar.network import FREE, Network
from hf_ngpulm.grammar.words import determinised, minimised

TEXTS = [text for count in range(5) for text in itertools.product(WORDS, repeat=count)]


def automaton(expression):
    network = Network({"do": expression}, {"things": [("a", None)]})
    words = minimised(determinised(network, {symbol: (symbol,) for symbol in network.symbols if symbol is not FREE}))
    lasting = {state for state, default in enumerate(words.defaults) if default == (0.0, state)}
    targets = [-1 if default is None or default[1] not in lasting else default[1] for default in words.defaults]
    return words, np.array(targets)


def texts_after(words, state, things):
    """Return the short texts that may follow a state."""

    def is_accepted(text):
        reached = {(state, 0)}
        waiting = list(reached)
        while waiting:
            here, place = waiting.pop()
            steps = [(default[1], 1) for default in [words.defaults[here]] if default is not None]
            for symbol, (_, target) in words.arcs[here].items():
                said = [symbol] if isinstance(symbol, str) else things
                steps += [
                    (target, len(each.split())) for each in said if text[place:][: len(each.split())] == tuple(each.split())
                ]
            after = {(target, place + length) for target, length in steps if place + length <= len(text)} - reached
            reached |= after
            waiting += after
        return any(place == len(text) and words.finals[here] is not None for here, place in reached)

    return {text for text in TEXTS if is_accepted(text)}


def simulation(words, free_of):
    """Return all pairs of states of which the first covers the second: remove pairs until all that follows them stays."""
    states = [state for state, free in enumerate(free_of) if free >= 0]
    pairs = {(one, other) for one in states for other in states if words.finals[one] is not None or words.finals[other] is None}

    def stays(one, other):
        after = {(words.arcs[one].get(symbol, (0.0, free_of[one]))[1], to) for symbol, (_, to) in words.arcs[other].items()}
        return after | {(free_of[one], free_of[other])} <= pairs

    while fallen := {pair for pair in pairs if not stays(*pair)}:
        pairs -= fallen
    return pairs


@settings(max_examples=60, deadline=None)
@given(beginnings(), THINGS, st.randoms())
def test_covered_states_allow_nothing_more(expression, things, draw):
    words, free_of = automaton(expression)
    covering = Covering(words, free_of, lambda symbol: True)
    every = [*itertools.product(range(len(words.arcs)), repeat=2)]
    draw.shuffle(every)  # answers don't depend on the order of questions
    found = {pair for pair in every if covering.covers(*pair)}
    assert found == simulation(words, free_of.tolist())
    texts = [texts_after(words, state, things) for state in range(len(words.arcs))]
    assert all(texts[other] <= texts[state] for state, other in found)
    for one, other in every:
        assert not (one != other and covering.is_covered(one, [other]) and covering.is_covered(other, [one]))  # one stays


def test_all_states_after_the_start_cover_the_free_words_that_are_always_possible():
    first = Sequence(Wildcard(), List("things"))
    words, free_of = automaton(Choice(first, Sequence(Words("a b"), Wildcard(), Words("on"))))
    covering = Covering(words, free_of, lambda symbol: True)
    always = int(free_of[0])
    covered = {state for state in range(len(words.arcs)) if covering.is_covered(always, [state])}
    assert covered == set(range(1, len(words.arcs))) - {always}
