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

from torch import Tensor

from ..search.attention_step import Roles
from ..search.attention_step.loops import LoopRules, loops

RULES = LoopRules(
    longest=24,
    times=3,
    shortest=8,  # people say "no no no no", too
    endless_times=6,
    endless_shortest=24,
    endless_others=1 / 8,  # beams would find a way around a stricter rule
)
MANY_TIMES = 4  # a transcript that says it so often has run away


class Loops(NamedTuple):
    """Which rows, bool `[B]`, end in a phrase that is said again and again, and in which that has gone on for long."""

    begun: Tensor
    endless: Tensor

    @classmethod
    def of(cls, input_ids: Tensor, roles: Roles, engine: str = "auto") -> Loops:
        """Look at the last tokens of rows `[B, L]`, as far as they are a transcript's."""
        return cls(*loops(input_ids, roles, RULES, engine))


def runs_away(words: Sequence[Hashable]) -> bool:
    """Return whether a transcript has a phrase anywhere that is said over and over: at least four times, 8 words or more in
    all."""
    for period in range(1, len(words) // MANY_TIMES + 1):
        needed, run = max((MANY_TIMES - 1) * period, RULES.shortest - period), 0
        for word, one_later in zip(words, words[period:]):
            run = run + 1 if word == one_later else 0
            if run >= needed:
                return True
    return False
