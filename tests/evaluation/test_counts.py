"""Word and character errors: jiwer's figures, and cases worked by hand."""

from __future__ import annotations

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm.evaluation import character_errors, word_errors

TEXTS = st.text("ab é", max_size=12).map(lambda text: " ".join(text.split()))


@settings(deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_equal_to_jiwer(pairs):
    references, hypotheses = [list(texts) for texts in zip(*pairs)] or [[], []]
    for ours, process, rate in (
        (word_errors, jiwer.process_words, jiwer.wer),
        (character_errors, jiwer.process_characters, jiwer.cer),
    ):
        found, expected = ours(references, hypotheses), process(references, hypotheses)
        for name in ("substitutions", "deletions", "insertions", "hits"):
            assert getattr(found, name) == getattr(expected, name)
        assert found.rate == pytest.approx(rate(references, hypotheses))
        for counts, reference, hypothesis in zip(found.utterances, references, hypotheses, strict=True):
            assert counts.rate == pytest.approx(rate(reference, hypothesis))


@pytest.mark.parametrize(
    ("reference", "hypothesis", "counts", "rate"),
    [
        ("please call anna smith now", "call hannah smith right now", (1, 1, 1, 3), 3 / 5),
        ("call anna", "", (0, 2, 0, 0), 1.0),
        ("", "call anna", (0, 0, 2, 0), 2.0),
        ("", "", (0, 0, 0, 0), 0.0),
        (" call\t anna\n", "call\u00a0anna", (0, 0, 0, 2), 0.0),
        ("Anna", "anna", (1, 0, 0, 0), 1.0),
    ],
)
def test_words_by_hand(reference, hypothesis, counts, rate):
    found = word_errors([reference], [hypothesis])
    assert (found.substitutions, found.deletions, found.insertions, found.hits) == counts
    assert found.rate == rate
    assert (found.errors, found.length) == (sum(counts[:3]), len(reference.split()))


def test_characters_by_hand():
    found = character_errors(["a  cab", "été"], ["a cub", "ete"])
    assert (found.substitutions, found.deletions, found.insertions, found.hits) == (3, 0, 0, 5)
    assert found.rate == 3 / 8
    assert [counts.length for counts in found.utterances] == [5, 3]


def test_normalised():
    assert word_errors(["It's 5 O'Clock!"], ["it's 5 o'clock"]).errors == 2
    assert word_errors(["It's 5 O'Clock!"], ["it's 5 o'clock"], "lower,no-punctuation").errors == 0
    assert character_errors(["e\u0301"], ["é"]).errors == 2
    assert character_errors(["e\u0301"], ["é"], "nfc").errors == 0
    assert word_errors(["twenty dollars"], ["$20"], ["whisper-en"]).errors == 0


@pytest.mark.parametrize("count", [word_errors, character_errors])
def test_bad_input(count):
    with pytest.raises(ValueError, match="got 2 references and 1 hypotheses"):
        count(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="references should be a list of texts, got the text 'a b'"):
        count("a b", ["a b"])
    with pytest.raises(ValueError, match="hypotheses should be texts, got None at 1; give ''"):
        count(["a", "b"], ["a", None])
    with pytest.raises(ValueError, match="'loud'"):
        count(["a"], ["a"], "loud")
