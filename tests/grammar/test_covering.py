"""Which states of automata of words cover others, against all short texts."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from test_compiled import THINGS, WORDS, beginnings

from hf_ngpulm.grammar.covering import covering
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


@settings(max_examples=60, deadline=None)
@given(beginnings(), THINGS)
def test_covered_states_allow_nothing_more(expression, things):
    words, free_of = automaton(expression)
    found = covering(words, free_of, lambda symbol: True)
    texts = {state: texts_after(words, state, things) for state in {*found, *(each for of in found.values() for each in of)}}
    for state, others in found.items():
        assert all(texts[state] <= texts[other] for other in others)
        assert not any(state in found.get(other, ()) for other in others)  # one of them stays


def test_all_states_after_the_start_cover_the_free_words_that_are_always_possible():
    first = Sequence(Wildcard(), List("things"))
    words, free_of = automaton(Choice(first, Sequence(Words("a b"), Wildcard(), Words("on"))))
    found = covering(words, free_of, lambda symbol: True)
    always = free_of[0]
    assert found[always] == set(range(1, len(words.arcs))) - {always}
