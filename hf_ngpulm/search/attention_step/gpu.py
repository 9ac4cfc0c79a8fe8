"""Two Triton launches a step, and torch's sums before and after them.

The first reads the rows' states off their tokens; the second adds, with a program per tile of a row's vocabulary. Longer
contexts are added as the difference to what backing off has given already, so that no row of scores is needed. Where states
are carried, none are read, and a third launch follows the tokens that were chosen.

Conditions for blocks are made of blocks: the interpreter takes `block & scalar` for a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...automaton.gpu import BLOCK, automaton_signature, is_dense, lower_bound, processors, step_rows, tile_size
from . import END, HOLD, KINDS, START, TEXT, UNSCORED, Roles, Rows

_UNSCORED, _TEXT, _END, _KINDS = (tl.constexpr(number) for number in (UNSCORED, TEXT, END, KINDS))
_START, _HOLD = tl.constexpr(START), tl.constexpr(HOLD)
READ_BLOCK = 256
LOG_2 = math.log(2)


def fuse(scores: Tensor, input_ids: Tensor, rows: Rows, roles: Roles, shared: bool) -> None:
    _fuse(scores, input_ids, rows.starts, rows, roles, shared, carried=False)


def fuse_at(scores: Tensor, states: Tensor, rows: Rows, roles: Roles, shared: bool) -> None:
    _fuse(scores, states, states, rows, roles, shared, carried=True)


def follow(states: Tensor, tokens: Tensor, rows: Rows, roles: Roles) -> Tensor:
    found = torch.empty_like(states)
    _follow_kernel[(len(states),)](
        *rows.tensors, states, tokens, roles.roles, rows.starts, found,
        rows.tensors.num_states, rows.vocab_size, roles.roles.numel(), num_warps=1,
    )  # fmt: skip
    return found


def _fuse(scores: Tensor, input_ids: Tensor, starts: Tensor, rows: Rows, roles: Roles, shared: bool, *, carried: bool) -> None:
    batch_size, classes = scores.shape
    device = scores.device
    tile = tile_size(batch_size, classes, processors(device))
    tiles = triton.cdiv(classes, tile)
    states = torch.empty(batch_size, dtype=torch.int32, device=device)
    finals = torch.empty(batch_size, dtype=torch.float32, device=device)
    num_states = rows.tensors.num_states
    before = scores.clone() if shared else None
    _read_kernel[(batch_size,)](
        *rows.tensors, input_ids, roles.roles, starts, rows.roots, states, finals,
        0 if carried else input_ids.shape[1], rows.context_length, num_states, rows.vocab_size, classes,
        HOLDS=roles.holds and not carried, CARRIED=carried, READ_BLOCK=READ_BLOCK, num_warps=4,
    )  # fmt: skip
    _add_kernel[(batch_size, tiles)](
        *rows.tensors, scores, roles.roles, rows.weights, states, finals, num_states, rows.vocab_size, classes, tile,
        BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    if before is not None:
        _share(scores, before, states == rows.starts, rows.weights, roles)


def _share(fused: Tensor, before: Tensor, at_start: Tensor, weights: Tensor, roles: Roles) -> None:
    """Have what the LM scores `[B, C]` share, in place, what the model gave to it before."""
    kinds = roles.roles & KINDS
    ends = kinds == END
    others = (kinds == UNSCORED) | (ends & at_start[:, None])
    best, total = _best_and_sum(before, others)
    fused_best, fused_total = _best_and_sum(fused, others)
    lost = total - fused_total
    lost = torch.where(torch.isfinite(lost), lost, 0.0)
    gained = lost.minimum(weights.abs()[:, None] * roles.log_guess)
    of_best = fused_best + gained - best
    of_others = torch.where(torch.isfinite(of_best), of_best, 0.0).minimum(gained - lost).clamp(max=0.0)
    found = torch.where(others, before + of_others, fused + gained)
    (_, end), (_, fused_end) = _best_and_sum(before, ~ends), _best_and_sum(found, ~ends)
    vetoed = (end > torch.logsumexp(before, 1, keepdim=True) - LOG_2) & (fused_end < end)
    fused.copy_(torch.where(vetoed, before, found))


def _best_and_sum(scores: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Of all but some classes the best of each row, and the log of the sum of their exp, `[B, 1]` each."""
    scored = scores.masked_fill(others, -torch.inf)
    return scored.amax(1, keepdim=True), torch.logsumexp(scored, 1, keepdim=True)


