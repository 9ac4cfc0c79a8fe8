"""Detect and shorten runaway transcripts, which repeat a phrase up to the limit of tokens. `evaluate` counts runaways.

`search.attention_step.loops` prevents language models from causing runaway transcripts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from ..search.attention_step.loops import SHORTEST

MANY_TIMES = 4  # repetitions that make a runaway
Token = TypeVar("Token", bound=Hashable)


def runs_away(words: Sequence[Hashable]) -> bool:
    """Return whether a transcript repeats a phrase at least four times in a row, with at least 8 words in total."""
    for period in range(1, len(words) // MANY_TIMES + 1):
        needed, run = max((MANY_TIMES - 1) * period, SHORTEST - period), 0
        for word, one_later in zip(words, words[period:]):
            run = run + 1 if word == one_later else 0
            if run >= needed:
                return True
    return False


def before_running_away(tokens: Sequence[Token]) -> Sequence[Token]:
    """Shorten a transcript whose end has a phrase at least four times in a row, with at least 8 tokens in total. Only the first
    occurrence of the phrase stays. Other transcripts are returned whole.
    """
    for period in range(1, len(tokens) // MANY_TIMES + 1):
        run = 0
        while run < len(tokens) - period and tokens[-1 - run] == tokens[-1 - run - period]:
            run += 1
        if run >= max((MANY_TIMES - 1) * period, SHORTEST - period):
            return tokens[: len(tokens) - run]
    return tokens


def without_runaways(
    transcripts: list[list[int]], score: Callable[[list[list[int]], list[int]], list[float]]
) -> list[list[int]]:
    """Return transcripts in token ids. A runaway is shortened if the model gives the shorter transcript a higher probability.

    This is needed because a runaway is so unlikely that any other transcript would look better in a comparison.

    Args:
        transcripts: a transcript for each row of a batch.
        score: function from transcripts and their rows to log-probabilities.
    """
    shorter = {row: list(before_running_away(tokens)) for row, tokens in enumerate(transcripts)}
    rows = [row for row, tokens in shorter.items() if len(tokens) < len(transcripts[row])]
    if not rows:
        return transcripts
    whole, first = (score([every[row] for row in rows], rows) for every in (transcripts, shorter))
    likelier = {row for row, before, after in zip(rows, whole, first) if after > before}
    return [shorter[row] if row in likelier else tokens for row, tokens in enumerate(transcripts)]
