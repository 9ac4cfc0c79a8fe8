"""Compute hashes of texts that don't depend on how a text is split into tokens.

The hash of a text is a polynomial in the codes of its characters, modulo 2^64. A text with one more token has the hash

    hash(text + token) = hash(text) * factor(token) + hash(token),    factor(token) = BASE ^ (number of its characters)

So a text followed by two tokens has the same hash as the text followed by a single token with the same characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .vocabulary import Vocabulary

BASE = 6364136223846793005
FIRST_TOKEN = 1 << 21  # above the codes of all characters: each token without characters has its own code
WORD = (1 << 64) - 1


def text_hashes(tokenizer: Any, classes: int) -> Tensor:
    """Return two numbers for each class in a recogniser's outputs: the factor and the hash with which a text's hash is updated
    when the class is appended. int64 `[2, C]`. `classes`: number of classes.
    """
    pieces = [*(Vocabulary.of(tokenizer).pieces or ())][:classes]
    for token in getattr(tokenizer, "all_special_ids", ()):
        pieces[token : token + 1] = [None] if token < len(pieces) else []
    return hashes_of_pieces([*pieces, *[None] * (classes - len(pieces))])


def hashes_of_pieces(pieces: Sequence[str | None]) -> Tensor:
    """Return for each piece the factor and the hash that `text_hashes` describes, int64 `[2, N]`. A token without characters
    has the piece None.
    """
    rows = np.zeros((2, len(pieces)), dtype=np.uint64)
    for token, piece in enumerate(pieces):
        factor, summand = 1, 0
        for code in map(ord, piece) if piece else (FIRST_TOKEN + token,):
            factor, summand = factor * BASE & WORD, summand * BASE + _mixed(code) & WORD
        rows[:, token] = factor, summand
    return torch.from_numpy(rows.view(np.int64))


def _mixed(code: int) -> int:
    """Return a number with its 64 bits mixed (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014)."""
    mixed = (code + 1) * 0x9E3779B97F4A7C15 & WORD
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & WORD
    return mixed ^ (mixed >> 31)
