"""Named errors. All are ``ValueError``: bad input, never a bug; each message names the value and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NGramFormatError(ValueError):
    """A file or repo that should hold an n-gram language model doesn't, or holds a broken one."""


class TokenizerMismatchError(ValueError):
    """A language model is used with a tokenizer whose token ids mean something else."""


class StreamError(ValueError):
    """A stream that isn't open, or chunks that can't be decoded.

    Args:
        problems: by stream, what is wrong with it or its chunk.
        partials: of a step, what the other streams have said; they have been decoded as if these had not been there.
    """

    def __init__(self, problems: Mapping[int, str], partials: Mapping[int, Any] | None = None) -> None:
        super().__init__("; ".join(f"stream {sid}: {problem}" for sid, problem in problems.items()))
        self.problems = dict(problems)
        self.partials = dict(partials or {})


class InvalidLogitsError(ValueError):
    """Model outputs that can't be decoded: NaN, infinity, or the wrong shape."""
