import json

import pytest

from hf_ngpulm import NGramFormatError
from hf_ngpulm.compat import Alphabet
from hf_ngpulm.formats.wav2vec2.alphabet import LabelTokenizer


@pytest.mark.parametrize(
    "given, labels, is_bpe",
    [
        ([" ", "a", "b"], [" ", "a", "b", ""], False),
        (["<pad>", "|", "a", "<unk>"], ["", " ", "a", "⁇"], False),
        (["[PAD]", "a", " ", "|"], ["", "a", " ", "|"], False),
        (["a", " ", "_"], ["a", " ", ""], False),
        (["a", " ", "_", ""], ["a", " ", "_", ""], False),
        (["<unk>", "▁bug", "s", "▁bunny"], ["▁⁇▁", "▁bug", "s", "▁bunny", ""], True),
        (["[UNK]", "bug", "##s", "[CLS]"], ["▁⁇▁", "▁bug", "s", "[CLS]", ""], True),
    ],
)
def test_notation(given, labels, is_bpe):
    alphabet = Alphabet.build_alphabet(given)
    assert alphabet.labels == labels and alphabet.is_bpe is is_bpe
    again = Alphabet.loads(alphabet.dumps())
    assert again.labels == labels and again.is_bpe is is_bpe
    assert json.loads(alphabet.dumps()) == {"labels": labels, "is_bpe": is_bpe}


@pytest.mark.parametrize("labels, problem", [(["a", "a", " "], "all different"), (["▁a", " "], "no place there")])
def test_labels_that_cannot_be(labels, problem):
    with pytest.raises(ValueError, match=problem):
        Alphabet.build_alphabet(labels)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"labels": ["a"], "is_bpe": false}', '{"labels": ["", 1], "is_bpe": false}', '{"labels": [""], "is_bpe": 1}'],
)
def test_damaged_files(text):
    with pytest.raises(NGramFormatError, match=r"alphabet\.json"):
        Alphabet.loads(text)


def test_as_a_tokenizer():
    letters = LabelTokenizer(Alphabet.build_alphabet(["a", "b", "ch", "c", " "]))
    assert letters(["abch", "xc"])["input_ids"] == [[0, 1, 2], [3]]
    assert letters.decode([4, 0, 4, 4, 2, 4]) == "a ch"
    pieces = LabelTokenizer(Alphabet.build_alphabet(["▁a", "b", "▁", "<unk>"]))
    assert pieces.decode([0, 1, 2, 1, 3, 1]) == "ab b ⁇ b"
