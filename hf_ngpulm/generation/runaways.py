"""Transcripts that ran away: the same phrase over and over, up to the limit of tokens; `evaluate` counts them.

What keeps a language model from it is in `search.attention_step.loops`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..search.attention_step.loops import SHORTEST

MANY_TIMES = 4  # a transcript that says it so often has run away


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
