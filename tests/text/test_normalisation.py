"""Texts are cleaned as asked."""

from types import SimpleNamespace

import pytest

from hf_ngpulm.text import normaliser


@pytest.mark.parametrize(
    ("spec", "text", "wanted"),
    [
        (None, "  A  b\tC ", "A b C"),
        ("lower", "Grüße AN Sie", "grüße an sie"),
        ("upper", "what's up", "WHAT'S UP"),
        ("no-punctuation", "Well, don't - 'stop'! (e-mail) 3.5 €", "Well don't stop e-mail 3 5"),
        ("nfc", "e\u0301", "é"),
        ("nfkc", "ﬁn", "fin"),
        ("lower,no-punctuation", "It's 5 O'Clock!", "it's 5 o'clock"),
        (["lower", lambda text: text.replace("a", "o")], "BANANA", "bonono"),
        (str.title, "a b", "A B"),
        ("whisper", "Hello, [noise] World!", "hello world"),
        ("whisper-en", "Mr. Smith won't pay twenty dollars", "mister smith will not pay $20"),
    ],
)
def test_normalisers(spec, text, wanted):
    assert normaliser(spec)(text) == wanted


def test_spellings_of_the_tokenizer():
    tokenizer = SimpleNamespace(english_spelling_normalizer={"colour": "color"})
    assert normaliser("whisper-en", tokenizer)("the colour") == "the color"


def test_unknown_names():
    with pytest.raises(ValueError, match=r"normalise should be of lower, upper.*whisper-en, or a function; got 'loud'"):
        normaliser("lower,loud")