@triton.jit
def _read_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    input_ids, roles, starts, roots, states, finals, length, context_length, num_states, vocab_size, classes,
    HOLDS: tl.constexpr, CARRIED: tl.constexpr, READ_BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tokens_of_row = input_ids + row * length
    started = -1
    held = -1
    for block in range(0, length, READ_BLOCK):
        positions = block + tl.arange(0, READ_BLOCK)
        tokens = tl.load(tokens_of_row + positions, mask=positions < length, other=-1)
        inside = (tokens >= 0) & (tokens < classes)
        kinds = tl.load(roles + tokens, mask=inside, other=0).to(tl.int32)
        started = tl.maximum(started, tl.max(tl.where((kinds & _START) != 0, positions, -1), axis=0))
        if HOLDS:
            held = tl.maximum(held, tl.max(tl.where((kinds & _HOLD) != 0, positions, -1), axis=0))
    begin = length * 1  # a tensor, also in the interpreter
    seen = begin * 0
    position = begin
    while (position > started + 1) & (seen < context_length):
        position -= 1
        token = tl.load(tokens_of_row + position)
        inside = (token >= 0) & (token < classes)
        is_text = (tl.load(roles + token, mask=inside, other=0).to(tl.int32) & _KINDS) == _TEXT
        seen += is_text.to(tl.int32)
        begin = tl.where(is_text, position, begin)
    start = tl.load(starts + row)
    one = tl.zeros((1,), tl.int32)
    active = (one + start) >= 0
    state = one + start
    if not CARRIED:
        state = one + tl.where(seen == context_length, tl.load(roots + row), start)
    position = begin
    while position < length:
        token = tl.load(tokens_of_row + position)
        inside = (token >= 0) & (token < classes)
        is_text = (tl.load(roles + token, mask=inside, other=0).to(tl.int32) & _KINDS) == _TEXT
        _, state = step_rows(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            state, one + tl.where(is_text, token.to(tl.int32), -1), active, num_states, vocab_size,
        )  # fmt: skip
        position += 1
    final, _ = step_rows(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
        state, one + vocab_size, active, num_states, vocab_size + 1,
    )  # fmt: skip
    tl.store(states + row + one, tl.where((start < 0) | (held > started), -1, state))
    tl.store(finals + row + one, final)


@triton.jit
def _follow_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, tokens, roles, starts, found, num_states, vocab_size, classes,
):  # fmt: skip
    rows = tl.program_id(0) + tl.zeros((1,), tl.int32)
    token = tl.load(tokens + rows)
    inside = (token >= 0) & (token < classes)
    role = tl.load(roles + token, mask=inside, other=0).to(tl.int32)
    state = tl.load(states + rows)
    is_text = (role & _KINDS) == _TEXT
    _, after = step_rows(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
        state, tl.where(is_text, token.to(tl.int32), -1), state >= 0, num_states, vocab_size,
    )  # fmt: skip
    after = tl.where((role & _HOLD) != 0, -1, after)
    after = tl.where((role & _START) != 0, tl.load(starts + rows), after)
    tl.store(found + rows, after)


