"""Grammars compiled to tokens against their networks, for random small grammars."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from transformers import Wav2Vec2CTCTokenizer
from words_in_pieces import pieces

from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar import keys
from hf_ngpulm.grammar.compiled import FORBIDDEN, CompiledGrammar
from hf_ngpulm.grammar.expressions import Choice, List, Number, Optional, Repeat, Sequence, Slot, Wildcard, Words
from hf_ngpulm.grammar.network import Network
from hf_ngpulm.text.spelling import speller_of

WORDS = ("a", "ab", "abb", "b", "ba")
COMMA = 6  # in `pieces`
LONGEST = 4  # words of a transcript


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    path = tmp_path_factory.mktemp("letters") / "vocab.json"
    path.write_text('{"<pad>": 0, "<unk>": 1, "|": 2, "a": 3, "b": 4}')
    return Wav2Vec2CTCTokenizer(str(path), bos_token=None, eos_token=None)


def words():
    return st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(lambda each: Words(" ".join(each)))


def with_weights(options):
    weights = st.lists(st.sampled_from([0.0, -0.5, -1.0]), min_size=len(options), max_size=len(options))
    return weights.map(lambda given: Choice(*options, weights=given))


def expressions(has_free):
    leaves = [words(), st.just(List("things"))] + ([st.just(Wildcard())] if has_free else [])
    return st.recursive(
        st.one_of(*leaves),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: Sequence(*parts)),
            st.lists(inner, min_size=1, max_size=3).flatmap(with_weights),
            inner.map(Optional),
            st.tuples(inner, st.sampled_from([(0, None), (1, None), (1, 2), (2, 2)])).map(lambda of: Repeat(of[0], *of[1])),
        ),
        max_leaves=5,
    )


THINGS = st.lists(st.sampled_from(["a", "b", "a b", "ab b", "ab", "b a a"]), min_size=1, max_size=4, unique=True)


def check(tokenizer, expression, things, texts=None):
    """Score all short texts; the largest weight of a path through the network is the definition."""
    network = Network({"do": expression}, {"things": [(thing, None) for thing in things]})
    try:
        compiled = CompiledGrammar(network, speller_of(tokenizer))
    except GrammarError as error:
        assert "no sentence" in str(error)
        return
    compiled.validate()
    if texts is None:
        counts = range(LONGEST + 1)
        texts = [" ".join(each) for count in counts for each in itertools.product(WORDS, repeat=count)]
    rows = tokenizer(texts, add_special_tokens=False).input_ids
    check_rows(compiled, rows)


def check_rows(compiled, rows):
    lengths = torch.tensor(list(map(len, rows)))
    ids = torch.zeros((len(rows), max(1, int(lengths.max()))), dtype=torch.int64)
    for row, tokens in zip(ids, rows):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    scores = compiled.score_sequences(ids, lengths).tolist()
    for row, score in zip(rows, scores):
        reading = compiled.reading(row)
        if reading is None:
            assert score < -FORBIDDEN / 2, row
        else:
            assert score == pytest.approx(reading.weight, abs=1e-3), row


@pytest.fixture(params=[0, 8], autouse=True)
def few(monkeypatch, request):
    """Lists are spelled once for several states: short ones too, or not."""
    monkeypatch.setattr(keys, "FEW", request.param)


@settings(max_examples=examples(60), deadline=None)
@given(expressions(False), THINGS)
def test_pieces(expression, things):
    check(pieces(), expression, things)


@settings(max_examples=examples(60), deadline=None)
@given(expressions(True), THINGS)
def test_pieces_with_free_words(expression, things):
    check(pieces(), expression, things)


@settings(max_examples=examples(40), deadline=None)
@given(expression=expressions(True), things=THINGS)
def test_letters_with_a_delimiter(letters, expression, things):
    check(letters, expression, things)


def beginnings():
    """Sentences without weights, of which some begin with free words: a wildcard is possible all along the others."""
    part = st.recursive(
        st.one_of(words(), st.just(List("things"))),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: Sequence(*parts)),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: Choice(*parts)),
            inner.map(Optional),
        ),
        max_leaves=5,
    )
    free = part.map(lambda after: Sequence(Wildcard(), after))
    return st.tuples(part, free, st.one_of(part, free)).map(lambda options: Choice(*options))


@settings(max_examples=examples(60), deadline=None)
@given(beginnings(), THINGS)
def test_pieces_after_free_beginnings(expression, things):
    check(pieces(), expression, things)


@settings(max_examples=examples(60), deadline=None)
@given(expression=beginnings(), things=THINGS)
def test_letters_after_free_beginnings(letters, expression, things):
    check(letters, expression, things)


@settings(max_examples=40, deadline=None)
@given(expressions(True), THINGS, st.lists(st.lists(st.integers(1, 6), max_size=7), min_size=1, max_size=30))
def test_any_tokens(expression, things, rows):
    """Also token sequences that the tokenizer wouldn't write."""
    network = Network({"do": expression}, {"things": [(thing, None) for thing in things]})
    compiled = CompiledGrammar(network, speller_of(pieces()))
    check_rows(compiled, [[], *(row for row in rows if row and row[0] != COMMA)])


def test_a_grammar_without_words_is_refused():
    with pytest.raises(GrammarError, match="only the empty sentence"):
        CompiledGrammar(Network({"do": Optional(Words(""))}, {}), speller_of(pieces()))


def test_slots_have_values_and_places():
    turn = Sequence("b", Slot("thing", List("things")), Slot("mode", Words(""), "loud"), Optional(Slot("n", Number(1, 12))))
    network = Network({"turn": turn}, {"things": [("a", 7), ("a b", "two")]})
    with pytest.warns(UserWarning, match="can't write [0-9]+ of the grammar's"):  # numbers
        compiled = CompiledGrammar(network, speller_of(pieces()))
    ids = pieces()("b a b", add_special_tokens=False).input_ids
    reading = compiled.reading(ids)
    assert reading.intent == "turn" and [slot[:2] for slot in reading.slots] == [("thing", "two"), ("mode", "loud")]
    assert reading.slots[0][2:] == (1, 3)
