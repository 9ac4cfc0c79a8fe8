"""Errors on entities: the definition by brute force over all alignments, and cases worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm.evaluation import entity_errors, word_errors

EDITS = ("substitution", "deletion", "insertion", "hit")


def alignments(said, heard, i=0, j=0):
    """All ways to go through both texts, as lists of (edit, word of the reference, word of the hypothesis)."""
    if i == len(said) and j == len(heard):
        yield []
    if i < len(said):
        yield from ([("deletion", i, j), *rest] for rest in alignments(said, heard, i + 1, j))
    if j < len(heard):
        yield from ([("insertion", i, j), *rest] for rest in alignments(said, heard, i, j + 1))
    if i < len(said) and j < len(heard):
        edit = "hit" if said[i] == heard[j] else "substitution"
        yield from ([(edit, i, j), *rest] for rest in alignments(said, heard, i + 1, j + 1))


def occurrences(words, phrases):
    """(start, end) of each, from left to right, the longest first."""
    found, start = [], 0
    while start < len(words):
        lengths = [len(phrase) for phrase in phrases if words[start : start + len(phrase)] == phrase]
        if lengths:
            found.append((start, start + max(lengths)))
        start += max(lengths, default=1)
    return found


def told(alignment, said, heard, phrases):
    """Counts of (substitutions, deletions, insertions, hits) of entities and of others, and of entities as a whole."""
    spans, heard_spans = occurrences(said, phrases), occurrences(heard, phrases)
    counts = {True: dict.fromkeys(EDITS, 0), False: dict.fromkeys(EDITS, 0)}
    for edit, i, _ in alignment:
        if edit == "insertion":
            within = any(start < i < end for start, end in spans)
        else:
            within = any(start <= i < end for start, end in spans)
        counts[within][edit] += 1
    hits = {i: j for edit, i, j in alignment if edit == "hit"}
    whole = 0
    for start, end in spans:
        if start in hits:
            first = hits[start]
            as_whole = all(hits.get(start + k) == first + k for k in range(end - start))
            whole += as_whole and (first, first + end - start) in heard_spans
    return tuple(counts[True].values()), tuple(counts[False].values()), whole


def preference(counts):
    inside, outside, whole = counts
    edits, entity_errors = sum(inside[:3]) + sum(outside[:3]), sum(inside[:3])
    return edits, entity_errors, -whole, inside[0] + outside[0], inside[0], inside[2]


def by_brute_force(said, heard, phrases):
    found = {told(alignment, said, heard, phrases) for alignment in alignments(said, heard)}
    least = min(map(preference, found))
    best = {counts for counts in found if preference(counts) == least}
    assert len(best) == 1  # the definition leaves nothing open
    return best.pop()


def numbers(counts):
    return counts.substitutions, counts.deletions, counts.insertions, counts.hits


WORDS = st.lists(st.sampled_from("abc"), max_size=5)
PHRASES = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), max_size=4)


@settings(max_examples=examples(300), deadline=None)
@given(WORDS, WORDS, PHRASES)
@example(["a", "a", "a"], ["a", "a", "a", "a"], [["a", "a"]])
@example(["c", "a", "b"], ["a", "b", "c"], [["a", "b"], ["c"]])
def test_equal_to_brute_force(said, heard, phrases):
    inside, outside, whole = by_brute_force(said, heard, phrases)
    found = entity_errors([" ".join(said)], [" ".join(heard)], [[" ".join(phrase) for phrase in phrases]])
    assert numbers(found.entities) == inside
    assert numbers(found.others) == outside
    matches = found.matches
    assert matches.true_positives == whole
    assert matches.true_positives + matches.false_negatives == len(occurrences(said, phrases))
    assert matches.true_positives + matches.false_positives == len(occurrences(heard, phrases))


LONG = st.lists(st.sampled_from("abcdef"), max_size=40).map(" ".join)
LISTS = st.lists(st.sampled_from(["a b c d", "b c", "c", "e f", "a"]))


@settings(deadline=None)
@given(st.lists(st.tuples(LONG, LONG, LISTS), max_size=4))
def test_parts_add_up(utterances):
    references, hypotheses, entities = [list(column) for column in zip(*utterances)] or [[], [], []]
    found, words = entity_errors(references, hypotheses, entities), word_errors(references, hypotheses)
    assert found.entities.errors + found.others.errors == words.errors
    assert found.entities.length + found.others.length == words.length
    assert found.wer == words.rate
    for inside, outside, both in zip(found.entities.utterances, found.others.utterances, words.utterances, strict=True):
        assert inside.errors + outside.errors == both.errors
    perfect = entity_errors(references, references, entities)
    assert perfect.entities.errors == perfect.others.errors == 0
    assert perfect.matches.false_positives == perfect.matches.false_negatives == 0
    # One at a time they are the same, and the order of the list and what is twice in it don't matter.
    for i, utterance in enumerate(found.matches.utterances):
        alone = entity_errors([references[i]], [hypotheses[i]], [*entities[i][::-1], *entities[i]])
        assert alone.matches.utterances == (utterance,)
        assert alone.entities.utterances == (found.entities.utterances[i],)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "phrases", "inside", "outside", "matches"),
    [
        # substituted, deleted, and inserted between two words of the entity
        ("call anna smith now", "call hannah smith now", ["anna smith"], (1, 0, 0, 1), (0, 0, 0, 2), (0, 0, 1)),
        ("call anna smith now", "call anna now", ["anna smith"], (0, 1, 0, 1), (0, 0, 0, 2), (0, 0, 1)),
        ("call anna smith now", "call anna b smith now", ["anna smith"], (0, 0, 1, 2), (0, 0, 0, 2), (0, 0, 1)),
        # inserted beside it
        ("call anna smith now", "call the anna smith right now", ["anna smith"], (0, 0, 0, 2), (0, 0, 2, 2), (1, 0, 0)),
        # an error elsewhere
        ("call anna smith now", "fall anna smith", ["anna smith"], (0, 0, 0, 2), (1, 1, 0, 0), (1, 0, 0)),
        # twice said, once recognised; once said, twice recognised
        ("anna and anna", "anna and hannah", ["anna"], (1, 0, 0, 1), (0, 0, 0, 1), (1, 0, 1)),
        ("call anna", "call anna anna", ["anna"], (0, 0, 0, 1), (0, 0, 1, 1), (1, 1, 0)),
        # a distractor that wasn't said: only precision knows
        ("call a man", "call anna", ["anna"], (0, 0, 0, 0), (1, 1, 0, 1), (0, 1, 0)),
        # the longest entity counts, in the hypothesis too
        ("to new york city", "to new york", ["new york", "new york city"], (0, 1, 0, 2), (0, 0, 0, 1), (0, 1, 1)),
        ("to new york now", "to new york city", ["new york", "new york city"], (0, 0, 0, 2), (1, 0, 0, 1), (0, 1, 1)),
        # overlapping: the first one from the left
        ("a b c", "a x c", ["a b", "b c"], (1, 0, 0, 1), (0, 0, 0, 1), (0, 0, 1)),
        # alignments with as many edits: the one in which the entity is recognised
        ("call anna", "anna call", ["anna"], (0, 0, 0, 1), (0, 1, 1, 0), (1, 0, 0)),
        # recognised, but not in its place
        ("please call anna", "anna call", ["anna"], (0, 1, 0, 0), (1, 0, 0, 1), (0, 1, 1)),
        # adjacent entities: what stands between them is in neither
        ("anna smith", "anna b smith", ["anna", "smith"], (0, 0, 0, 2), (0, 0, 1, 0), (2, 0, 0)),
        # within longer words there is none
        ("annas book", "annas book", ["anna"], (0, 0, 0, 0), (0, 0, 0, 2), (0, 0, 0)),
        ("anna", "", ["anna"], (0, 1, 0, 0), (0, 0, 0, 0), (0, 0, 1)),
        ("", "anna", ["anna"], (0, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0)),
    ],
)
def test_by_hand(reference, hypothesis, phrases, inside, outside, matches):
    found = entity_errors([reference], [hypothesis], phrases)
    assert numbers(found.entities) == inside
    assert numbers(found.others) == outside
    told = found.matches
    assert (told.true_positives, told.false_positives, told.false_negatives) == matches


def test_rates():
    references = ["call anna smith now", "play the news", "ring bob"]
    hypotheses = ["call anna smith", "play bob news", "ring rob"]
    found = entity_errors(references, hypotheses, [["anna smith"], ["bob"], ["bob"]])
    assert (found.entity_wer, found.other_wer, found.wer) == (1 / 3, 2 / 6, 3 / 9)
    assert (found.matches.precision, found.matches.recall, found.matches.f1) == (1 / 2, 1 / 2, 1 / 2)
    assert entity_errors(references, hypotheses, ["bob", "anna smith"]) == found


def test_what_cant_be_told_is_nan():
    found = entity_errors(["call me", ""], ["call me", ""], [[], []])
    assert found.other_wer == 0.0
    assert all(math.isnan(rate) for rate in (found.entity_wer, found.matches.precision, found.matches.recall, found.matches.f1))
    missed = entity_errors(["anna"], ["hannah"], ["anna"])
    assert (missed.entity_wer, missed.matches.recall, missed.matches.f1) == (1.0, 0.0, 0.0)
    assert math.isnan(missed.matches.precision) and math.isnan(missed.other_wer)
    false_alarm = entity_errors(["hannah"], ["anna"], ["anna"])
    assert (false_alarm.matches.precision, false_alarm.matches.f1) == (0.0, 0.0)
    assert math.isnan(false_alarm.matches.recall)
    assert entity_errors([], [], []).wer == 0.0


def test_normalised_alike():
    arguments = ["Call ANNA-Lena, now!"], ["call anna-lena now"], ["Anna-Lena"]
    assert entity_errors(*arguments).entities.length == 0
    found = entity_errors(*arguments, normalise="lower,no-punctuation")
    assert (found.entities.hits, found.others.errors, found.matches.true_positives) == (1, 0, 1)
    # Two ways to write one entity are one.
    twice = entity_errors(["zoë"], ["zoe\u0308"], ["zoë", "zoe\u0308"], normalise="nfc")
    assert twice.matches.f1 == 1.0


def test_long_texts():
    reference = [f"word{i % 700}" for i in range(2000)]
    hypothesis = [word for i, word in enumerate(reference) if i % 10]
    found = entity_errors([" ".join(reference)], [" ".join(hypothesis)], ["word9 word10 word11"])
    assert (found.entities.deletions, found.others.deletions, found.entities.length) == (3, 197, 9)


def test_entities_as_sets_and_generators():
    expected = entity_errors(["call anna", "no"], ["call anna", "no"], [["anna"], []])
    assert entity_errors(["call anna", "no"], ["call anna", "no"], ({name} for name in ("anna", "bob"))) == expected
    assert entity_errors(["call anna", "no"], ["call anna", "no"], {"anna"}) == expected


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ([["a"]], "got 2 references and 1 lists"),
        ("anna", "should be a list, got the text 'anna'"),
        ([["a"], "b"], "lists of phrases, got 'b' at 1"),
        ([["a"], None], "lists of phrases, got None at 1"),
        ([["a"], [("b", 2.0)]], r"should be a text, got \('b', 2.0\) in list 1"),
        ([["a"], ["b", " "]], "nothing is left of ' '"),
    ],
)
def test_bad_entities(entities, message):
    with pytest.raises(ValueError, match=message):
        entity_errors(["a", "b"], ["a", "b"], entities)


def test_bad_texts():
    with pytest.raises(ValueError, match="got 2 references and 1 hypotheses"):
        entity_errors(["a", "b"], ["a"], [])
    with pytest.raises(ValueError, match=r"nothing is left of '\?!'"):
        entity_errors(["a"], ["a"], ["?!"], normalise="no-punctuation")
