"""Units of ARPA files: which token id a unigram stands for, and what is said when it stands for none."""

import pytest

from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.formats.arpa import unit_words
from hf_ngpulm.formats.units import units_to_ids
from hf_ngpulm.text.vocabulary import Vocabulary

BPE = Vocabulary(8, pieces=("<unk>", "▁the", "▁", "s", "▁a", "ing", None, "é"), tokenizer_id="org/asr")
LETTERS = Vocabulary(6, pieces=("<pad>", "|", "A", "B", "C", "'"), tokenizer_id="org/ctc")
BARE = Vocabulary(1000)


@pytest.mark.parametrize(
    ("words", "vocabulary", "units", "ids"),
    [
        (["▁the", "s", "é", "▁"], BPE, "piece", [1, 3, 7, 2]),
        (["7", "0", "3"], BPE, "id", [7, 0, 3]),
        (["0", "999", "0017"], BARE, "id", [0, 999, 17]),
        ([chr(100), chr(107)], BPE, "nemo", [0, 7]),
        ([chr(1099), "d", "\x85"], BARE, "nemo", [999, 0, 33]),
        (["a", "b", "'", "|"], LETTERS, "char", [2, 3, 5, 1]),
        (["A", "B", " "], LETTERS, "char", [2, 3, 1]),
        (["c", "▁"], LETTERS, "char", [4, 1]),
        (["c", "<space>"], LETTERS, "char", [4, 1]),
        (["é", "_"], Vocabulary(3, pieces=("É", " ", "b")), "char", [0, 1]),
        ([], BARE, "id", []),
        ([], BPE, "piece", []),
    ],
)
def test_units(words, vocabulary, units, ids):
    assert units_to_ids(words, units, vocabulary) == (units, ids)
    assert units_to_ids(words, "auto", vocabulary) == (units, ids)


def test_pieces_come_first():
    digits = Vocabulary(3, pieces=("2", "0", "1"))
    assert units_to_ids(["0", "1"], "auto", digits) == ("piece", [1, 2])
    assert units_to_ids(["0", "1"], "id", digits) == ("id", [0, 1])


def test_nemo_around_the_surrogates():
    ids = [0, 55195, 57244, 99_999]
    words = [chr(100 + token_id) for token_id in ids]
    assert units_to_ids(words, "auto", Vocabulary(100_000)) == ("nemo", ids)
    encoded = unit_words(100_000, "nemo")
    assert [encoded[token_id] for token_id in ids] == words
    assert encoded.count(None) == 2048


@pytest.mark.parametrize("units", ["id", "nemo", "piece"])
def test_all_that_is_written_is_read(units):
    pieces = tuple(f"piece{i}" for i in range(1000))
    words = unit_words(1000, units, pieces)
    assert units_to_ids([word for word in words if word], "auto", Vocabulary(1000, pieces=pieces))[1] == list(range(1000))


@pytest.mark.parametrize(
    ("words", "units", "vocabulary", "parts"),
    [
        # ids out of range
        (["1", "2", "1000"], "id", BARE, ["1 of 3 unigrams, such as '1000'", "id units", "1000 ids"]),
        (["1", "2", "1000"], "auto", BARE, ["1 of 3 unigrams, such as '1000'", "read as id units"]),
        (["1", "-2", "+3", "1e2", "１", "9" * 5000], "id", BARE, ["5 of 6", "'-2', '+3', '1e2'"]),
        ([chr(1100)], "nemo", BARE, [repr(chr(1100)), "can't be read as nemo units"]),
        # another tokenizer
        (["▁the", "s", "▁dog"], "auto", BPE, ["1 of 3 unigrams, such as '▁dog'", "org/asr", "Is this the tokenizer"]),
        (["▁the", "s", "▁dog"], "auto", BARE, ["found units such as", "a vocabulary of 1000 ids", "pieces need tokenizer"]),
        (["a1"], "char", LETTERS, ["'a1'", "char units", "pieces such as 'B', 'C', \"'\""]),
        (["12", "x1"], "piece", BPE, ["2 of 2", "expected units of org/asr", "decimal ids", "NeMo's characters"]),
        # words
        (["play", "some", "music"], "auto", BPE, ["word-level language model", "'play', 'some', 'music'", "hf-ngpulm train"]),
        (["s", "▁the", "play"], "auto", BPE, ["1 of 3 unigrams, such as 'play'", "Is this the tokenizer"]),
        (["Ġplay", "Ġmusic"], "auto", BPE, ["found units such as 'Ġplay', 'Ġmusic' (2 of 2"]),
        (["s", "ing", "é", "play", "music"], "auto", BPE, ["word-level language model (units such as 'play', 'music')"]),
        (["play", "music", "a"], "auto", LETTERS, ["word-level language model"]),
        (["play", "music"], "id", BPE, ["word-level language model"]),
        # no tokenizer
        (["▁the"], "piece", BARE, ["piece units need the ASR model's tokenizer", "tokenizer=..."]),
        (["a"], "char", BARE, ["char units need the ASR model's tokenizer"]),
        # one id twice
        (["7", "007"], "id", BARE, ["'7' and '007' are both token id 7 when read as id units"]),
        (["a", "A"], "char", LETTERS, ["'a' and 'A' are both token id 2 when read as char units"]),
        (["▁", "|"], "char", LETTERS, ["'▁' and '|' are both token id 1"]),
        (["5", "6", "5"], "auto", BARE, ["'5' occurs more than once among the 1-grams"]),
        (["é", "é"], "auto", BPE, ["'é' occurs more than once among the 1-grams"]),
    ],
)
def test_mismatch_says_what_was_found_and_expected(words, units, vocabulary, parts):
    with pytest.raises(NGramFormatError) as caught:
        units_to_ids(words, units, vocabulary)
    for part in parts:
        assert part in str(caught.value)


def test_unknown_units():
    with pytest.raises(ValueError, match=r"units should be one of .* got 'bytes'"):
        units_to_ids(["a"], "bytes", BPE)
