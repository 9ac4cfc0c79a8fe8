"""Run the step of attention decoding on the GPU, with three Triton kernels.

`_read_kernel` computes each row's LM state from the row's tokens. `_add_kernel` runs a program for each tile of a row's
classes. The program writes the fused scores of the tile to a new tensor, from the shortest context to the longest, so that
longer contexts overwrite shorter ones. It also sums the scores of the tile before and after fusion. `_share_kernel` combines
the sums of a row's tiles and writes the row's final scores. If the caller keeps the LM states, `_read_kernel` reads no tokens,
and `_follow_kernel` follows the tokens that the caller has chosen.

A kernel computes the mask of a block only from blocks, because Triton's interpreter takes `block & scalar` for a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...automaton.gpu import (
    BLOCK,
    EXACT,
    arcs_between,
    automaton_signature,
    chain_of,
    link_of,
    processors,
    step_rows,
    tile_size,
)
from ...engines.devices import current
from . import END, HOLD, KINDS, START, TEXT, UNSCORED, FusedRows, Roles

_UNSCORED, _TEXT, _END, _KINDS = (tl.constexpr(number) for number in (UNSCORED, TEXT, END, KINDS))
_START, _HOLD = tl.constexpr(START), tl.constexpr(HOLD)
_LOG_2 = tl.constexpr(math.log(2))
READ_BLOCK = 256
ONE_WARP = {"num_warps": 1, **EXACT}
# Registers per thread of `_add_kernel`. Without this setting Triton 3.6 spills registers, to run one more program at a time.
ADD_REGISTERS: dict[str, int] = EXACT if torch.version.hip else EXACT | {"maxnreg": 96}
TAIL = tl.constexpr(32)  # the search for the last TEXT tokens loads this many tokens at a time
ENDS = tl.constexpr(16)  # `_read_kernel` loads this many END classes at a time
PARTS = 6  # number of sums per tile, see `_add_kernel`
_PARTS = tl.constexpr(PARTS)
_BROKEN = tl.constexpr(-2)  # replaces a state outside the automaton; the row's scores become NaN
MOST_TILES = 1024
FEWEST_TILES = 64  # `_share_kernel` has room for at least this many, so that one compiled kernel serves most batch sizes


def fuse(scores: Tensor, input_ids: Tensor, rows: FusedRows, roles: Roles, shared: bool) -> None:
    _fuse(scores, input_ids, rows.starts, rows, roles, shared, carried=False)


def fuse_at(scores: Tensor, states: Tensor, rows: FusedRows, roles: Roles, shared: bool) -> None:
    _fuse(scores, states, states, rows, roles, shared, carried=True)


def follow(states: Tensor, tokens: Tensor, rows: FusedRows, roles: Roles) -> Tensor:
    found = torch.empty_like(states)
    with current(states.device):
        _follow_kernel[(len(states),)](
            *rows.tensors, states, tokens, roles.roles, rows.starts, found,
            rows.tensors.num_states, rows.vocab_size, roles.roles.numel(), **ONE_WARP,
        )  # fmt: skip
    return found


def _fuse(
    scores: Tensor, input_ids: Tensor, starts: Tensor, rows: FusedRows, roles: Roles, shared: bool, *, carried: bool
) -> None:
    batch_size, classes = scores.shape
    tile = tile_size(batch_size, classes, processors(scores.device))
    tile = max(tile, triton.next_power_of_2(triton.cdiv(classes, MOST_TILES)))
    tiles = triton.cdiv(classes, tile)
    states = torch.empty(batch_size, dtype=torch.int32, device=scores.device)
    # Each row has the LM score of `</s>`, the logsumexp of the model's scores of END classes, and PARTS sums per tile.
    sums = scores.new_empty((batch_size, 2 + PARTS * tiles))
    fused = torch.empty_like(scores)
    with current(scores.device):
        _read_kernel[(batch_size,)](
            *rows.tensors, scores, input_ids, roles.roles, roles.ends, starts, rows.roots, states, sums,
            0 if carried else input_ids.shape[1], rows.context_length, rows.tensors.num_states, rows.vocab_size, classes,
            len(roles.ends), tiles,
            HOLDS=roles.holds and not carried, CARRIED=carried, SHARED=shared, READ_BLOCK=READ_BLOCK, **ONE_WARP,
        )  # fmt: skip
        _add_kernel[(batch_size, tiles)](
            *rows.tensors, scores, fused, roles.roles, rows.weights, states, rows.starts, sums, rows.vocab_size, classes, tile,
            tiles, SHARED=shared, BLOCK=BLOCK, num_warps=4, **ADD_REGISTERS,
        )  # fmt: skip
        _share_kernel[(batch_size, tiles)](
            scores, fused, roles.roles, rows.weights, states, rows.starts, sums, roles.log_guess, classes, tile, tiles,
            SHARED=shared, TILES=max(triton.next_power_of_2(tiles), FEWEST_TILES), BLOCK=BLOCK, num_warps=4, **EXACT,
        )  # fmt: skip


@triton.jit(do_not_specialize=["length", "context_length", "num_states", "vocab_size", "classes", "num_ends", "tiles"])
def _read_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    scores, input_ids, roles, ends, starts, roots, states, sums,
    length, context_length, num_states, vocab_size, classes, num_ends, tiles,
    HOLDS: tl.constexpr, CARRIED: tl.constexpr, SHARED: tl.constexpr, READ_BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a row's LM state, the score of `</s>` in this state, and (if SHARED) the logsumexp of the END classes' scores.

    If CARRIED, the caller has kept the states. Then `starts` has the present states, and no tokens are read.
    """
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
    # Find the position at which the last `context_length` TEXT tokens begin.
    begin = length * 1  # Triton's interpreter needs a tensor here
    seen = begin * 0
    position = begin
    while (position > started + 1) & (seen < context_length):
        positions = position - 1 - tl.arange(0, TAIL)
        known = positions > started
        tokens = tl.load(tokens_of_row + positions, mask=known, other=-1)
        known = known & (tokens >= 0) & (tokens < classes)
        is_text = ((tl.load(roles + tokens, mask=known, other=0).to(tl.int32) & _KINDS) == _TEXT).to(tl.int32)
        is_needed = tl.where(seen + tl.cumsum(is_text, axis=0) - is_text < context_length, is_text, 0)
        begin = tl.minimum(begin, tl.min(tl.where(is_needed > 0, positions, length), axis=0))
        seen += tl.sum(is_needed, axis=0)
        position -= TAIL
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
    at = row * (2 + _PARTS * tiles)
    state = tl.where((start < 0) | (held > started), -1, tl.where(state < num_states, state, _BROKEN))
    tl.store(states + row + one, state)
    tl.store(sums + at + one, final)
    if SHARED:
        of_ends = float("-inf")
        for block in range(0, num_ends, ENDS):
            places = block + tl.arange(0, ENDS)
            classes_of_ends = tl.load(ends + places, mask=places < num_ends, other=0)
            values = tl.load(scores + row * classes + classes_of_ends, mask=places < num_ends, other=float("-inf"))
            highest = tl.maximum(of_ends, tl.max(values, axis=0))
            shift = tl.where(highest > float("-inf"), highest, 0.0)
            of_ends = highest + tl.log(tl.exp(of_ends - shift) + tl.sum(tl.exp(values - shift), axis=0))
        tl.store(sums + at + 1, of_ends)


