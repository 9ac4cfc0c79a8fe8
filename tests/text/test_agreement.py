"""A text that doesn't look like what the recogniser writes is noticed, and no other."""

import json

import pytest
from transformers import AutoTokenizer, Wav2Vec2CTCTokenizer

from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.text import mismatches

LOWER = ["set an alarm for seven", "what's the weather", "play some jazz"] * 5
UPPER = [text.upper() for text in LOWER]
WRITTEN = ["Set an alarm, Jim.", "What is the weather?", "Play some Jazz!"] * 5
DIGITS = ["set an alarm for 7", "call 911 now", "play track 3"] * 5


@pytest.fixture(scope="module")
def lower():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def upper(tmp_path_factory):
    path = tmp_path_factory.mktemp("letters") / "vocab.json"
    names = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]
    path.write_text(json.dumps({name: i for i, name in enumerate(names)}))
    return Wav2Vec2CTCTokenizer(str(path))


class Pieces:
    """What `mismatches` asks of a tokenizer."""

    all_special_tokens = ("<unk>",)

    def __init__(self, *pieces):
        self.pieces = pieces

    def get_vocab(self):
        return {piece: i for i, piece in enumerate(("<unk>", *self.pieces))}


CASED = Pieces("▁the", "▁The", "▁Jim", "▁alarm", "s", "S", ".", ",", "?", "7")
BYTES = Pieces("Ġ", "Ċ", "Ġthe", "the", "A")


@pytest.mark.parametrize("texts", [LOWER, ["grün"] * 3])
def test_small_letters_fit(lower, texts):
    assert mismatches(texts, lower) == []


def test_capitals_fit(upper):
    assert mismatches(UPPER, upper) == []


def test_case(lower, upper):
    assert "100% of the text's letters are capitals" in mismatches(UPPER, lower)[0] and "'lower'" in mismatches(UPPER, lower)[0]
    assert "letters are small" in mismatches(LOWER, upper)[0] and "'upper'" in mismatches(LOWER, upper)[0]


def test_punctuation(upper):
    found = mismatches([text.upper() for text in WRITTEN], upper)
    assert len(found) == 1 and "end in a punctuation mark" in found[0] and "'no-punctuation'" in found[0]


def test_digits(upper):
    found = mismatches([text.upper() for text in DIGITS], upper)
    assert len(found) == 1 and "have digits" in found[0]


def test_cased_models():
    assert mismatches(WRITTEN, CASED) == []
    assert "all in small letters" in mismatches(LOWER, CASED)[0]
    assert "all in capitals" in mismatches(UPPER, CASED)[0]


@pytest.mark.parametrize("texts", [LOWER, UPPER, WRITTEN, DIGITS, [], ["…"]])
def test_bytes_say_nothing(texts):
    assert mismatches(texts, BYTES) == []


def test_transcripts_say_more_than_pieces():
    assert mismatches(LOWER, LOWER) == mismatches(WRITTEN, WRITTEN) == mismatches(UPPER, UPPER) == []
    assert any("no punctuation" in line for line in mismatches(LOWER, WRITTEN))
    assert any("'no-punctuation'" in line for line in mismatches(WRITTEN, LOWER))
    assert any("'lower'" in line for line in mismatches(WRITTEN, LOWER))
    assert any("digits" in line for line in mismatches(DIGITS, LOWER))
    assert any("text has no digits, but 100%" in line for line in mismatches(LOWER, DIGITS))
    assert mismatches([*LOWER, DIGITS[0]], DIGITS) == []
