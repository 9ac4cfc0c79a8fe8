"""What clients may say, and what they are told when they say something else."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hf_ngpulm.serving import messages
from hf_ngpulm.serving.limits import Limits
from hf_ngpulm.serving.messages import ProtocolError

LIMITS = Limits(phrases=3, phrase_characters=10, phrase_bytes=24)
HELLO = {"type": "hello", "sample_rate": 16000}


def hello(**more):
    return messages.hello(messages.parse(json.dumps({**HELLO, **more})), LIMITS)


def test_hello():
    assert hello() == messages.Hello(16000, np.dtype("<i2"), {})
    said = hello(encoding="float32", phrases=["anna", ["bob", -2]], phrase_weight=0.5, lm_weight=1)
    assert said.encoding == np.dtype("<f4")
    assert said.settings == {"phrases": ["anna", ("bob", -2.0)], "phrase_weight": 0.5, "lm_weight": 1.0}
    assert hello(phrases=[]).settings == hello(phrases=None).settings == {}
    assert hello(phrase_weight=2).settings == {"phrase_weight": 2.0}  # for phrases that come later


def test_set_context():
    for phrases in (None, []):
        assert messages.set_context({"type": "set_context", "phrases": phrases}, LIMITS) == {"phrases": None}
    assert messages.set_context({"type": "set_context", "phrases": ["a"]}, LIMITS) == {"phrases": ["a"]}
    for message, reason in (({}, "should have phrases"), ({"phrases": [], "phrase_weight": 1}, "unknown in set_context")):
        with pytest.raises(ProtocolError, match=reason):
            messages.set_context({"type": "set_context", **message}, LIMITS)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '"hello"', '{"type": 1}', "{}", "[" * 100_000, '{"type": "hello", "sample_rate": NaN}', "9" * 100_000],
)
def test_text_that_is_no_message(text):
    with pytest.raises(ProtocolError, match="JSON object"):
        messages.parse(text)


@pytest.mark.parametrize(
    "more, message",
    [
        ({"type": "end"}, "first message"),
        ({"sample_rate": 3999}, "sample_rate"),
        ({"sample_rate": 200_000}, "sample_rate"),
        ({"sample_rate": 16000.0}, "sample_rate"),
        ({"sample_rate": True}, "sample_rate"),
        ({"sample_rate": None}, "sample_rate"),
        ({"encoding": "mp3"}, "encoding"),
        ({"encoding": ["int16"]}, "encoding"),
        ({"phrases": ["a"] * 4}, "at most 3"),
        ({"phrases": ["a" * 11]}, "at most 10"),
        ({"phrases": ["日本日本", ["日本日本", 1], "a"]}, "phrases of 25 bytes in all; at most 24"),
        ({"phrases": ["anna", "a\ud800"]}, r"half of a surrogate pair, which isn't text: 'a\\ud800'"),
        ({"phrases": "anna"}, "should be a list"),
        ({"phrases": 0}, "should be a list"),
        ({"phrases": {"anna": 1}}, "should be a list"),
        ({"phrases": ["anna", 1]}, "should be a text"),
        ({"phrases": [" "]}, "isn't empty"),
        ({"phrases": [["anna", 1, 2]]}, "should be a text"),
        ({"phrases": [["anna", "1"]]}, "weight should be a number"),
        ({"phrases": [["anna", 1e9]]}, "weight should be a number from -100 to 100"),
        ({"phrases": ["anna"], "phrase_weight": None}, "phrase_weight"),
        ({"lm_weight": -1}, "lm_weight should be a number from 0"),
        ({"lm_weight": True}, "lm_weight"),
        ({"lm_weight": 10**400}, "lm_weight should be a number from 0"),
        ({"sample_rate": 10**400}, "sample_rate"),
        ({"encoding": {}}, "encoding"),
        ({"phrases": [["anna", -(10**400)]]}, "weight should be a number"),
        ({"path": "/etc/passwd"}, "unknown in hello: path"),
    ],
)
def test_hello_that_is_refused(more, message):
    with pytest.raises(ProtocolError, match=message):
        hello(**more)


def test_samples():
    loud = np.array([-32768, 0, 16384], dtype="<i2")
    assert messages.samples(loud.tobytes(), loud.dtype).tolist() == [-1.0, 0.0, 0.5]
    values = np.array([0.25, -1.5], dtype="<f4")
    assert messages.samples(values.tobytes(), values.dtype).tolist() == values.tolist()
    for data, encoding, message in (
        (b"abc", "int16", "3 bytes"),
        (b"abcdef", "float32", "6 bytes"),
        (np.array([np.inf], dtype="<f4").tobytes(), "float32", "NaN or infinity"),
    ):
        with pytest.raises(ProtocolError, match=message):
            messages.samples(data, messages.ENCODINGS[encoding])


def test_limits_are_numbers_above_zero():
    for setting in ({"clients": 0}, {"clients": 1.5}, {"idle_seconds": float("inf")}):
        with pytest.raises(ValueError, match=f"{next(iter(setting))} should be a .*number above 0"):
            Limits(**setting)