@triton.jit(do_not_specialize=["num_states", "vocab_size", "classes"])
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


@triton.jit(do_not_specialize=["tiles"])
def _add_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    scores, fused, roles, weights, states, starts, sums, vocab_size, classes, tile, tiles,
    SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the fused scores of a tile of `tile` classes: `x + w * log p_LM` for scored classes, x for unscored classes.

    If SHARED, write six sums of the tile, too. They are the highest score and the logsumexp, for three sets of scores: x of the
    scored classes, the fused scores of the scored classes, and x of the unscored classes.
    """
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * tile
    last = tl.minimum(first + tile, classes)
    x = scores + row * classes
    y = fused + row * classes
    state = tl.load(states + row)
    weight = tl.load(weights + row)
    lanes = tl.arange(0, BLOCK)
    if (state >= 0) & (weight != 0):
        depth, lows, ends, of_links, low, end, score, _, below = chain_of(
            arc_offsets, backoff_states, backoff_weights, state
        )  # fmt: skip
        full = end - low >= vocab_size
        readable = tl.where(full, vocab_size, 0)
        dense = tl.load(arc_tokens + low + vocab_size - 1, mask=full, other=-1).to(tl.int32) == vocab_size - 1
        begins = state < 0
        if SHARED:
            begins = state == tl.load(starts + row)
        at = row * (2 + _PARTS * tiles)
        of_end = tl.where(begins, 0.0, weight * tl.load(sums + at))
        for block in range(first, last, BLOCK):
            tokens = block + lanes
            inside = tokens < last
            values = tl.load(x + tokens, mask=inside, other=float("-inf"))
            kinds = tl.load(roles + tokens, mask=inside, other=0).to(tl.int32) & _KINDS
            of_root = tl.load(arc_weights + low + tokens, mask=inside & (tokens < readable), other=0.0)
            added = tl.where(kinds == _TEXT, weight * (score + tl.where(dense, of_root, below)), 0.0)
            added = tl.where(kinds == _END, of_end, added)
            tl.store(y + tokens, tl.where(values > float("-inf"), values + added, values), mask=inside)
        level = tl.where(dense, depth - 1, depth)
        last_text = tl.minimum(last, vocab_size)
        while level >= 0:
            low, end, score = link_of(arc_offsets, backoff_states, backoff_weights, state, lows, ends, of_links, level)
            begin, end = arcs_between(arc_tokens, low, end, first, last_text, tiles > 1, BLOCK)
            tl.debug_barrier()  # a shorter context's writes must end before a longer context overwrites them
            for block in range(begin, end, BLOCK):
                arcs = block + lanes
                inside = arcs < end
                tokens = tl.load(arc_tokens + arcs, mask=inside, other=0).to(tl.int32)
                of_arc = tl.load(arc_weights + arcs, mask=inside, other=0.0)
                wanted = inside & (tokens >= first) & (tokens < last_text)
                values = tl.load(x + tokens, mask=wanted, other=float("-inf"))
                kinds = tl.load(roles + tokens, mask=wanted, other=0).to(tl.int32) & _KINDS
                wanted = wanted & (kinds == _TEXT) & (values > float("-inf"))
                tl.store(y + tokens, values + weight * (score + of_arc), mask=wanted)
            level -= 1
        if SHARED:
            tl.debug_barrier()
            best = float("-inf")
            best_fused = float("-inf")
            best_other = float("-inf")
            total = 0.0
            total_fused = 0.0
            total_other = 0.0
            for block in range(first, last, BLOCK):
                tokens = block + lanes
                inside = tokens < last
                values = tl.load(x + tokens, mask=inside, other=float("-inf"))
                kinds = tl.load(roles + tokens, mask=inside, other=0).to(tl.int32) & _KINDS
                scored = (kinds == _TEXT) | ((kinds == _END) & (tl.zeros((BLOCK,), tl.int32) + begins.to(tl.int32) == 0))
                new = tl.where(scored, tl.load(y + tokens, mask=inside, other=float("-inf")), float("-inf"))
                best, total = _more(best, total, tl.where(scored, values, float("-inf")))
                best_fused, total_fused = _more(best_fused, total_fused, new)
                best_other, total_other = _more(best_other, total_other, tl.where(scored, float("-inf"), values))
            at += 2 + tl.program_id(1)
            tl.store(sums + at, best)
            tl.store(sums + at + tiles, best + tl.log(total))
            tl.store(sums + at + 2 * tiles, best_fused)
            tl.store(sums + at + 3 * tiles, best_fused + tl.log(total_fused))
            tl.store(sums + at + 4 * tiles, best_other)
            tl.store(sums + at + 5 * tiles, best_other + tl.log(total_other))


@triton.jit
def _more(best, total, values):
    """Add a block of scores to a running sum. Return the highest score so far, and the sum of exp(score - highest score)."""
    highest = tl.maximum(best, tl.max(values, axis=0))
    shift = tl.where(highest > float("-inf"), highest, 0.0)
    return highest, total * tl.exp(best - shift) + tl.sum(tl.exp(values - shift), axis=0)


@triton.jit
def _whole(sums, tiles, places):
    """Combine the sums of a row's tiles. Return the highest score of the row, and the logsumexp of the row's scores.

    `places` is a range of at least `tiles` numbers, the indices of the tiles.
    """
    bests = tl.load(sums + places, mask=places < tiles, other=float("-inf"))
    totals = tl.load(sums + tiles + places, mask=places < tiles, other=float("-inf"))
    best = tl.max(bests, axis=0)
    shift = tl.where(best > float("-inf"), best, 0.0)
    return best, shift + tl.log(tl.sum(tl.exp(totals - shift), axis=0))


@triton.jit
def _finite(value):
    """Return the value if it is finite, else 0."""
    return tl.where((value > float("-inf")) & (value < float("inf")), value, 0.0)


@triton.jit(do_not_specialize=["log_guess", "tiles"])
def _share_kernel(
    scores, fused, roles, weights, states, starts, sums, log_guess, classes, tile, tiles,
    SHARED: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the final scores of a tile's classes.

    If SHARED, the scored classes share the total probability that the model gave them.
    """
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * tile
    last = tl.minimum(first + tile, classes)
    x = scores + row * classes
    y = fused + row * classes
    state = tl.load(states + row)
    weight = tl.load(weights + row)
    lanes = tl.arange(0, BLOCK)
    if (state >= 0) & (weight != 0):
        gained = 0.0
        of_others = 0.0
        begins = state < 0
        if SHARED:
            begins = state == tl.load(starts + row)
            places = tl.arange(0, TILES)
            of_row = sums + row * (2 + _PARTS * tiles)
            final = tl.load(of_row)
            of_ends = tl.load(of_row + 1)
            best, total = _whole(of_row + 2, tiles, places)
            best_fused, total_fused = _whole(of_row + 2 + 2 * tiles, tiles, places)
            _, total_other = _whole(of_row + 2 + 4 * tiles, tiles, places)
            lost = _finite(total - total_fused)
            gained = tl.minimum(lost, tl.abs(weight) * log_guess)
            of_others = tl.minimum(tl.minimum(_finite(best_fused + gained - best), gained - lost), 0.0)
            highest = tl.maximum(total, total_other)
            shift = tl.where(highest > float("-inf"), highest, 0.0)
            of_all = shift + tl.log(tl.exp(total - shift) + tl.exp(total_other - shift))
            of_ends_now = of_ends + tl.where(begins, of_others, weight * final + gained)
            if (of_ends > of_all - _LOG_2) & (of_ends_now < of_ends):
                last = first  # the model gives END more than half of the probability: write nothing
        for block in range(first, last, BLOCK):
            tokens = block + lanes
            inside = tokens < last
            values = tl.load(y + tokens, mask=inside, other=float("-inf"))
            if SHARED:
                kinds = tl.load(roles + tokens, mask=inside, other=0).to(tl.int32) & _KINDS
                scored = (kinds == _TEXT) | ((kinds == _END) & (tl.zeros((BLOCK,), tl.int32) + begins.to(tl.int32) == 0))
                values += tl.where(scored, gained, of_others)
            tl.store(x + tokens, values, mask=inside)
    if state == _BROKEN:
        for block in range(first, last, BLOCK):
            tl.store(x + block + lanes, tl.full((BLOCK,), float("nan"), tl.float32), mask=block + lanes < last)


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with its argument types and constants, for compiling ahead of time."""
    of_rows = {"weights": "*fp32", "states": "*i32", "starts": "*i32", "sums": "*fp32"}
    numbers = dict.fromkeys(("scores", "fused"), "*fp32") | {"roles": "*i8"}
    for token_type in ("*i16", "*i32"):
        automaton = automaton_signature(token_type)
        arguments = {"scores": "*fp32", "input_ids": "*i64", "roles": "*i8", "ends": "*i32", "sums": "*fp32"}
        arguments |= dict.fromkeys(("starts", "roots", "states"), "*i32")
        sizes = ("length", "context_length", "num_states", "vocab_size", "classes", "num_ends", "tiles")
        arguments |= dict.fromkeys(sizes, "i32")
        for holds, carried, shared in ((False, False, True), (True, False, True), (False, True, True), (False, False, False)):
            read = arguments | ({"input_ids": "*i32"} if carried else {})  # the states, as no tokens are read
            constants = {"HOLDS": holds, "CARRIED": carried, "SHARED": shared, "READ_BLOCK": READ_BLOCK}
            yield _read_kernel, automaton | read, constants | ONE_WARP
        arguments = {"states": "*i32", "tokens": "*i64", "roles": "*i8", "starts": "*i32", "found": "*i32"}
        arguments |= dict.fromkeys(("num_states", "vocab_size", "classes"), "i32")
        yield _follow_kernel, automaton | arguments, ONE_WARP
        arguments = numbers | of_rows | dict.fromkeys(("vocab_size", "classes", "tile", "tiles"), "i32")
        for shared in (True, False):
            yield _add_kernel, automaton | arguments, {"SHARED": shared, "BLOCK": BLOCK, "num_warps": 4, **ADD_REGISTERS}
    arguments = numbers | of_rows | {"log_guess": "fp32"} | dict.fromkeys(("classes", "tile", "tiles"), "i32")
    for shared in (True, False):
        yield _share_kernel, arguments, {"SHARED": shared, "TILES": 64, "BLOCK": BLOCK, **EXACT}
