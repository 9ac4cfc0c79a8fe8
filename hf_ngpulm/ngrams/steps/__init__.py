"""The heavy steps of estimating a language model, one file per engine with the same operations, and their data.

`reference`, in plain torch, is the definition and runs on any device. `cpu` is the native core's version. Their integers are
    identical, floats equal up to rounding. N-grams are sorted as numbers, several tokens in one int64.
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
    """The packing of n-grams of one order and vocabulary into integers.

    A token id is a digit, 1 more than the id, and 0 stands for "no token": an n-gram that the end of its sentence cuts
    short sorts before those that go on. A word of 63 bits holds as many digits as fit, the first token in the highest
    place; n-grams too long for one word take several, so the order of the tuples is the order of the n-grams.
    """

    vocab_size: int
    order: int

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

    @cached_property
    def digits(self) -> tuple[int, ...]:
        """Digits of each word."""
        per_word = 1
        while self.base ** (per_word + 1) < 2**63:
            per_word += 1
        full, rest = divmod(self.order, per_word)
        return (per_word,) * full + ((rest,) if rest else ())

    def place(self, position: int) -> tuple[int, int]:
        """Return the word that holds the token at a position of the n-gram, and the factor of its digit."""
        word = 0
        while position >= self.digits[word]:
            position -= self.digits[word]
            word += 1
        return word, self.base ** (self.digits[word] - 1 - position)


class Run(NamedTuple):
    """Distinct n-grams in ascending order: their words (int64 `[words, R]`) and counts (int64 `[R]`)."""

    words: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return self.counts.numel()


class TrieOrder(NamedTuple):
    """The n-grams of one order, sorted by (prefix, token): row of the prefix in the order below (0 for unigrams; int64),
    last token (int32), and occurrences (int64)."""

    prefixes: Tensor
    tokens: Tensor
    counts: Tensor


def steps_for(device: torch.device, engine: str = "auto") -> ModuleType:
    """Return the module of an engine: the native core's, or the one in torch, which runs on GPUs, too."""
    return importlib.import_module(f"{__name__}.{'cpu' if is_native(engine, device) else 'reference'}")
