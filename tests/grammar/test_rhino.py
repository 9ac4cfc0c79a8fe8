"""Rhino's contexts, against expansions written by hand."""

from __future__ import annotations

import random
from itertools import islice, product

import pytest
from grammar_sentences import sentences

from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar.reference import Meaning, readings
from hf_ngpulm.grammar.rhino import read_rhino

CONTEXT = """
context:
  expressions:
    order:
      - "[get, fetch me] (a, an) ($size:size) @drinks [please, now]"
      - "@drinks"
    light:
      - "turn [on, off @all] (the) lights"
      - "set $pv.SingleDigitInteger:lamp to $pv.Percent:level"
      - "timer $pv.TwoDigitInteger:minutes (minutes)"
      - "the $pv.TwoDigitOrdinal:day"
      - "row $pv.Alphanumeric:row"
  slots:
    size: [small, "extra large", 2]
    drink:
      - tea
      - flat white
  macros:
    drinks: ["$drink:drink", "$drink:drink with @milk"]
    milk: ["(oat) milk"]
    all: ["all (of)"]
"""


def test_an_expansion_by_hand():
    """Every order, with its slots; nothing else that is drawn or said."""
    rules = read_rhino(CONTEXT)
    drinks = [(f"{drink}{milk}", drink) for drink in ("tea", "flat white") for milk in ("", " with milk", " with oat milk")]
    expected = {text: (("drink", drink),) for text, drink in drinks}
    sizes = ["", "small", "extra large", "2"]
    for get, a, size, (text, drink), end in product(["get", "fetch me"], ["", "a", "an"], sizes, drinks, ["please", "now"]):
        slots = (("drink", drink),) if not size else (("size", size), ("drink", drink))
        expected[" ".join(f"{get} {a} {size} {text} {end}".split())] = slots
    assert len(expected) == 6 + 2 * 3 * 4 * 6 * 2
    for text, slots in expected.items():
        assert readings(rules, text) == [Meaning("order", slots, 0.0)], text
    orders = rules._replace(intents={"order": rules.intents["order"]})
    drawn = {each.text for each in islice(sentences(orders, random.Random(0)), 6000)}
    assert drawn <= expected.keys() and len(drawn) > 250
    for text in ("get tea", "get a a tea now", "fetch tea now", "tea please", "get large tea now", "small tea"):
        assert readings(rules, text) == [], text


def test_built_in_slots():
    rules = read_rhino(CONTEXT)
    cases = {
        "set five to ten percent": (("lamp", 5), ("level", 10)),
        "set 0 to 100%": (("lamp", 0), ("level", 100)),
        "timer forty-two": (("minutes", 42),),
        "timer 5 minutes": (("minutes", 5),),
        "the twenty first": (("day", 21),),
        "the 3rd": (("day", 3),),
        "row B": (("row", "b"),),
        "row seven": (("row", 7),),
        "turn off all of the lights": (),
    }
    for text, slots in cases.items():
        assert readings(rules, text) == [Meaning("light", slots, 0.0)], text
    for text in ("set ten to ten percent", "set five to 101%", "timer one hundred", "the zeroth", "row ten"):
        assert readings(rules, text) == [], text
    german = read_rhino({"context": {"expressions": {"a": ["$pv.TwoDigitInteger:n mal"]}}}, language="de")
    assert readings(german, "zwanzig mal") == [Meaning("a", (("n", 20),), 0.0)]


def test_files(tmp_path):
    (tmp_path / "context.yml").write_text(CONTEXT, encoding="utf-8")
    assert read_rhino(tmp_path / "context.yml") == read_rhino(CONTEXT)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("a [b, c", r"bad.yaml:4:9: 'a \[b, c', character 3: '\[' isn't closed; end it with '\]'"),
        ("a (b]", r"character 3: '\(' isn't closed"),
        ("a b)", r"character 4: '\)' has no partner"),
        ("a, b", "character 2: ',' has no partner"),
        ("a [b, , c]", r"character 3: a choice after '\[' is empty"),
        ("a []", r"character 3: a choice after '\[' is empty"),
        ("a $b", r"character 3: '\$b' should be \$SLOT:NAME"),
        ("a $ b", r"character 3: '\$' should be \$SLOT:NAME"),
        ("a @", "character 3: '@' should be @MACRO"),
        ("a $b:c", r"character 4: the slot \$b is unknown; define it under slots. Known slots: s"),
        ("a @b", "character 4: the macro @b is unknown"),
        ("a @m", "bad.yaml:7:17: .*macros can't contain themselves: m -> n -> m"),
        ("a $pv.Color:c", r"character 4: the built-in slot \$pv.Color isn't known in 'en'"),
        ("   ", "the expression is empty"),
        ("[" * 150 + "a" + "]" * 150, "brackets are nested more than 100 deep"),
    ],
)
def test_bad_expressions_are_named(tmp_path, expression, message):
    text = f'context:\n  expressions:\n    go:\n      - "{expression}"\n  macros:\n    "m": [ "@n" ]\n    "n": [ "x", "@m" ]\n'
    path = tmp_path / "bad.yaml"
    path.write_text(text + '  slots:\n    "s": [one]\n', encoding="utf-8")
    with pytest.raises(GrammarError, match=message):
        read_rhino(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("context:\n  expressions: {}", "a context should have"),
        ("- a\n- b", "a context should have"),
        ("context:\n  expressions: {a: b}", "the intent 'a' should have a list of texts, got 'b'"),
        ("context:\n  expressions: {a: [b]}\n  slots: {c: []}", "the slot 'c' should have a list of texts"),
        ("context:\n  expressions: {a: [b]}\n  slots: {c: [on]}", "the slot 'c' has the value True, which YAML reads"),
        ("context:\n  expressions: {a: [b]}\n  macros: [c]", "'macros' should be a mapping"),
        ("context:\n  expressions: {a: [b}", "context:2:.*isn't valid YAML"),
        ("none.yml", "'none.yml' can't be read"),
    ],
)
def test_bad_contexts_are_named(text, message):
    with pytest.raises(GrammarError, match=message):
        read_rhino(text)
