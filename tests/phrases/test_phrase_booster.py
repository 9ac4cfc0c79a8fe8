"""PhraseBooster: what phrases earn in transcripts of real tokenizers, and what it refuses."""

from __future__ import annotations

import json
import unicodedata
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Wav2Vec2CTCTokenizer

from hf_ngpulm import PhraseBooster, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled

TEXT = ["new york is not new jersey", "anna banana and ann", "york duke wear what we are", "news of the day"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    path = tmp_path_factory.mktemp("letters") / "vocab.json"
    path.write_text(
        json.dumps({piece: i for i, piece in enumerate(["<pad>", "<unk>", "|", "'", *"abcdefghijklmnopqrstuvwxyz"])})
    )
    return Wav2Vec2CTCTokenizer(str(path))


@pytest.fixture(scope="module")
def bytes_tokenizer():
    """Byte-level BPE, as Whisper and LLMs have it."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="<|end|>")


def total(booster, tokenizer, text):
    """What phrases earn in a transcript."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    return float(booster.score_sequences(torch.tensor([tokens], dtype=torch.int64)))


def length(tokenizer, text):
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


WORDS = ["new", "york", "news", "a", "an", "anna", "day", "to", "today"]


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), max_size=6),
    st.lists(st.lists(st.sampled_from(WORDS), max_size=8), min_size=1, max_size=4),
    st.sampled_from([0.5, 1.0, -2.0]),
)
@settings(max_examples=60, deadline=None)
def test_at_each_word_the_longest_phrase_counts(tokenizer, phrases, transcripts, weight):
    booster = PhraseBooster([" ".join(phrase) for phrase in phrases], tokenizer, weight=weight)
    for words in transcripts:
        expected = 0.0
        for place in range(len(words)):
            matches = [phrase for phrase in phrases if words[place : place + len(phrase)] == phrase]
            if matches:
                expected += weight * length(tokenizer, " ".join(max(matches, key=len)))
        assert total(booster, tokenizer, " ".join(words)) == pytest.approx(expected, abs=1e-4)


def test_weights(tokenizer):
    tokens = length(tokenizer, "new york")
    assert total(PhraseBooster(["new york"], tokenizer, weight=1.5), tokenizer, "to new york today") == 1.5 * tokens
    assert total(PhraseBooster([("new york", 3.0), "paris"], tokenizer), tokenizer, "new york") == 3.0 * tokens
    assert total(PhraseBooster({"new york": -1.0}, tokenizer), tokenizer, "new york") == -1.0 * tokens
    assert total(PhraseBooster([("new york", 2.0)], tokenizer, weight_per="phrase"), tokenizer, "new york") == 2.0
    grown = PhraseBooster(["new york"], tokenizer, growth=0.5, end_bonus=2.0)
    expected = tokens + 0.5 * np.log(np.arange(1, tokens + 1)).sum() + 2.0
    assert total(grown, tokenizer, "new york") == pytest.approx(expected, abs=1e-5)
    # of the same whole, more is paid for later tokens
    whole = PhraseBooster(["new york"], tokenizer, weight_per="phrase", growth=1.0, whole_words=False)
    scores = whole.score_tokens(torch.tensor([tokenizer("new york", add_special_tokens=False)["input_ids"]]))[0][0]
    assert bool((scores.diff() > 0).all()) and float(scores.sum()) == pytest.approx(1.0)


def test_a_phrase_listed_twice_counts_once(tokenizer):
    tokens = length(tokenizer, "new york")
    assert total(PhraseBooster(["new york", "new york"], tokenizer), tokenizer, "new york") == tokens
    twice = PhraseBooster([("new york", 2.0), ("new york", 0.5), "New York"], tokenizer)
    assert total(twice, tokenizer, "new york") == 2.0 * tokens
    assert twice.phrases == {"new york": 2.0, "New York": 1.0}


def test_ends_of_words(tokenizer):
    """As tokens "ann" is the beginning of "anna" here."""
    assert total(PhraseBooster(["ann"], tokenizer), tokenizer, "ann and anna") == length(tokenizer, "ann")
    anywhere = PhraseBooster(["ann"], tokenizer, whole_words=False)
    assert total(anywhere, tokenizer, "ann and anna") == 2 * length(tokenizer, "ann")


