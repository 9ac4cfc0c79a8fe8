"""Transcripts that run away: the same phrase over and over, up to the limit of tokens.

Decoders with attention fall into such loops by themselves now and then; a language model must neither keep one going nor lead
into one that doesn't end. Where a row of a search with a language model ends in a phrase that it has just said several times,
the language model has no say in what follows: the model alone decides, as it would without. Some models have no way out of a
loop once they are in it: where it has gone on for long, nothing is left but the transcript's end, at the model's own price.
`evaluate` counts such transcripts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..search.attention_step import START, Roles

LONGEST = 24  # tokens of a phrase that is looked for
TIMES, SHORTEST = 3, 8  # how often it is said, and how many tokens that are at least: people say "no no no no", too
ENDLESS_TIMES, ENDLESS = 6, 24  # the same of a loop that is ended
ENDLESS_OTHERS = 1 / 8  # of its tokens may be others: beams would find a way around the rule
MANY_TIMES = 4  # a transcript that says it so often has run away
WINDOW = ENDLESS_TIMES * LONGEST  # the last tokens, which are looked at


class Loops(NamedTuple):
    """Which rows, bool `[B]`, end in a phrase that is said again and again, and in which that has gone on for long."""

    begun: Tensor
    endless: Tensor

    @classmethod
    def of(cls, input_ids: Tensor, roles: Roles) -> Loops:
        """Look at the last tokens of rows `[B, L]`, as far as they are a transcript's."""
        ids = input_ids[:, -WINDOW:].flip(1)
        batch_size, length = ids.shape
        if length < SHORTEST:
            none = torch.zeros(batch_size, dtype=torch.bool, device=ids.device)
            return cls(none, none)
        place = torch.arange(WINDOW, device=ids.device)  # from the last token backwards
        inside = (ids >= 0) & (ids < roles.roles.numel())
        outside = ~inside | ((roles.roles[torch.where(inside, ids, 0)] & START) != 0)
        before = outside.to(torch.int8).cummax(1).values.to(torch.bool)  # the transcript's beginning, and all before it
        last = (-1 - place).repeat(batch_size, 1)  # what is no token equals no other
        last[:, :length] = torch.where(before, last[:, :length], ids)
        periods = torch.arange(1, min(LONGEST, length // TIMES) + 1, device=ids.device)[:, None]

        def said(times: int, shortest: int, allowed: float) -> Tensor:
            compared = place[: (times - 1) * LONGEST]
            same = last[:, None, : len(compared)] == last[:, (periods + compared).clamp(max=WINDOW - 1)]
            needed = torch.maximum((times - 1) * periods, shortest - periods)
            others = (~same & (compared < needed)).sum(2, keepdim=True)
            return (others <= allowed * needed).any(1)[:, 0]

        begun = said(TIMES, SHORTEST, 0.0)
        if ids.device.type == "cpu" and not bool(begun.any()):  # asking a GPU would take longer
            return cls(begun, torch.zeros_like(begun))
        return cls(begun, begun & said(ENDLESS_TIMES, ENDLESS, ENDLESS_OTHERS))


def runs_away(words: Sequence[Hashable]) -> bool:
    """Return whether a transcript has a phrase anywhere that is said over and over: at least four times, 8 words or more in
    all."""
    for period in range(1, len(words) // MANY_TIMES + 1):
        needed, run = max((MANY_TIMES - 1) * period, SHORTEST - period), 0
        for word, one_later in zip(words, words[period:]):
            run = run + 1 if word == one_later else 0
            if run >= needed:
                return True
    return False