@triton.jit
def _add_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    scores, roles, weights, states, finals, num_states, vocab_size, classes, tile, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * tile
    last = tl.minimum(first + tile, classes)
    x = scores + row * classes
    state = tl.load(states + row)
    weight = tl.load(weights + row)
    lanes = tl.arange(0, BLOCK)
    if (state >= 0) & (weight != 0):
        depth = 0
        score = 0.0
        root = state
        backoff = tl.load(backoff_states + root)
        while backoff != root:
            score += tl.load(backoff_weights + root)
            root = backoff
            backoff = tl.load(backoff_states + root)
            depth += 1
        low = tl.load(arc_offsets + root)
        high = tl.load(arc_offsets + root + 1)
        dense = is_dense(arc_tokens, low, high, vocab_size)
        dense_end = tl.where(dense, vocab_size, 0)
        default = tl.where(dense, 0.0, tl.load(backoff_weights + root))
        final = tl.load(finals + row)
        for block in range(first, last, BLOCK):
            tokens = block + lanes
            inside = tokens < last
            values = tl.load(x + tokens, mask=inside, other=float("-inf"))
            kinds = tl.load(roles + tokens, mask=inside, other=0).to(tl.int32) & _KINDS
            of_root = tl.load(arc_weights + low + tokens, mask=inside & (tokens < dense_end), other=0.0)
            added = tl.where(kinds == _END, final, score + default + of_root)
            added = tl.where(kinds == _UNSCORED, 0.0, added)
            tl.store(x + tokens, values + weight * added, mask=inside & (values > float("-inf")))
        level = tl.where(dense, depth - 1, depth)
        while level >= 0:
            current = state
            shorter = 0
            while shorter < level:
                current = tl.load(backoff_states + current)
                shorter += 1
            low = tl.load(arc_offsets + current)
            high = tl.load(arc_offsets + current + 1)
            backoff = tl.load(backoff_states + current)
            backoff_block = tl.zeros((BLOCK,), tl.int32) + backoff
            given = tl.load(backoff_weights + current)
            many = high - low > BLOCK
            begin = lower_bound(arc_tokens, low, tl.where(many, high, low), first)
            end = lower_bound(arc_tokens, tl.where(many, begin, high), high, last)
            tl.debug_barrier()  # what a shorter context added must be there before more is
            for block in range(begin, end, BLOCK):
                arcs = block + lanes
                inside = arcs < end
                tokens = tl.load(arc_tokens + arcs, mask=inside, other=0).to(tl.int32)
                wanted = inside & (tokens >= first) & (tokens < last)
                kinds = tl.load(roles + tokens, mask=wanted, other=0).to(tl.int32) & _KINDS
                wanted = wanted & (kinds == _TEXT)
                of_arc = tl.load(arc_weights + arcs, mask=wanted, other=0.0)
                below, _ = step_rows(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    backoff_block, tokens, wanted & (backoff_block != current), num_states, vocab_size,
                )  # fmt: skip
                values = tl.load(x + tokens, mask=wanted, other=0.0)
                tl.store(x + tokens, values + weight * (of_arc - given - below), mask=wanted)
            level -= 1


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with the argument types and constants it is launched with, for compiling ahead of time."""
    for token_type in ("*i16", "*i32"):
        automaton = automaton_signature(token_type)
        arguments = {
            "input_ids": "*i64",
            "roles": "*i8",
            "starts": "*i32",
            "roots": "*i32",
            "states": "*i32",
            "finals": "*fp32",
        }
        arguments |= dict.fromkeys(("length", "context_length", "num_states", "vocab_size", "classes"), "i32")
        for holds, carried in ((False, False), (True, False), (False, True)):
            read = arguments | ({"input_ids": "*i32"} if carried else {})  # a stand-in, of which nothing is read
            yield _read_kernel, automaton | read, {"HOLDS": holds, "CARRIED": carried, "READ_BLOCK": READ_BLOCK}
        arguments = {"states": "*i32", "tokens": "*i64", "roles": "*i8", "starts": "*i32", "found": "*i32"}
        arguments |= dict.fromkeys(("num_states", "vocab_size", "classes"), "i32")
        yield _follow_kernel, automaton | arguments, {}
        arguments = {"scores": "*fp32", "roles": "*i8", "weights": "*fp32", "states": "*i32", "finals": "*fp32"}
        arguments |= dict.fromkeys(("num_states", "vocab_size", "classes", "tile"), "i32")
        yield _add_kernel, automaton | arguments, {"BLOCK": BLOCK}
