"""From what happened at each frame back to the tokens of a hypothesis, and when they were said."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...automaton.compiled import compiled
from . import INSIDE


class TracedTokens(NamedTuple):
    """Tokens of `N` hypotheses a row; entries from a hypothesis's number of tokens on mean nothing.

    Args:
        counts: int32 `[B, N]`, number of tokens.
        tokens: int32 `[B, N, L]`.
        starts, ends: int32 `[B, N, L]`, first frame of each token and the frame behind its last one.
    """

    counts: np.ndarray
    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def trace(links: np.ndarray, labels: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> TracedTokens:
    """Follow hypotheses from the last frame to the first.

    Args:
        links, labels: int32 `[B, T, K]`, see `BeamFrames`.
        places: integers `[B, N]`, where in the beam each hypothesis lies after the last frame.
        sizes: integers `[B, N]`, number of its tokens.
    """
    longest = int(sizes.max(initial=0))
    counts = np.ascontiguousarray(sizes, dtype=np.int32)
    tokens, starts, ends = (np.full((*places.shape, longest), -1, dtype=np.int32) for _ in range(3))
    trace_rows(links, labels, np.ascontiguousarray(places, dtype=np.int32), counts, tokens, starts, ends)
    return TracedTokens(counts, tokens, starts, ends)


@compiled
def trace_rows(links, labels, places, counts, tokens, starts, ends):
    for row in range(places.shape[0]):
        for n in range(places.shape[1]):
            place, at, end = places[row, n], counts[row, n], -1
            for frame in range(links.shape[1] - 1, -1, -1):
                if at == 0:
                    break
                label = labels[row, frame, place]
                if label >= 0:
                    at -= 1
                    tokens[row, n, at], starts[row, n, at] = label, frame
                    ends[row, n, at] = end if end >= 0 else frame + 1
                    end = -1
                elif label == INSIDE and end < 0:  # and so are the frames before it, down to the token's first
                    end = frame + 1
                place = links[row, frame, place]