def test_letters_between_delimiters(letters):
    booster = PhraseBooster(["ana", "an ape"], letters)
    assert total(booster, letters, "ana") == 3
    assert total(booster, letters, "an ana ana") == 6
    assert total(booster, letters, "banana anas") == 0
    assert total(booster, letters, "an ape") == length(letters, "an ape") == 6
    assert total(PhraseBooster(["ana"], letters, whole_words=False), letters, "banana anas") == 9


def test_bytes_begin_words_with_a_blank_but_not_a_transcript(bytes_tokenizer):
    booster = PhraseBooster(["anna", "york"], bytes_tokenizer, weight_per="phrase")
    assert total(booster, bytes_tokenizer, " york and anna") == 2.0
    assert total(booster, bytes_tokenizer, "anna and york") == 2.0
    assert total(booster, bytes_tokenizer, " hannah annas newyork") == 0.0
    assert total(booster, bytes_tokenizer, " anna, york.") == 2.0  # punctuation ends a word


def test_scripts_without_blanks(bytes_tokenizer):
    booster = PhraseBooster(["東京"], bytes_tokenizer, weight_per="phrase")
    assert total(booster, bytes_tokenizer, "今日は東京都へ") == 1.0


def test_case(tokenizer):
    assert total(PhraseBooster(["NVIDIA"], tokenizer), tokenizer, "nvidia") == length(tokenizer, "nvidia")
    with pytest.warns(UserWarning, match="NVIDIA"):
        assert PhraseBooster(["NVIDIA"], tokenizer, case="keep").left_out
    assert total(PhraseBooster(["Anna"], tokenizer, case="any"), tokenizer, "anna") == length(tokenizer, "anna")


def test_every_case_of_a_tokenizer_that_has_all(bytes_tokenizer):
    booster = PhraseBooster(["Nvidia chips"], bytes_tokenizer, weight_per="phrase", case="any")
    for text in ("nvidia chips", "NVIDIA CHIPS", "Nvidia Chips", "Nvidia chips"):
        assert total(booster, bytes_tokenizer, f" the {text}") == pytest.approx(1.0)
    only = PhraseBooster(["Nvidia chips"], bytes_tokenizer, weight_per="phrase", whole_words=True)
    assert total(only, bytes_tokenizer, " the nvidia chips") == pytest.approx(0.0, abs=1e-6)


def test_several_tokenizations_earn_the_same(tokenizer):
    booster = PhraseBooster(["today"], tokenizer, tokenizations=8)
    own = tokenizer("today", add_special_tokens=False)["input_ids"]
    pieces = tokenizer.get_vocab()
    spelled = [pieces["▁"], *(pieces[letter] for letter in "today")] if "▁" in pieces else None
    candidates = [own, [pieces["▁to"], pieces["d"], pieces["ay"]] if "▁to" in pieces and "ay" in pieces else own]
    for tokens in candidates:
        assert float(booster.score_sequences(torch.tensor([tokens]))) == pytest.approx(len(own))
    assert booster.num_states > PhraseBooster(["today"], tokenizer).num_states
    if spelled is not None and len(spelled) > len(own) + 3:  # not among the eight with the fewest tokens
        assert float(booster.score_sequences(torch.tensor([spelled]))) == pytest.approx(0.0, abs=1e-5)


def test_unicode_forms_are_one(bytes_tokenizer):
    composed, decomposed = (unicodedata.normalize(form, "Zoë Núñez") for form in ("NFC", "NFD"))
    assert composed != decomposed
    booster = PhraseBooster([decomposed], bytes_tokenizer, weight_per="phrase")
    assert total(booster, bytes_tokenizer, f" {composed}") == pytest.approx(1.0)


