"""Check the JSON, audio, phrases and weights that clients send. The server never uses such data as a file name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..decoding.described import MOST_WEIGHT
from .limits import Limits
from .problems import Problem

LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000  # hertz


def parse(text: str) -> dict[str, Any]:
    """Parse a message, and return a dictionary with a `type`. Raises Problem if the text isn't a JSON object with a `type`."""
    try:
        message = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Problem("a message should be a JSON object") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise Problem("a message should be a JSON object with a type, such as session.update")
    return message


def samples(data: bytes) -> np.ndarray:
    """Convert 16-bit little-endian PCM with one channel to float32 `[N]` in the range -1 to 1. Raises Problem if the number of
    bytes is odd.
    """
    if len(data) % 2:
        raise Problem(f"audio should be 2-byte samples, got {len(data)} bytes")
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / 32768


def checked_phrases(phrases: Any, limits: Limits, param: str) -> list[str | tuple[str, float]]:
    """Check a client's phrases, and return the phrases. A phrase is a text, or a pair of text and weight.

    Args:
        param: name of the field that contains the phrases, for error messages.

    Raises:
        Problem: a phrase is invalid, or the phrases exceed a limit.
    """
    if not isinstance(phrases, list):
        raise Problem("phrases should be a list", param)
    if len(phrases) > limits.phrases:
        raise Problem(f"at most {limits.phrases} phrases are allowed, got {len(phrases)}", param)
    checked = [_phrase(phrase, limits, param) for phrase in phrases]
    size = sum(len(text.encode()) for text in texts_of(checked))
    if size > limits.phrase_bytes:
        raise Problem(f"at most {limits.phrase_bytes} bytes of phrases are allowed, got {size}", param)
    return checked


def with_learned(phrases: list[Any], learned: Iterable[str], limits: Limits) -> list[Any]:
    """Return a client's phrases, followed by as many phrases from corrections as `limits` allows."""
    every, own = list(phrases), set(texts_of(phrases))
    left = limits.phrase_bytes - sum(len(text.encode()) for text in own)
    for text in learned:
        size = len(text.encode())
        if text not in own and len(every) < limits.phrases and size <= left and len(text) <= limits.phrase_characters:
            every.append(text)
            left -= size
    return every


def texts_of(phrases: Any) -> list[str]:
    """Return the texts of phrases, without weights."""
    return [phrase if isinstance(phrase, str) else phrase[0] for phrase in phrases or ()]


def _phrase(phrase: Any, limits: Limits, param: str) -> str | tuple[str, float]:
    text, *own = phrase if isinstance(phrase, list) and len(phrase) == 2 else (phrase,)
    if not isinstance(text, str) or not text.strip():
        raise Problem("a phrase should be a text that isn't empty, or a pair of such a text and its weight", param)
    if len(text) > limits.phrase_characters:
        raise Problem(f"a phrase may have at most {limits.phrase_characters} characters, got {len(text)}", param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Problem(f"a phrase should be valid Unicode, got {text!a}", param) from None
    return (text, checked_number("a phrase's weight", own[0], -MOST_WEIGHT, MOST_WEIGHT, param)) if own else text


def checked_number(name: str, value: Any, least: float, most: float, param: str) -> float:
    """Return a number as a float. Raises Problem if the value isn't a number from `least` to `most`. `name`: description of the
    number, for the message. `param`: the client's field.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # this refuses NaN, too, and integers that no float can hold
        raise Problem(f"{name} should be a number from {least:g} to {most:g}", param)
    return float(value)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} isn't JSON")
