"""What corrections teach."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm import Phrase
from hf_ngpulm.corrections import learned_phrases, lessons, mined_aliases, replacements
from hf_ngpulm.corrections.log import MOST_CHARACTERS
from hf_ngpulm.corrections.replacements import align, shared_words
from hf_ngpulm.text import sounds

WORDS = st.lists(st.sampled_from(["anna", "mat", "tell", "boat", "seven"]), max_size=6).map(" ".join)
NAME = ("please call anna koval ska", "Please call Anna Kowalska.")


def test_a_replacement_seen_twice_becomes_a_phrase():
    assert learned_phrases([NAME]) == []
    assert learned_phrases([NAME, ("is koval ska in", "Is Kowalska in?")]) == [Phrase("Kowalska", aliases=["koval ska"])]
    assert learned_phrases([NAME], times=1) == [Phrase("Kowalska", aliases=["koval ska"])]


def test_the_most_frequent_writing_counts():
    pairs = [("the iphones", "the iPhones"), ("use n eight n", "use N8N"), ("try enate en", "try n8n"), ("n eight n", "n8n!")]
    assert learned_phrases(pairs, times=2) == [Phrase("n8n", aliases=["n eight n"])]


def test_rewrites_teach_nothing():
    pairs = [("he drives the car quickly", "he takes the automobile rapidly")] * 3
    assert learned_phrases(pairs) == []


def test_words_that_are_meant_elsewhere_are_no_alias():
    pairs = [("we had mean here", "we had men here"), ("two mean came", "two men came")]
    assert learned_phrases(pairs) == [Phrase("men", aliases=["mean"])]
    assert learned_phrases([*pairs, ("i mean it", "i mean it")]) == [Phrase("men", aliases=[])]


def test_words_of_their_own_are_no_alias(monkeypatch):
    assert learned_phrases([("i had it", "i have it")] * 2) == [Phrase("have", aliases=[])]  # a common word
    monkeypatch.setattr(lessons, "cmu_dictionary", lambda: {"mean": [["M", "IY1", "N"]]})
    assert learned_phrases([("two mean", "two men")] * 2) == [Phrase("men", aliases=[])]


def test_what_is_mostly_heard_rightly_is_no_phrase():
    pairs = [("litle boats", "little boats"), ("a litle", "a little")]
    assert learned_phrases(pairs) == [Phrase("little", aliases=["litle"])]
    assert learned_phrases([*pairs, ("little by little", "little by little")]) == []


def test_short_words_are_neither():
    assert learned_phrases([("go h", "go he")] * 2) == []
    assert learned_phrases([("mi came", "mike came")] * 2) == [Phrase("mike", aliases=[])]


@settings(deadline=None)
@given(WORDS, WORDS)
def test_an_alignment_covers_both_texts(heard, meant):
    aligned = align(heard, meant)
    assert sum(map(len, aligned.right)) == len(aligned.places)
    assert all(heard.split()[i] == meant.split()[j] for i, j in aligned.places)
    assert aligned.places == sorted(aligned.places)
    left = [word for each in aligned.replaced for word in each.meant.split()]
    assert len(left) + len(aligned.places) <= len(meant.split())


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=8), st.data())
def test_single_replacements_are_those_of_jiwer(numbers, data):
    place = data.draw(st.integers(0, len(numbers) - 1))
    names = ["harbour", "lantern", "seagull", "captain", "morning", "whistle", "anchor", "pilot", "beacon", "compass"]
    meant = [f"{names[n]}{chr(97 + k)}" for k, n in enumerate(numbers)]  # no word twice
    heard = [*meant[:place], meant[place][:-3], *meant[place + 1 :]]
    theirs = jiwer.process_words(" ".join(meant), " ".join(heard)).alignments[0]
    (chunk,) = [chunk for chunk in theirs if chunk.type == "substitute"]
    (found,) = align(" ".join(heard), " ".join(meant)).replaced
    assert (found.heard, found.meant) == (heard[chunk.hyp_start_idx], meant[chunk.ref_start_idx])
    assert found.alike


def test_groups_of_words():
    found = align("i met anna koval ska in the mat", "I met Anna Kowalska in Zermatt.")
    assert [(each.heard, each.meant) for each in found.replaced] == [("koval ska", "Kowalska"), ("the mat", "Zermatt.")]
    assert [each.alike for each in align("b " * 30, "d " * 30).replaced] == [False]  # written anew


def test_mined_aliases():
    n_best = [
        [SimpleNamespace(text=text) for text in ("call anna koval ska", "call anna kovalska", "call anna kowalska", "coal")],
        ["is kovalska in", "is in", "this cavalry in", "is the small boat in"],
    ]
    texts = ["call anna kowalska", "is Kowalska in"]
    assert mined_aliases(["Kowalska"], texts, n_best) == [Phrase("Kowalska", aliases=["kovalska", "koval ska"])]
    assert mined_aliases(["Kowalska"], texts, n_best, most=1) == [Phrase("Kowalska", aliases=["kovalska"])]
    assert mined_aliases(["Kowalska"], texts, n_best, times=2) == [Phrase("Kowalska", aliases=["kovalska"])]
    own = Phrase("Kowalska", weight=2.0, aliases=["kova"])
    assert mined_aliases([own], texts, n_best, times=3) == [own]
    with pytest.raises(ValueError, match="n_best should have a list for each of the 2 texts, got 1"):
        mined_aliases(["Kowalska"], texts, n_best[:1])


def shared_by_definition(ours, theirs):
    if not ours or not theirs:
        return 0
    if ours[-1] == theirs[-1]:
        return 1 + shared_by_definition(ours[:-1], theirs[:-1])
    return max(shared_by_definition(ours[:-1], theirs), shared_by_definition(ours, theirs[:-1]))


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_as_many_words_are_shared_as_can_be(ours, theirs):
    places = shared_words(ours, theirs)
    assert len(places) == shared_by_definition(tuple(ours), tuple(theirs))
    assert all(ours[i] == theirs[j] for i, j in places)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(places))


LONG = MOST_CHARACTERS
HOSTILE = [
    ("7" * LONG, "6" * LONG),
    ("w " * (LONG // 2), "x " * (LONG // 2)),
    (" ".join([*"bcdfghjklmn", "7" * 400]), " ".join([*"pqrstvwxzbc", "6" * 400])),
    ("bodegikumatopelisarunimofedabenusomuhu " * 12, "kamelinosuritebapogudinotafimerokesufu " * 12),
    ("the bodegiku matope lisaru nimo fede " * 13, "the kamelino sarite bapogu dino gigo " * 13),
    ("a " * (LONG // 2), "b a " * (LONG // 4)),
]


@pytest.mark.parametrize(("heard", "meant"), HOSTILE)
def test_no_correction_takes_long_to_compare(heard, meant, monkeypatch):
    steps = []

    def counted(ours, theirs):
        steps.append(sum(map(len, ours)) * sum(map(len, theirs)))
        return sounds.distances(ours, theirs)

    monkeypatch.setattr(replacements, "distances", counted)
    heard, meant = heard.strip()[:LONG], meant.strip()[:LONG]
    align(heard, meant)
    assert sum(steps) <= replacements._MOST_CELLS
    del steps[:]
    monkeypatch.setattr(sounds, "_phone_distances", lambda *given: steps.append(len(given[4]) * len(given[5])))
    sounds.unlikeness.cache_clear()
    sounds.unlikeness(heard, meant)
    assert max(steps) <= sounds.MOST_COMPARED**2
    sounds.unlikeness.cache_clear()
