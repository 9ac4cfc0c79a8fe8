"""Run the step of attention decoding on the CPU, with the native core (`csrc/attention_step.cpp`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...automaton.cpu import Automaton, int32
from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from . import FusedRows, Roles
from .loops.cpu import Ends


class NgpulmRoles(Struct):
    """`Roles` for the native core."""

    @classmethod
    def lent(cls, roles: Roles) -> NgpulmRoles:
        """Return the roles as a cached struct. Pass the struct only to a call that follows immediately; see `Struct.kept`."""
        key = (*[tensor.data_ptr() for tensor in roles[:3]], roles.unscored.shape[0], roles.ends.shape[0], roles.holds)
        return cls.kept(roles.roles, key, lambda: cls._of(roles))

    @classmethod
    def _of(cls, roles: Roles) -> NgpulmRoles:
        return cls(
            roles=roles.roles, unscored=roles.unscored, ends=roles.ends, classes=roles.roles.numel(),
            num_unscored=roles.unscored.numel(), num_ends=roles.ends.numel(), log_guess=roles.log_guess, holds=roles.holds,
        )  # fmt: skip


class NgpulmFusedRows(Struct):
    """`FusedRows` for the native core, without the automata."""

    @classmethod
    def lent(cls, rows: FusedRows) -> NgpulmFusedRows:
        """Return the rows as a cached struct. Pass the struct only to a call that follows immediately; see `Struct.kept`."""
        key = (rows.starts.data_ptr(), rows.roots.data_ptr(), len(rows.weights), rows.context_length)
        return cls.kept(rows.weights, key, lambda: cls._of(rows))

    @classmethod
    def _of(cls, rows: FusedRows) -> NgpulmFusedRows:
        return cls(starts=rows.starts, roots=rows.roots, weights=rows.weights, context_length=rows.context_length)


_fuse_rows = Function("ngpulm_fuse")
_follow_rows = Function("ngpulm_follow")


def fuse(scores: Tensor, input_ids: Tensor, rows: FusedRows, roles: Roles, shared: bool, ends: Tensor | None = None) -> None:
    """Do the same as `attention_step.fuse`. If `ends` is given, do the same as `fuse_outside_loops`."""
    _fuse(scores, input_ids.contiguous(), rows.starts, rows, roles, shared, ends)


def fuse_at(scores: Tensor, states: Tensor, rows: FusedRows, roles: Roles, shared: bool) -> None:
    _fuse(scores, None, states, rows, roles, shared, None)


def _fuse(
    scores: Tensor, input_ids: Tensor | None, states: Tensor, rows: FusedRows, roles: Roles, shared: bool, ends: Tensor | None
) -> None:
    states = int32(states)
    length = 0 if input_ids is None else input_ids.shape[1]
    arguments = (
        Automaton.lent(rows.tensors, rows.vocab_size), NgpulmRoles.lent(roles), NgpulmFusedRows.lent(rows),
        None if ends is None else Ends.lent(roles.roles, ends, scores.shape[1]), states, input_ids, length, shared, scores,
    )  # fmt: skip
    on_rows(_fuse_rows, arguments, scores.shape[0], scores.shape[1], _refusal(states, ends))


def follow(states: Tensor, tokens: Tensor, rows: FusedRows, roles: Roles) -> Tensor:
    before = int32(states)
    after = torch.empty_like(before)
    arguments = (
        Automaton.lent(rows.tensors, rows.vocab_size), NgpulmRoles.lent(roles), before, tokens.to(torch.int64).contiguous(),
        int32(rows.starts), after,
    )  # fmt: skip
    on_rows(_follow_rows, arguments, len(states), 64, _refusal(before))
    return after.to(states.dtype)


def _refusal(states: Tensor, ends: Tensor | None = None) -> Callable[[int], str]:
    among = "" if ends is None else f", or an end among {ends.tolist()} is no class"
    return lambda row: f"an automaton has no state {int(states[row])}, or no root, of row {row}{among}"