def test_phrases_that_cannot_be_written_are_reported(tokenizer):
    with pytest.warns(UserWarning, match="2 of 3 phrases.*'Łódź'") as caught:
        booster = PhraseBooster(["Łódź", "東京", "anna"], tokenizer)
    assert [warning.filename for warning in caught] == [__file__]  # names the caller's line
    assert set(booster.left_out) == {"Łódź", "東京"}
    assert total(booster, tokenizer, "anna") == length(tokenizer, "anna")
    with pytest.raises(ValueError, match="Łódź"):
        PhraseBooster(["Łódź", "anna"], tokenizer, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not PhraseBooster(["ł anna"], tokenizer, normalise=lambda text: text.replace("ł ", "")).left_out


def test_no_phrases(tokenizer):
    booster = PhraseBooster([], tokenizer)
    booster.validate()
    assert total(booster, tokenizer, "new york") == 0.0


@pytest.mark.parametrize(
    "phrases, settings, error, message",
    [
        (["new york", "  "], {}, ValueError, "phrase 1 is empty"),
        (["new york", "a\ud800"], {}, ValueError, r"phrase 1 has half of a surrogate pair .*'a\\ud800'"),
        ([("x", float("nan"))], {}, ValueError, "finite.*nan"),
        ([("x", True)], {}, ValueError, "finite"),
        ("new york", {}, TypeError, "list of texts"),
        ([("a", "b")], {}, ValueError, "finite number .*, got 'b'"),
        ([3], {}, TypeError, "phrase 0 .* got 3"),
        (["x"], {"weight": float("inf")}, ValueError, "weight"),
        (["x"], {"weight_per": "letter"}, ValueError, "weight_per"),
        (["x"], {"case": "lower"}, ValueError, "case"),
        (["x"], {"growth": -1.0}, ValueError, "growth"),
        (["x"], {"end_bonus": -1.0}, ValueError, "end_bonus"),
        (["x"], {"tokenizations": 0}, ValueError, "tokenizations"),
        (["ab " * 501], {}, ValueError, "500 tokens"),
    ],
)
def test_what_it_refuses(tokenizer, phrases, settings, error, message):
    with pytest.raises(error, match=message):
        PhraseBooster(phrases, tokenizer, **settings)


def test_whole_words_need_words():
    digits = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"1": 0, "2": 1, "?": 2}, "?")), unk_token="?")
    with pytest.raises(ValueError, match="whole_words"):
        PhraseBooster(["1"], digits, whole_words=True)
    assert total(PhraseBooster(["1"], digits), digits, "1") == 1.0


def test_another_tokenizer(tokenizer, letters):
    booster = PhraseBooster(["anna"], letters)
    with pytest.raises(TokenizerMismatchError, match="the phrase booster"):
        booster.check_tokenizer(tokenizer)
    booster.check_tokenizer(letters)


def test_many_phrases(tokenizer):
    """As many as anyone may want; each is still itself."""
    names = [f"{first}{second}{third}" for first in "abcdefghij" for second in "aeiou" for third in WORDS]
    phrases = [f"{first} {second}" for first in names for second in names[:45]]
    booster = PhraseBooster(phrases, tokenizer, weight_per="phrase")
    booster.validate()
    assert total(booster, tokenizer, phrases[12345]) == pytest.approx(1.0)
    assert total(booster, tokenizer, "xavier zappa") == pytest.approx(0.0, abs=1e-5)


def test_the_same_phrases_have_the_same_fingerprint(tokenizer):
    first, again, other = (PhraseBooster([text], tokenizer) for text in ("anna", "ANNA", "ann"))
    assert first.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize("name", ["tokenizer", "letters", "bytes_tokenizer"])
@pytest.mark.parametrize(
    "phrases", [[f"w{number} ß日本" for number in range(200)], [f"abc{n}" for n in range(200)], ["anna"] * 200]
)
def test_a_tokenizer_is_called_once_per_pass(name, phrases, request, monkeypatch):
    """Not again for each phrase that it can't write: a thousand of them would take seconds."""
    tokenizer = request.getfixturevalue(name)
    PhraseBooster(["anna"], tokenizer)
    calls, call = [], type(tokenizer).__call__

    def counted(self, *arguments, **settings):
        calls.append(arguments)
        return call(self, *arguments, **settings)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        booster = PhraseBooster(phrases, tokenizer)
    # As they are, in small letters, in capitals. In each pass another call may find what is unknown (where a tokenizer doesn't
    # say), which letters are dropped (where none is unknown), and how a transcript begins (where blanks begin words).
    passes = 3 if booster.left_out else 1
    assert 1 <= len(calls) <= 3 * passes


def test_what_is_unknown_in_many_phrases_is_what_is_in_each(letters, tokenizer, bytes_tokenizer):
    texts = ["w123 x", "日本 a 日", "é", "anna", "a-b_c", "ab", "1 1"]
    for each in (letters, tokenizer, bytes_tokenizer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone = [PhraseBooster([text], each).left_out for text in texts]
            together = PhraseBooster(texts, each).left_out
        assert together == {name: what for found in alone for name, what in found.items()}
    assert alone == [{}] * len(texts)
    with pytest.warns(UserWarning, match="can't write"):
        assert PhraseBooster(texts, letters).left_out == {
            "w123 x": "1 2 3", "日本 a 日": "日 本", "é": "é", "a-b_c": "- _", "1 1": "1"
        }  # fmt: skip
