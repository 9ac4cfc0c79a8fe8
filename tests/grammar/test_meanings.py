"""The readings of a text, against sentences drawn from grammars, and worked out by hand."""

from __future__ import annotations

import random
from itertools import islice, product

import pytest
from grammar_sentences import sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm import Grammar
from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar import network
from hf_ngpulm.grammar.expressions import Choice, List, Number, Optional, Repeat, Sequence, Slot, Wildcard, Words
from hf_ngpulm.grammar.network import Network, Symbols
from hf_ngpulm.grammar.reference import Meaning, readings
from hf_ngpulm.grammar.rules import Rules, checked

WORDS = "abc"
leaves = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=2).map(lambda words: Words(" ".join(words))),
    st.just(List("l")),
    st.just(Wildcard()),
)


def larger(parts):
    weights = st.sampled_from([-2.0, -1.0, 0.0])
    return st.one_of(
        st.lists(parts, max_size=3).map(lambda each: Sequence(*each)),
        st.lists(st.tuples(parts, weights), min_size=1, max_size=3).map(
            lambda pairs: Choice(*(part for part, _ in pairs), weights=[weight for _, weight in pairs])
        ),
        st.builds(Repeat, parts, st.integers(0, 2), st.one_of(st.none(), st.integers(2, 3))),
    )


plain = st.recursive(leaves, larger, max_leaves=5)
slotted = st.recursive(
    st.one_of(leaves, st.builds(Slot, st.sampled_from("xy"), plain, st.sampled_from([None, None, "v", 3]))),
    larger,
    max_leaves=5,
)
grammars = st.builds(
    lambda one, two: Rules({"one": one, "two": two}, {"l": [("a", "A"), ("b c", 7), ("c", None)]}), slotted, slotted
)


@settings(deadline=None)
@given(grammars, st.randoms(use_true_random=False))
def test_drawn_sentences_have_their_meaning(rules, rng):
    for sentence in islice(sentences(rules, rng, WORDS), 5):
        if len(sentence.text.split()) > 8:
            continue
        found = {(intent, slots): weight for intent, slots, weight in readings(rules, sentence.text)}
        assert (sentence.intent, sentence.slots) in found
        assert found[sentence.intent, sentence.slots] >= sentence.weight - 1e-9


@settings(deadline=None)
@given(slotted, st.lists(st.sampled_from(WORDS), max_size=4))
def test_the_likeliest_reading_is_that_of_the_network(expression, words):
    """Which words, with which weight: the compiled network's search is another algorithm."""
    rules = Rules({"one": expression}, {"l": [("a", "A"), ("b c", 7), ("c", None)]})
    network = Network(rules.intents, rules.lists)
    spellings = {
        symbol: {tuple(map(ord, text.replace(" ", ""))): value for text, value in network.entries(symbol)}
        for symbol in network.symbols
        if isinstance(symbol, str | List)
    }
    symbols = Symbols(spellings, lambda units, place: min(place + 1, len(units)), lambda units, place: place)
    best = network.reading([ord(word) for word in words], symbols)
    found = readings(rules, " ".join(words))
    assert (best is None) == (not found)
    if found:
        assert best.weight == pytest.approx(found[0].weight, abs=1e-3)


def test_a_language_written_out():
    """Every text of up to four words, against a list of sentences made by loops."""
    part = Sequence(Optional("a"), Choice("b", Sequence("c", "b"), weights=[0, -1]), Repeat(Slot("x", Choice("a", "c")), 0, 2))
    rules = Rules({None: part}, {})
    expected: dict[str, tuple] = {}
    for first, middle, last in product(
        ["", "a "], [("b", 0.0), ("c b", -1.0)], ["", "a", "c", *map(" ".join, product("ac", repeat=2))]
    ):
        text = f"{first}{middle[0]} {last}".strip()
        meaning = Meaning(None, tuple(("x", word) for word in last.split()), middle[1])
        if text not in expected or expected[text].weight < meaning.weight:
            expected[text] = meaning
    for length in range(6):
        for words in product(WORDS, repeat=length):
            text = " ".join(words)
            assert readings(rules, text)[:1] == ([expected[text]] if text in expected else []), text


