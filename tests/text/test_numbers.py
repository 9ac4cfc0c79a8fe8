"""English numbers in words and in digits."""

import sys
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("text_to_num")
pytest.importorskip("num2words")

from hf_ngpulm.text.numbers import in_digits, spelled, to_digits, to_words


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a twelve ounce latte", "a 12 ounce latte"),
        ("a twelve-ounce latte", "a 12-ounce latte"),
        ("one of Twenty-Five, and SIX", "one of 25, and SIX"),
        ("two hundred and five and six", "205 and six"),
        ("it was nineteen eighty-four", "it was 1984"),
        ("the second of the twenty first", "the second of the 21st"),
        ("five point two liters", "5.2 liters"),
        ("twenty thousand leagues", "20,000 leagues"),
        # a time, a telephone number, and what is read better in words
        ("at seven thirty", "at seven thirty"),
        ("call fifty ninety fifty", "call fifty ninety fifty"),
        ("a hundred and three million", "a hundred and three million"),
        ("twenty oh five", "twenty oh five"),
        ("nineteen 84", "nineteen 84"),
    ],
)
def test_to_digits_from_ten_on(text, wanted):
    assert to_digits(text, 10) == wanted
    assert to_digits(wanted, 10) == wanted


def test_least_numbers_and_texts_without_marks():
    assert to_digits("eight or nine, and no one", 9) == "eight or 9, and no one"
    assert to_digits("one or two", 0) == "one or 2"
    assert to_digits("twenty thousand men in five point two", 2, plain=True) == "20000 men in five point two"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a 12-ounce latte", "a twelve-ounce latte"),
        ("in 1984, and 2015", "in nineteen eighty-four, and twenty fifteen"),
        ("1,000 men on the 21st", "one thousand men on the twenty-first"),
        ("$5 or 3.14%", "five dollars or three point one four percent"),
        ("007", "zero zero seven"),
        # left: times, dates, names, telephone numbers
        ("7:30 B12 555-1234 1980s 1/2 1.2.3", "7:30 B12 555-1234 1980s 1/2 1.2.3"),
    ],
)
def test_to_words(text, wanted):
    assert to_words(text, inf) == wanted


def test_only_whole_numbers_below_a_bound_become_words():
    assert to_words("8 of 12, $5, 2.5 and 3%", 10) == "eight of 12, $5, 2.5 and 3%"


def test_what_texts_have():
    assert list(in_digits("12 of 1,000 at 7:30, 2.5")) == [12, 1000]
    assert [(each.digits, each.alone) for each in spelled("twelve, and six seven")] == [
        ("12", True),
        ("6", False),
        ("7", False),
    ]


@given(st.integers(0, 999_999), st.integers(2, 100_000))
def test_there_and_back(number, least):
    text = f"about {number} of them"
    words = to_words(text, inf)
    assert not any(map(str.isdecimal, words))
    if 1100 <= number < 10_000 and " hundred" not in words and " thousand" not in words:
        assert to_digits(words, 0) == text  # a year
    elif number >= least:
        assert to_digits(words, least).replace(",", "") == text
    else:
        assert to_digits(words, least) == words


def test_what_is_missing_is_named(monkeypatch):
    for module, library, call in (("text_to_num", "text2num", to_digits), ("num2words", "num2words", to_words)):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"{library} is needed .*: pip install 'hf-ngpulm\[text\]'"):
            call("12 or thirteen", 20)
