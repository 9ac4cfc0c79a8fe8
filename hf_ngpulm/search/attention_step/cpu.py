"""The step on the CPU, by the native core (`csrc/attention_step.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...engines.native import Function, Struct
from ...engines.threads import in_threads
from . import Roles, Rows


class _Roles(Struct):
    """See `Roles`."""

    @classmethod
    def of(cls, roles: Roles) -> _Roles:
        return cls(
            roles=roles.roles, unscored=roles.unscored, ends=roles.ends, classes=roles.roles.numel(),
            num_unscored=roles.unscored.numel(), num_ends=roles.ends.numel(), log_guess=roles.log_guess, holds=roles.holds,
        )  # fmt: skip


class _FusedRows(Struct):
    """See `Rows`; `states` are those that tokens are read from."""


_fuse_rows = Function("ngpulm_fuse")
_follow_rows = Function("ngpulm_follow")


def fuse(scores: Tensor, input_ids: Tensor, rows: Rows, roles: Roles, shared: bool) -> None:
    _fuse(scores, input_ids.contiguous(), rows.starts, rows, roles, shared)


def fuse_at(scores: Tensor, states: Tensor, rows: Rows, roles: Roles, shared: bool) -> None:
    _fuse(scores, None, states, rows, roles, shared)


def _fuse(scores: Tensor, input_ids: Tensor | None, states: Tensor, rows: Rows, roles: Roles, shared: bool) -> None:
    states = _int32(states)
    of_rows = _FusedRows(
        states=states, starts=_int32(rows.starts), roots=_int32(rows.roots), weights=rows.weights.contiguous(),
        context_length=rows.context_length,
    )  # fmt: skip
    length = 0 if input_ids is None else input_ids.shape[1]
    arguments = (Automaton.of(rows.tensors, rows.vocab_size), _Roles.of(roles), of_rows, input_ids, length, shared, scores)
    _check(in_threads(lambda first, last: _fuse_rows(first, last, *arguments), *scores.shape), states)


def follow(states: Tensor, tokens: Tensor, rows: Rows, roles: Roles) -> Tensor:
    before = _int32(states)
    found = torch.empty_like(before)
    arguments = (
        Automaton.of(rows.tensors, rows.vocab_size), _Roles.of(roles), before, tokens.to(torch.int64).contiguous(),
        _int32(rows.starts), found,
    )  # fmt: skip
    _check(in_threads(lambda first, last: _follow_rows(first, last, *arguments), len(states), 64), before)
    return found.to(states.dtype)


def _check(found: list[int], states: Tensor) -> None:
    for bad_row in found:
        if bad_row >= 0:
            raise IndexError(f"an automaton has no state {int(states[bad_row])}, or no root, of row {bad_row}")


def _int32(values: Tensor) -> Tensor:
    return values.to(torch.int32).contiguous()
