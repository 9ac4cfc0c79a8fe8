"""Which rows of tokens end in a phrase that is said again and again."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...engines.choice import engine_name
from . import START, Roles


class LoopRules(NamedTuple):
    """What a loop is.

    Args:
        longest: tokens of a phrase that is looked for.
        times, shortest: how often it is said, and how many tokens that are at least.
        endless_times, endless_shortest: the same of a loop that has gone on for long.
        endless_others: share of the tokens of such a one that may be others.
    """

    longest: int
    times: int
    shortest: int
    endless_times: int
    endless_shortest: int
    endless_others: float

    @property
    def window(self) -> int:
        """Return how many last tokens are looked at."""
        return self.endless_times * self.longest


def loops(input_ids: Tensor, roles: Roles, rules: LoopRules, engine: str = "auto") -> tuple[Tensor, Tensor]:
    """Return which rows of tokens `[B, L]` end in a loop, and in which that has gone on for long, bool `[B]` each.

    What stands before a transcript's start is none of it.

    Args:
        engine: "gpu" is a Triton kernel, all others are plain torch.
    """
    if engine_name(engine, input_ids.device) == "gpu":
        from . import gpu  # needs Triton

        return gpu.loops(input_ids.contiguous(), roles, rules)
    return _loops(input_ids, roles, rules)


def _loops(input_ids: Tensor, roles: Roles, rules: LoopRules) -> tuple[Tensor, Tensor]:
    ids = input_ids[:, -rules.window :].flip(1)
    batch_size, length = ids.shape
    if length < rules.shortest:
        none = torch.zeros(batch_size, dtype=torch.bool, device=ids.device)
        return none, none
    place = torch.arange(rules.window, device=ids.device)  # from the last token backwards
    inside = (ids >= 0) & (ids < roles.roles.numel())
    outside = ~inside | ((roles.roles[torch.where(inside, ids, 0)] & START) != 0)
    before = outside.to(torch.int8).cummax(1).values.to(torch.bool)  # the transcript's beginning, and all before it
    last = (-1 - place).repeat(batch_size, 1)  # what is no token equals no other
    last[:, :length] = torch.where(before, last[:, :length], ids)
    periods = torch.arange(1, min(rules.longest, length // rules.times) + 1, device=ids.device)[:, None]

    def said(times: int, shortest: int, allowed: float) -> Tensor:
        compared = place[: (times - 1) * rules.longest]
        same = last[:, None, : len(compared)] == last[:, (periods + compared).clamp(max=rules.window - 1)]
        needed = torch.maximum((times - 1) * periods, shortest - periods)
        others = (~same & (compared < needed)).sum(2, keepdim=True)
        return (others <= allowed * needed).any(1)[:, 0]

    begun = said(rules.times, rules.shortest, 0.0)
    if ids.device.type == "cpu" and not bool(begun.any()):  # asking a GPU would take longer
        return begun, torch.zeros_like(begun)
    return begun, begun & said(rules.endless_times, rules.endless_shortest, rules.endless_others)
