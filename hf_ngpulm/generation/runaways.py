"""Transcripts that run away: the same phrase over and over, up to the limit of tokens.

Decoders with attention fall into such loops by themselves now and then; a language model must not keep one going. Where a row's
text ends in a phrase that it has just said several times, the language model has no say in what follows: the model alone
decides, as it would without. The same figures tell `evaluate` which transcripts have run away.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ..search.attention_step import Roles, text_of

LONGEST = 32  # tokens of a phrase that is looked for
TIMES = 3  # so often, one right after the other, is once too often for people who speak
WINDOW = 128  # the last tokens, which may be others than text, that are looked at
SHORTEST = 8  # tokens that all of it has at least: "no no no no" is said


def in_loops(input_ids: Tensor, roles: Roles) -> Tensor:
    """Which rows, bool `[B]`, of tokens `[B, L]` end in a phrase that is repeated; what is no text is passed over."""
    if input_ids.shape[1] < SHORTEST:
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
    text, lengths, _ = text_of(input_ids[:, -WINDOW:], roles)
    device = text.device
    back = torch.arange(TIMES * LONGEST, device=device)  # the last token is first
    places = lengths[:, None] - 1 - back
    last = torch.where(places >= 0, text.gather(1, places.clamp(min=0)), -1 - back)
    periods = torch.arange(1, LONGEST + 1, device=device)[:, None]
    first = back[: (TIMES - 1) * LONGEST]
    same = last[:, None, : len(first)] == last[:, periods + first]
    needed = torch.maximum((TIMES - 1) * periods, SHORTEST - periods)  # tokens that equal those one period before
    return (same | (first >= needed)).all(2).any(1)


def repeats(units: Sequence[Hashable], longest: int = 16) -> bool:
    """Whether a transcript of words has a phrase anywhere that is said over and over, as `in_loops` counts."""
    for period in range(1, min(longest, len(units) // TIMES) + 1):
        needed = max((TIMES - 1) * period, SHORTEST - period)
        run = 0
        for one, next_one in zip(units, units[period:]):
            run = run + 1 if one == next_one else 0
            if run >= needed:
                return True
    return False
