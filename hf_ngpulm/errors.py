"""Errors, all subclasses of `ValueError`. They report bad input, never a bug, and name the value and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NGramFormatError(ValueError):
    """A file or repo contains no valid n-gram language model, although one was expected."""


class TokenizerMismatchError(ValueError):
    """A language model is used with another tokenizer than its own, so the token ids have other meanings."""


class StreamError(ValueError):
    """A stream isn't open, or chunks can't be decoded.

    Args:
        problems: a description of the problem of each stream or its chunk, by stream id.
        partials: results of the step for the other streams. They have been decoded as if the failed streams were absent.
    """

    def __init__(self, problems: Mapping[int, str], partials: Mapping[int, Any] | None = None) -> None:
        super().__init__("; ".join(f"stream {sid}: {problem}" for sid, problem in problems.items()))
        self.problems = dict(problems)
        self.partials = dict(partials or {})


class InvalidLogitsError(ValueError):
    """Model outputs can't be decoded: they contain NaN or infinity, or have the wrong shape."""


class GrammarError(ValueError):
    """A grammar is invalid. The message names the place, the wrong text and the remedy."""
