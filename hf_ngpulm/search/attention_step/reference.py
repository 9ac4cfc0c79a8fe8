"""Run the step of attention decoding in plain torch, row by row, on any device.

This is the definition against which the engines are tested.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...automaton import reference
from . import END, HOLD, KINDS, START, TEXT, UNSCORED, FusedRows, Roles

LOG_2 = math.log(2)


def fuse(scores: Tensor, input_ids: Tensor, rows: FusedRows, roles: Roles, shared: bool) -> None:
    for row, tokens in enumerate(input_ids):
        if int(rows.starts[row]) < 0:
            continue
        inside = (tokens >= 0) & (tokens < roles.roles.numel())
        kinds = torch.where(inside, roles.roles[torch.where(inside, tokens, 0)], UNSCORED)
        first = _after_last(kinds & START)
        if _after_last(kinds & HOLD) > first:
            continue
        text = tokens[first:][kinds[first:] & KINDS == TEXT]
        states = rows.starts[row : row + 1]
        length = torch.tensor([len(text)], device=scores.device)
        _, states = reference.walk(rows.tensors, states, text[None], length, rows.vocab_size)
        add(scores[row], rows, roles, row, states, shared)


def fuse_at(scores: Tensor, states: Tensor, rows: FusedRows, roles: Roles, shared: bool) -> None:
    for row, state in enumerate(states.tolist()):
        if state >= 0:
            add(scores[row], rows, roles, row, states[row : row + 1], shared)


def follow(states: Tensor, tokens: Tensor, rows: FusedRows, roles: Roles) -> Tensor:
    next_states = []
    for row, (state, token) in enumerate(zip(states, tokens.tolist())):
        role = int(roles.roles[token]) if 0 <= token < roles.roles.numel() else UNSCORED
        if role & START:
            state = rows.starts[row]
        elif role & HOLD:
            state = torch.full_like(state, -1)
        elif role & KINDS == TEXT and int(state) >= 0:
            state = reference.step(rows.tensors, state[None], tokens[row : row + 1], rows.vocab_size)[1][0]
        next_states.append(state)
    return torch.stack(next_states)


def _after_last(marks: Tensor) -> int:
    places = torch.nonzero(marks)
    return int(places[-1]) + 1 if len(places) else 0


def lm_scores(rows: FusedRows, roles: Roles, states: Tensor) -> Tensor:
    """Return the score that the LM gives each class in one state, `[C]`. Unscored classes get 0. `states`, `[1]`, contains the
    state.
    """
    text = torch.zeros(roles.roles.shape, device=states.device)
    text[: rows.vocab_size] = reference.scores(rows.tensors, states, rows.vocab_size)[0]
    final, _ = reference.step(rows.tensors, states, torch.full_like(states, rows.vocab_size), rows.vocab_size + 1)
    kinds = roles.roles & KINDS
    return torch.where(kinds == END, final, torch.where(kinds == TEXT, text, 0.0))


def add(x: Tensor, rows: FusedRows, roles: Roles, row: int, states: Tensor, shared: bool) -> None:
    weight = rows.weights[row]
    if weight == 0:
        return
    kinds = roles.roles & KINDS
    at_start = int(states[0]) == int(rows.starts[row])
    others = (kinds == UNSCORED) | ((kinds == END) & (shared and at_start))
    fused = torch.where((x > -torch.inf) & ~others, x + weight * lm_scores(rows, roles, states), x)
    if shared:
        before, after = x.masked_fill(others, -torch.inf), fused.masked_fill(others, -torch.inf)
        lost = torch.logsumexp(before, 0) - torch.logsumexp(after, 0)
        lost = torch.where(torch.isfinite(lost), lost, 0.0)  # if all scored classes are -inf
        gained = lost.clamp(max=float(weight.abs()) * roles.log_guess)
        of_best = after.amax() + gained - before.amax()
        of_others = torch.where(torch.isfinite(of_best), of_best, 0.0).minimum(gained - lost).clamp(max=0.0)
        fused += torch.where(others, of_others, gained)
        end, fused_end = (torch.logsumexp(scores[kinds == END], 0) for scores in (x, fused))
        if end > torch.logsumexp(x, 0) - LOG_2 and fused_end < end:
            return
    x.copy_(fused)
