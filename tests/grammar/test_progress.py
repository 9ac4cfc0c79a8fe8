"""Beginnings of sentences, against the sentences themselves, written out."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from grammar_sentences import sentences
from words_in_pieces import pieces

from hf_ngpulm import Grammar
from hf_ngpulm.grammar.expressions import Choice, List, Number, Optional, Repeat, Sequence, Slot, Wildcard
from hf_ngpulm.grammar.network import FREE, Network, Symbols
from hf_ngpulm.grammar.progress import Beginnings
from hf_ngpulm.grammar.rules import Rules

INTENTS = {
    "turn": Sequence("b", Slot("thing", List("things")), Optional("b")),
    "tell": Sequence("a", Slot("who", Choice("b b", "ab")), Slot("often", Repeat("a", 0, 2), 3)),
}
GRAMMAR = Grammar(INTENTS, {"things": [("a", 1), ("a b a", 2), ("ab", 3)]})


def drawn(grammar, count=400):
    rules = Rules(grammar.intents, grammar.lists)
    return sorted({each.text for each in islice(sentences(rules, random.Random(1)), count)})


def in_letters(grammar):
    """Reads texts of letters, with a space between words."""
    network = Network(grammar.intents, grammar.lists)
    spellings = {symbol: {tuple(text): value for text, value in network.entries(symbol)} for symbol in network.symbols - {FREE}}
    skipped = lambda units, place: place + (units[place : place + 1] == [" "])  # noqa: E731
    return Beginnings(network, Symbols(spellings, lambda units, place: place, skipped, separators=frozenset(" ")))


def ids_of(text):
    return tuple(pieces()(text, add_special_tokens=False).input_ids)


@pytest.mark.parametrize("units", [ids_of, tuple], ids=["pieces", "letters"])
def test_each_beginning_is_known_as_the_sentences_say(units):
    """Cut after each token, within words, too."""
    reader = GRAMMAR.compiled(pieces()) if units is ids_of else in_letters(GRAMMAR)
    whole = {units(text): GRAMMAR.reading(text).intent for text in drawn(GRAMMAR)}
    assert len(whole) > 8
    for cut in {known[:length] for known in whole for length in range(len(known) + 1)}:
        found = reader.progress(list(cut))
        cut = cut[:-1] if cut[-1:] == (" ",) else cut  # a space ends a word, no sentence
        longer = [known for known in whole if known[: len(cut)] == cut and known != cut]
        intents = {whole[known] for known in [*longer, *([cut] if cut in whole else [])]}
        assert (found.is_complete, found.may_go_on) == (cut in whole, bool(longer)), cut
        assert found.intent == (intents.pop() if len(intents) == 1 else None), cut
    assert reader.progress([*units("b a b b b")]) is None


def test_slots_are_told_once_they_are_complete():
    grammar = Grammar(
        {
            "set": Sequence("set", Slot("name", ["lamp", "lamp two"]), "to", Slot("level", Number(0, 100)), Optional("please")),
            "stop": "stop",
        }
    )
    reader = in_letters(grammar)

    def after(text):
        found = reader.progress([*text])
        return found.intent, [(slot.name, slot.value) for slot in found.slots], found.is_complete, found.may_go_on

    assert after("") == after("s") == (None, [], False, True)
    assert after("set la") == ("set", [], False, True)
    assert after("set lamp to") == ("set", [("name", None)], False, True)
    assert after("set lamp to twenty") == ("set", [("name", None), ("level", 20)], True, True)
    assert after("set lamp to twenty one please") == ("set", [("name", None), ("level", 21)], True, False)
    assert after("stop") == ("stop", [], True, False)
    assert reader.progress([*"zz"]) is None


def test_free_words_may_always_go_on():
    found = Grammar({"play": Sequence("b", Slot("song", Wildcard()))}).compiled(pieces()).progress([*ids_of("b a")])
    assert found.is_complete and found.may_go_on and found.slots[0].name == "song"
