"""What clients may say, and what they are told when they say something else."""

from __future__ import annotations

import numpy as np
import pytest

from hf_ngpulm.serving import messages
from hf_ngpulm.serving.limits import Limits
from hf_ngpulm.serving.problems import Problem
from hf_ngpulm.serving.requests import Voices

LIMITS = Limits(phrases=3, phrase_characters=10, phrase_bytes=24)


def settings(**fields):
    """What a client asks for of the search."""
    return Voices(lms={"default": None}).settings(fields, LIMITS, None)


def test_phrases_and_weights():
    assert settings() == settings(keywords=[]) == settings(keywords=None) == {}
    asked = {"keywords": ["anna", ["bob", -2]], "phrase_weight": 0.5, "lm_weight": 1}
    assert settings(**asked) == {"phrases": ["anna", ("bob", -2.0)], "phrase_weight": 0.5, "lm_weight": 1.0}
    assert settings(phrase_weight=2) == {"phrase_weight": 2.0}  # for phrases that come later


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '"hello"',
        '{"type": 1}',
        "{}",
        "[" * 100_000,
        '{"type": "session.update", "session": NaN}',
        "9" * 100_000,
    ],
)
def test_text_that_is_no_message(text):
    with pytest.raises(Problem, match="JSON object"):
        messages.parse(text)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"keywords": ["a"] * 4}, "at most 3"),
        ({"keywords": ["a" * 11]}, "at most 10"),
        ({"keywords": ["日本日本", ["日本日本", 1], "a"]}, "at most 24 bytes of phrases are allowed, got 25"),
        ({"keywords": ["anna", "a\ud800"]}, r"should be valid Unicode, got 'a\\ud800'"),
        ({"keywords": 0}, "should be a text or a list"),
        ({"keywords": {"anna": 1}}, "should be a text or a list"),
        ({"keywords": ["anna", 1]}, "should be a text"),
        ({"keywords": [" "]}, "isn't empty"),
        ({"keywords": [["anna", 1, 2]]}, "should be a text"),
        ({"keywords": [["anna", "1"]]}, "weight should be a number"),
        ({"keywords": [["anna", 1e9]]}, "weight should be a number from -100 to 100"),
        ({"keywords": [["anna", -(10**400)]]}, "weight should be a number"),
        ({"keywords": ["anna"], "phrase_weight": []}, "phrase_weight"),
        ({"lm_weight": -1}, "lm_weight should be a number from 0"),
        ({"lm_weight": True}, "lm_weight"),
        ({"lm_weight": 10**400}, "lm_weight should be a number from 0"),
    ],
)
def test_phrases_and_weights_that_are_refused(fields, message):
    with pytest.raises(Problem, match=message):
        settings(**fields)


def test_samples():
    loud = np.array([-32768, 0, 16384], dtype="<i2")
    assert messages.samples(loud.tobytes()).tolist() == [-1.0, 0.0, 0.5]
    with pytest.raises(Problem, match="3 bytes"):
        messages.samples(b"abc")


def test_limits_are_numbers_above_zero():
    for setting in ({"clients": 0}, {"clients": 1.5}, {"idle_seconds": float("inf")}):
        with pytest.raises(ValueError, match=f"{next(iter(setting))} should be a .*number above 0"):
            Limits(**setting)
