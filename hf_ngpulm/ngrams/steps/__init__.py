"""Define the data structures for the expensive steps of estimation. Each engine has a module with the same steps.

`reference`, in plain torch, is the definition and runs on any device. `cpu` uses the native core. Both return identical
integers, and floats that are equal up to rounding. N-grams are sorted as numbers; one int64 holds several tokens.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ...engines.choice import is_native
from ..table import NUM_SPECIAL


@dataclass(frozen=True)
class Packing:
    """Describe how to pack n-grams of one order and vocabulary into integers.

    The digit of a token is its id plus 1. The digit 0 means "no token", so an n-gram that the end of its sentence cuts short
    sorts before longer n-grams that begin with it. A word of 63 bits holds as many digits as fit, with the first token in the
    highest place. An n-gram that is too long for one word takes several words. Sorting the tuples of words sorts the n-grams.

    If `from_last`, n-grams are packed from their last token to their first, and the beginning of a sentence cuts n-grams short.
    """

    vocab_size: int
    order: int
    from_last: bool = False

    @property
    def base(self) -> int:
        return self.vocab_size + NUM_SPECIAL + 1

    @property
    def begin(self) -> int:
        """The digit of `<s>`."""
        return self.vocab_size + 1

    @property
    def end(self) -> int:
        """The digit of `</s>`."""
        return self.vocab_size + 2

    @property
    def unknown(self) -> int:
        """The digit of `<unk>`."""
        return self.vocab_size + 3

    @property
    def cut(self) -> int:
        """The digit after which n-grams are cut."""
        return self.begin if self.from_last else self.end

    @cached_property
    def digits(self) -> tuple[int, ...]:
        """The number of digits in each word (of 63 bits)."""
        per_word = 1
        while self.base ** (per_word + 1) < 2**63:
            per_word += 1
        full, rest = divmod(self.order, per_word)
        return (per_word,) * full + ((rest,) if rest else ())

    def place(self, position: int) -> tuple[int, int]:
        """Return the index of the word that holds the token at a position of an n-gram, and the factor of the token's digit."""
        word = 0
        while position >= self.digits[word]:
            position -= self.digits[word]
            word += 1
        return word, self.base ** (self.digits[word] - 1 - position)


class SortedRun(NamedTuple):
    """Distinct n-grams in ascending order: their words (int64 `[words, R]`) and counts (int64 `[R]`)."""

    words: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return self.counts.numel()


class TrieOrder(NamedTuple):
    """The n-grams of one order, sorted by (prefix, token)."""

    prefixes: Tensor  # int64 [N], row of each n-gram's prefix among the n-grams that are one token shorter; 0 for unigrams
    tokens: Tensor  # int32 [N], last token
    counts: Tensor  # int64 [N], number of occurrences


def steps_for(device: torch.device, engine: str = "auto") -> ModuleType:
    """Return the engine's module with the steps: `cpu`, or `reference`, which also runs on GPUs."""
    return importlib.import_module(f"{__name__}.{'cpu' if is_native(engine, device) else 'reference'}")
