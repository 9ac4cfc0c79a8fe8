"""Normalise texts before they are encoded."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

Normaliser = Callable[[str], str]


def normaliser(spec: str | Normaliser | Iterable[str | Normaliser] | None, tokenizer: Any = None) -> Normaliser:
    """Return a function that normalises a text.

    Args:
        spec: a name, several names (in a list, or separated by commas), a function, or None. The names are "lower", "upper",
            "no-punctuation" (apostrophes and hyphens inside words stay), "nfc", "nfkc", "whisper" and "whisper-en" (Whisper's
            normalisers for any language and for English). Runs of spaces always become one space.
        tokenizer: a tokenizer. If it has a table of British and American spellings, "whisper-en" uses this table.

    Raises:
        ValueError: a name is unknown.
    """
    if spec is None:
        return _single_blanks
    if isinstance(spec, str):
        steps: list[str | Normaliser] = [name.strip() for name in spec.split(",")]
    else:
        steps = [spec] if callable(spec) else list(spec)
    functions = [step if callable(step) else _named(step, tokenizer) for step in steps]

    def apply(text: str) -> str:
        for function in functions:
            text = function(text)
        return _single_blanks(text)

    return apply


def _single_blanks(text: str) -> str:
    return " ".join(text.split())


def _named(name: str, tokenizer: Any) -> Normaliser:
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name in ("whisper", "whisper-en"):
        # This module isn't public in transformers, but only it has the rules with which Whisper's error rates are computed.
        from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

        if name == "whisper":
            return BasicTextNormalizer()
        return EnglishTextNormalizer(getattr(tokenizer, "english_spelling_normalizer", None) or {})
    raise ValueError(f"normalise should be of {', '.join((*_SIMPLE, 'whisper', 'whisper-en'))}, or a function; got {name!r}")


def without_punctuation(text: str) -> str:
    """Replace punctuation and symbols in a text by spaces. Apostrophes and hyphens inside words stay."""
    kept = []
    for i, character in enumerate(text):
        if unicodedata.category(character)[0] in "PS":
            inside = 0 < i < len(text) - 1 and text[i - 1].isalnum() and text[i + 1].isalnum()
            kept.append(character if inside and _IN_WORDS.match(character) else " ")
        else:
            kept.append(character)
    return "".join(kept)


_IN_WORDS = re.compile("['’ʼ\\-‐‑]")
_SIMPLE: dict[str, Normaliser] = {
    "lower": str.lower,
    "upper": str.upper,
    "no-punctuation": without_punctuation,
    "nfc": lambda text: unicodedata.normalize("NFC", text),
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
}
