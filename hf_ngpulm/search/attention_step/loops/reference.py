"""Detect and end loops in plain Python, row by row, on any device.

This is the definition against which the engines are tested.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import START
from . import ENDLESS, ENDLESS_OTHERS, ENDLESS_TIMES, LONGEST, SHORTEST, TIMES, WINDOW


def end_loops(scores: Tensor, input_ids: Tensor, roles: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    begun = torch.zeros_like(rows)
    for row, tokens in enumerate(input_ids):
        said = _transcript(tokens[-WINDOW:].tolist(), roles)
        begun[row] = _in_a_loop(said, TIMES, SHORTEST, 0.0)
        if begun[row] and rows[row] and _in_a_loop(said, ENDLESS_TIMES, ENDLESS, ENDLESS_OTHERS):
            kept = scores[row, ends]
            if bool((kept > -torch.inf).any()):
                scores[row] = -torch.inf
                scores[row, ends] = kept
    return begun


def _transcript(tokens: list[int], roles: Tensor) -> list[int]:
    """Return the transcript's tokens in reverse order. The transcript begins after the last START token, or after the last id
    that isn't a class, whichever comes later.
    """
    said: list[int] = []
    for token in reversed(tokens):
        if not 0 <= token < roles.numel() or int(roles[token]) & START:
            break
        said.append(token)
    return said


def _in_a_loop(said: list[int], times: int, shortest: int, others: float) -> bool:
    for period in range(1, LONGEST + 1):
        needed = max((times - 1) * period, shortest - period)
        same = sum(one == before for one, before in zip(said[:needed], said[period:]))
        if needed - same <= others * needed:
            return True
    return False
