"""N-grams as numbers: several tokens in one int64, so that sorting numbers sorts n-grams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from .table import NUM_SPECIAL


@dataclass(frozen=True)
class Packing:
    """How the n-grams of one order over one vocabulary are packed.

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
        """Return word that holds the token at a position of the n-gram, and what its digit is multiplied by."""
        word = 0
        while position >= self.digits[word]:
            position -= self.digits[word]
            word += 1
        return word, self.base ** (self.digits[word] - 1 - position)


class Run(NamedTuple):
    """Distinct n-grams in ascending order: their words (int64 `[words, R]`) and how often each occurs (int64 `[R]`)."""

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
