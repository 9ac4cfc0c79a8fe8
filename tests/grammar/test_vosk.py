"""Vosk's lists of phrases."""

from __future__ import annotations

import json

import pytest

from hf_ngpulm import Grammar
from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar.reference import Meaning, readings
from hf_ngpulm.grammar.vosk import read_vosk

PHRASES = ["turn on", "turn  off", "one two three", "turn on"]


@pytest.mark.parametrize("form", ["list", "text", "file"])
@pytest.mark.parametrize("other", [False, True])
def test_phrases(tmp_path, form, other):
    phrases = [*PHRASES, "[unk]"] if other else PHRASES
    source = phrases if form == "list" else json.dumps(phrases)
    if form == "file":
        (tmp_path / "grammar.json").write_text(source, encoding="utf-8")
        source = tmp_path / "grammar.json"
    rules = read_vosk(source)
    assert rules.lists == {}
    for text in ("turn on", "Turn off", "one two three"):
        assert readings(rules, text) == [Meaning(None, (), 0.0)]
    for text in ("turn", "turn on turn off", "[unk]", "", "one two"):
        assert readings(rules, text) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('["a",\n "b]', "phrases:2:2: this isn't JSON"),
        ('["a", 5]', "each phrase should be a text with words, got '5'"),
        (["a", " "], "each phrase should be a text with words, got ' '"),
        ('["[unk]"]', r"there are no phrases besides '\[unk\]'"),
        ([], "there are no phrases"),
        ({"a": 1}, "the phrases should be a list of texts"),
        (5, "the phrases should be a list of texts, got '5'"),
        ("[" * 100_000, "this isn't JSON"),
        ("none.json", "'none.json' can't be read"),
    ],
)
def test_bad_lists_are_named(source, message):
    with pytest.raises(GrammarError, match=message):
        read_vosk(source)


def test_marks_of_a_text_do_not_matter():
    grammar = Grammar.from_phrases(["allume la lampe", "what now"])
    for text in ("Allume la lampe !", "allume, la « lampe", "¿ what now?", "What ... now ?"):
        assert (grammar.reading(text) is None) == ("«" in text), text  # which isn't one of the marks
    assert grammar.reading("allume la ! lampe maintenant") is None
