"""Check what clients say. Nothing of it ever names a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from .limits import Limits

ENCODINGS: dict[str, np.dtype] = {"float32": np.dtype("<f4"), "int16": np.dtype("<i2")}
MOST_WEIGHT = 100.0
LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000  # hertz


class ProtocolError(ValueError):
    """A message that the server doesn't take; the client is told why, and closed."""


@dataclass(frozen=True)
class Hello:
    """A client's first message: its audio, settings for `StreamingRecognizer.open`, and the name of a language model."""

    sample_rate: int
    encoding: np.dtype
    settings: dict[str, Any]
    lm: Any = None


def parse(text: str) -> dict[str, Any]:
    """Return a message as a dictionary with a `type`."""
    try:
        message = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ProtocolError("a text message should be a JSON object") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("a text message should be a JSON object with a type: hello, set_context or end")
    return message


def hello(message: dict[str, Any], limits: Limits) -> Hello:
    if message["type"] != "hello":
        raise ProtocolError("the first message should be of the type hello")
    _only(message, {"type", "sample_rate", "encoding", "phrases", "phrase_weight", "lm", "lm_weight"})
    rate, encoding = message.get("sample_rate"), message.get("encoding", "int16")
    if isinstance(rate, bool) or not isinstance(rate, int) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise ProtocolError(f"sample_rate should be a whole number from {LOWEST_RATE} to {HIGHEST_RATE}")
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise ProtocolError("encoding should be int16 or float32")
    settings = context(message, limits)
    if "lm_weight" in message:
        settings["lm_weight"] = weight("lm_weight", message["lm_weight"], 0.0)
    return Hello(rate, ENCODINGS[encoding], settings, message.get("lm"))


def set_context(message: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Return settings for `StreamingRecognizer.set_context`."""
    _only(message, {"type", "phrases"})
    if "phrases" not in message:
        raise ProtocolError("set_context should have phrases, null for none")
    return {"phrases": None, **context(message, limits)}


def context(message: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Return phrases and their weight, as far as they are there."""
    settings: dict[str, Any] = {}
    if message.get("phrases") not in (None, []):
        settings["phrases"] = _phrases(message["phrases"], limits)
    if "phrase_weight" in message:
        settings["phrase_weight"] = weight("phrase_weight", message["phrase_weight"], -MOST_WEIGHT)
    return settings


def samples(data: bytes, encoding: np.dtype) -> np.ndarray:
    """Return PCM, one channel, little-endian, as float32 `[N]` from -1 to 1."""
    if len(data) % encoding.itemsize:
        raise ProtocolError(f"audio of {len(data)} bytes isn't made of {encoding.itemsize}-byte samples")
    found = np.frombuffer(data, dtype=encoding)
    if encoding.kind == "i":
        return found.astype(np.float32) / 32768
    if not np.isfinite(found).all():
        raise ProtocolError("the audio holds NaN or infinity")
    return found.astype(np.float32)


def _phrases(given: Any, limits: Limits) -> list[str | tuple[str, float]]:
    if not isinstance(given, list):
        raise ProtocolError("phrases should be a list")
    if len(given) > limits.phrases:
        raise ProtocolError(f"{len(given)} phrases; at most {limits.phrases} are taken")
    found = [_phrase(item, limits) for item in given]
    size = sum(len((item if isinstance(item, str) else item[0]).encode()) for item in found)
    if size > limits.phrase_bytes:
        raise ProtocolError(f"phrases of {size} bytes in all; at most {limits.phrase_bytes} are taken")
    return found


def _phrase(item: Any, limits: Limits) -> str | tuple[str, float]:
    text, *own = item if isinstance(item, list) and len(item) == 2 else (item,)
    if not isinstance(text, str) or not text.strip():
        raise ProtocolError("a phrase should be a text that isn't empty, or a pair of one and its weight")
    if len(text) > limits.phrase_characters:
        raise ProtocolError(f"a phrase of {len(text)} characters; at most {limits.phrase_characters} are taken")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProtocolError(f"a phrase with half of a surrogate pair, which isn't text: {text!a}") from None
    return (text, weight("a phrase's weight", own[0], -MOST_WEIGHT)) if own else text


def weight(name: str, value: Any, least: float, most: float = MOST_WEIGHT) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # so NaN isn't taken, either; whole numbers may be larger than any float
        raise ProtocolError(f"{name} should be a number from {least:g} to {most:g}")
    return float(value)


def _only(message: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(message.keys() - known)
    if unknown:
        raise ProtocolError(f"unknown in {message['type']}: {unknown[0][:40]}")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} isn't JSON")