def test_values():
    rules = Rules(
        {
            "light": Sequence(
                "turn", Choice(Slot("on", "on", True), Slot("on", "off", False)), Optional("the"), Slot("room", List("room")),
                Optional("to", Slot("level", Number(0, 100, 5)), "percent"),
            ),
            "say": Sequence("say", Slot("text", Wildcard()), Optional("in", Slot("room", List("room")))),
        },
        {"room": [("living room", "lr"), ("kitchen", None), (Sequence("the", Choice("attic", "loft")), "up")]},
    )  # fmt: skip
    assert readings(rules, "Turn OFF the living room") == [Meaning("light", (("on", False), ("room", "lr")), 0.0)]
    for number in ("55", "fifty-five", "fifty five"):
        slots = (("on", True), ("room", "Kitchen"), ("level", 55))
        assert readings(rules, f"turn on Kitchen to {number} percent") == [Meaning("light", slots, 0.0)]
    assert readings(rules, "turn on kitchen to 54 percent") == []
    assert readings(rules, "turn on the loft") == [Meaning("light", (("on", True), ("room", "up")), 0.0)]
    assert readings(rules, "say well done in kitchen") == [  # the wildcard that ends first is the best
        Meaning("say", (("text", "well done"), ("room", "kitchen")), 0.0),
        Meaning("say", (("text", "well done in kitchen"),), 0.0),
    ]
    assert readings(rules, "say") == readings(rules, "") == readings(rules, "turn on") == []


def deep(levels):
    part = Words("a")
    for _ in range(levels):
        part = Sequence(part, "b")
    return part


def wide(levels):
    part = Words("a")
    for _ in range(levels):
        part = Sequence(part, part)
    return part


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (Rules({None: List("x")}, {"y": [("a", 1)]}), "file: the list 'x' is unknown.*Known lists: y"),
        (Rules({None: List("x")}, {"x": []}), "file: the list 'x' is empty"),
        (
            Rules({None: List("x")}, {"x": [(Sequence("a", List("y")), 1)], "y": [(List("x"), 1)]}),
            "contains itself: x -> y -> x",
        ),
        (Rules({None: List("x")}, {"x": [(Slot("s", "a"), 1)]}), "entry of the list 'x' has a slot"),
        (Rules({None: Slot("s", Optional(Slot("t", "a")))}, {}), "slot 't' is within the slot 's'"),
        (Rules({None: deep(101)}, {}), "more than 100 deep"),
        (Rules({None: deep(5000)}, {}), "more than 100 deep"),
        (Rules({None: wide(60)}, {}), "more than 1,000,000 parts"),
        (Rules({None: Repeat(Repeat(Repeat("a b", 0, 999), 0, 999), 0, 999)}, {}), "more than 1,000,000 parts"),
    ],
)
def test_what_cannot_be_compiled_is_named(rules, message):
    with pytest.raises(GrammarError, match=message):
        checked(rules, "file")


def test_drawing_is_random():
    rules = Rules({None: Choice("a", "b")}, {})
    assert {each.text for each in islice(sentences(rules, random.Random(0)), 20)} == {"a", "b"}


def test_an_intents_states_with_the_same_arcs_are_one_state():
    words = [Words(f"word{number}") for number in range(50)]

    def size(contexts):
        rule = Choice(*words)
        sentences = [Sequence(f"say{number}", rule, rule, "now") for number in range(contexts)]
        return len(Network({"do": Choice(*sentences)}, {}).arcs)

    assert size(100) - size(50) < 110  # the rule isn't there once more for each sentence


def test_values_that_are_equal_but_not_the_same_stay_apart():
    values = [1, True, 1.0, "1", None]
    slots = [Sequence(f"say{number}", Slot("x", "now", value)) for number, value in enumerate(values)]
    network = Network({"do": Choice(*slots)}, {})
    texts = {f"say{number} now": value for number, value in enumerate(values)}
    spellings = {word: {(word,): None} for text in texts for word in text.split()}
    symbols = Symbols(spellings, lambda units, place: place, lambda units, place: place)
    for text, value in texts.items():
        found = network.reading(text.split(), symbols).slots[0].value
        assert found == value and type(found) is type(value)


def test_intents_share_no_states():
    network = Network(dict.fromkeys(["one", "two"], Words("turn on")), {})
    first, second = [arc.target for arc in network.arcs[0]]
    assert {network.arcs[first][0].target}.isdisjoint({network.arcs[second][0].target})


def test_long_transcripts_are_read_and_endless_gains_are_refused(monkeypatch):
    repeated = Grammar({"go": Repeat(Choice("a", "b"))})
    endless = Grammar({"go": Repeat(Choice(Optional("a"), "b", weights=[1.0, 0.0]))})
    monkeypatch.setattr(network, "MOST_ARCS", 40)
    assert repeated.reading("a b " * 50).intent == "go"
    with pytest.raises(GrammarError, match="may be empty is repeated with a weight above 0"):
        endless.reading("a b")
