"""Following phrases through an automaton, token by token, as a compiled loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..automaton.cpu import compiled, find_arc
from ..boosting.spelling import Spelling


def follow(
    automaton: tuple[np.ndarray, ...], root: int, start: int, spellings: Sequence[Spelling], backs_off: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The arcs that phrases take.

    A phrase is followed from the empty context, and one that may begin a transcript otherwise than in its midst (without the
    delimiter before it) from the start as well. An arc that goes on with an n-gram is met again in longer contexts, by the
    same token: those are left to whoever asks. One that is reached by backing off, or from the empty context behind other
    tokens, counts only where it is taken itself.

    Args:
        automaton: its arc offsets, tokens and targets, and its backoff states.
        root, start: its states without context, and at the beginning of a transcript.
        backs_off: whether phrases go on by backing off; they end otherwise.

    Returns:
        int64 `[N]` arcs, with the number of the spelling and (bool) whether it goes on with an n-gram; and for each spelling
        how many of its tokens do.
    """
    tokens = np.array([token for spelling in spellings for token in spelling.tokens], dtype=np.int64)
    ends = np.cumsum([0, *(len(spelling.tokens) for spelling in spellings)]).astype(np.int64)
    free = np.array([spelling.free for spelling in spellings], dtype=np.int64)
    initial = np.array([spelling.initial for spelling in spellings], dtype=np.bool_)
    arcs = np.empty((2, 2 * len(tokens)), dtype=np.int64)
    is_longer = np.empty(2 * len(tokens), dtype=np.bool_)
    seen = np.zeros(len(spellings), dtype=np.int64)
    arguments = (*automaton, root, start, tokens, ends, free, initial, backs_off, arcs, is_longer, seen)
    count = _follow(*arguments)
    return arcs[0, :count], arcs[1, :count], is_longer[:count], seen


@compiled
def _follow(
    arc_offsets, arc_tokens, arc_targets, backoff_states, root, start, tokens, ends, free, initial, backs_off,
    arcs, is_longer, seen,
):  # fmt: skip
    count = 0
    for n in range(free.size):
        for from_start in range(2):
            if (from_start == 1 and free[n] == 0 and not initial[n]) or (from_start == 0 and initial[n]):
                continue
            state = np.int64(start if from_start else root)
            first = ends[n] + (free[n] if from_start else 0)
            known = 0
            for at in range(first, ends[n + 1]):
                token = tokens[at]
                taken = state
                arc = find_arc(arc_tokens, arc_offsets[taken], arc_offsets[taken + 1], token)
                while arc < 0 and backoff_states[taken] != taken:
                    taken = np.int64(backoff_states[taken])
                    arc = find_arc(arc_tokens, arc_offsets[taken], arc_offsets[taken + 1], token)
                goes_on = taken == state and (at == first or taken != root)
                if arc < 0 or (not goes_on and not backs_off):
                    break
                if at >= ends[n] + free[n]:
                    arcs[0, count], arcs[1, count], is_longer[count] = arc, n, goes_on
                    count += 1
                    known += goes_on
                state = np.int64(arc_targets[arc])
            seen[n] = max(seen[n], known)
    return count
