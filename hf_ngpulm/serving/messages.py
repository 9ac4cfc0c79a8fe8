"""Check what clients send: JSON, audio, phrases and weights. Nothing of it ever names a file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..decoding.described import MOST_WEIGHT
from .limits import Limits
from .problems import Problem

LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000  # hertz


def parse(text: str) -> dict[str, Any]:
    """Return a message as a dictionary with a `type`."""
    try:
        message = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Problem("a message should be a JSON object") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise Problem("a message should be a JSON object with a type, such as session.update")
    return message


def samples(data: bytes) -> np.ndarray:
    """Return 16-bit PCM, one channel, little-endian, as float32 `[N]` from -1 to 1."""
    if len(data) % 2:
        raise Problem(f"audio of {len(data)} bytes isn't made of 2-byte samples")
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / 32768


def checked_phrases(phrases: Any, limits: Limits, param: str) -> list[str | tuple[str, float]]:
    """Return a list of phrases, each alone or with its weight, within the limits; `param` is the field that has them."""
    if not isinstance(phrases, list):
        raise Problem("phrases should be a list", param)
    if len(phrases) > limits.phrases:
        raise Problem(f"{len(phrases)} phrases; at most {limits.phrases} are taken", param)
    checked = [_phrase(phrase, limits, param) for phrase in phrases]
    size = sum(len(text.encode()) for text in texts_of(checked))
    if size > limits.phrase_bytes:
        raise Problem(f"phrases of {size} bytes in all; at most {limits.phrase_bytes} are taken", param)
    return checked


def texts_of(phrases: Any) -> list[str]:
    """Return phrases without their weights."""
    return [phrase if isinstance(phrase, str) else phrase[0] for phrase in phrases or ()]


def _phrase(phrase: Any, limits: Limits, param: str) -> str | tuple[str, float]:
    text, *own = phrase if isinstance(phrase, list) and len(phrase) == 2 else (phrase,)
    if not isinstance(text, str) or not text.strip():
        raise Problem("a phrase should be a text that isn't empty, or a pair of one and its weight", param)
    if len(text) > limits.phrase_characters:
        raise Problem(f"a phrase of {len(text)} characters; at most {limits.phrase_characters} are taken", param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Problem(f"a phrase with half of a surrogate pair, which isn't text: {text!a}", param) from None
    return (text, checked_number("a phrase's weight", own[0], -MOST_WEIGHT, MOST_WEIGHT, param)) if own else text


def checked_number(name: str, value: Any, least: float, most: float, param: str) -> float:
    """Return a number within bounds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # so NaN isn't taken, either; whole numbers may be larger than any float
        raise Problem(f"{name} should be a number from {least:g} to {most:g}", param)
    return float(value)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} isn't JSON")
