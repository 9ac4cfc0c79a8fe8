"""From what happened at each frame back to the tokens of a hypothesis, and when they were said, by the native core."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...engines.native import Function, Struct
from .cpu import Ranked


class TracedTokens(NamedTuple):
    """Tokens of `N` hypotheses a row; entries from a hypothesis's number of tokens on mean nothing.

    Args:
        counts: int32 `[B, N]`, number of tokens.
        tokens: int32 `[B, N, L]`.
        starts, ends: int32 `[B, N, L]`, first frame of each token and the frame after its last one.
    """

    counts: np.ndarray
    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class Traced(Struct):
    """See `TracedTokens`; `width` is L."""


_trace = Function("ngpulm_ctc_beam_trace")


def trace(links: np.ndarray, labels: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> TracedTokens:
    """Follow hypotheses from the last frame to the first.

    Args:
        links, labels: int32 `[B, T, K]`, see `BeamFrames`.
        places: integers `[B, N]`, where in the beam each hypothesis lies after the last frame.
        sizes: integers `[B, N]`, number of its tokens.

    Raises:
        IndexError: a hypothesis that lies outside of the beam.
    """
    counts, places = (np.ascontiguousarray(part, dtype=np.int32) for part in (sizes, places))
    width = int(counts.max(initial=0))
    tokens, starts, ends = (np.full((*places.shape, width), -1, dtype=np.int32) for _ in range(3))
    ranked = Ranked(places=places, sizes=counts, scores=None, count=places.shape[1])
    traced = Traced(tokens=tokens, starts=starts, ends=ends, width=width)
    bad_row = _trace(0, len(places), links, labels, *links.shape[1:], ranked, traced)
    if bad_row >= 0:
        raise IndexError(f"hypotheses at the places {places[bad_row].tolist()} of a beam of {links.shape[2]}")
    return TracedTokens(counts, tokens, starts, ends)
