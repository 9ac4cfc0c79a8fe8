"""Define the bonus of phrases in a transcript.

At each position, the longest phrase that begins there earns its bonus. Phrases at different positions all count, even if they
overlap. An unfinished phrase earns nothing. (Spellings that match only at the beginning of a transcript are counted
separately.)
"""

from __future__ import annotations

from collections.abc import Sequence

from .automaton import Spellings


def total_bonus(
    token_ids: Sequence[int], spellings: Spellings, begins_word: Sequence[bool], start_token: int | None = None
) -> float:
    """Return the sum of the bonuses in one transcript.

    Args:
        token_ids: the transcript.
        spellings, begins_word, start_token: as for `phrase_automaton`.
    """
    tokens = ([] if start_token is None else [start_token]) + list(token_ids)
    firsts = [sum(spellings.lengths[:n]) for n in range(len(spellings.lengths))]
    total = 0.0
    for place, initial in [(0, True), *((place, False) for place in range(len(tokens)))]:
        matches = []
        for n, first in enumerate(firsts):
            end = place + int(spellings.lengths[n])
            stands = tokens[place:end] == spellings.tokens[first : first + spellings.lengths[n]].tolist()
            ends = not spellings.bounded[n] or end == len(tokens) or begins_word[tokens[end]] if stands else False
            if ends and initial == spellings.initial[n]:
                matches.append((end, float(spellings.bonuses[n])))
        total += max(matches)[1] if matches else 0.0
    return total
