"""The queries as Triton kernels. They also run on CPU tensors in Triton's interpreter (TRITON_INTERPRET=1).

Full-vocabulary queries give one program to a tile of a row's vocabulary. It walks the backoff chain once to sum the backoff
weights, writes the root's scores, and then those of ever longer contexts over them, with a barrier in between: no mask of what
was found is needed. Queries of single tokens give 32 rows to a warp and search all of them at once. A state outside
the automaton, which can't be reported from a kernel without waiting for it, scores NaN and is never followed.

Conditions are negated as `(x == 0)`: the interpreter of Triton 3.2 has no `~` for them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tensors import AutomatonTensors

ROWS_PER_WARP = 32
# A program writes at least this many tokens' scores: less isn't worth its walk along the chain.
SMALLEST_TILE = 1024
LARGEST_TILE = 16384
BLOCK = 1024
PROGRAMS_PER_PROCESSOR = 16  # resident at a time with 4 warps each


def scores(automaton: AutomatonTensors, states: Tensor, vocab_size: int) -> Tensor:
    out = torch.empty((states.shape[0], vocab_size), dtype=torch.float32, device=states.device)
    _launch_rows(automaton, states, vocab_size, out, out, False)
    return out


def advance(automaton: AutomatonTensors, states: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    out = torch.empty((states.shape[0], vocab_size), dtype=torch.float32, device=states.device)
    targets = torch.empty((states.shape[0], vocab_size), dtype=torch.int32, device=states.device)
    _launch_rows(automaton, states, vocab_size, out, targets, True)
    return out, targets


def step(automaton: AutomatonTensors, states: Tensor, tokens: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    rows = states.shape[0]
    out = torch.empty(rows, dtype=torch.float32, device=states.device)
    targets = torch.empty(rows, dtype=torch.int32, device=states.device)
    if rows:
        _step_kernel[(triton.cdiv(rows, ROWS_PER_WARP),)](
            *automaton, states.contiguous(), tokens.contiguous(), out, targets, rows, automaton.num_states, vocab_size,
            ROWS=ROWS_PER_WARP, num_warps=1,
        )  # fmt: skip
    return out, targets


def walk(
    automaton: AutomatonTensors, states: Tensor, token_ids: Tensor, lengths: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    rows, longest = token_ids.shape
    out = torch.zeros((rows, longest), dtype=torch.float32, device=states.device)
    last = torch.empty(rows, dtype=torch.int32, device=states.device)
    if rows:
        _walk_kernel[(triton.cdiv(rows, ROWS_PER_WARP),)](
            *automaton, states.contiguous(), token_ids.contiguous(), lengths.contiguous(), out, last,
            rows, longest, automaton.num_states, vocab_size, ROWS=ROWS_PER_WARP, num_warps=1,
        )  # fmt: skip
    return out, last


def states_after(
    automaton: AutomatonTensors,
    starts: Tensor,
    roots: Tensor,
    token_ids: Tensor,
    lengths: Tensor,
    context_length: int,
    vocab_size: int,
) -> Tensor:
    rows, longest = token_ids.shape
    last = torch.empty(rows, dtype=torch.int32, device=starts.device)
    if rows:
        _states_after_kernel[(triton.cdiv(rows, ROWS_PER_WARP),)](
            *automaton, starts.contiguous(), roots.contiguous(), token_ids.contiguous(), lengths.contiguous(), last,
            rows, longest, context_length, automaton.num_states, vocab_size, ROWS=ROWS_PER_WARP, num_warps=1,
        )  # fmt: skip
    return last


def _launch_rows(
    automaton: AutomatonTensors, states: Tensor, vocab_size: int, out: Tensor, targets: Tensor, with_targets: bool
) -> None:
    rows = states.shape[0]
    if rows == 0:
        return
    tile = tile_size(rows, vocab_size, processors(states.device))
    _rows_kernel[(rows, triton.cdiv(vocab_size, tile))](
        *automaton, states.contiguous(), out, targets, automaton.num_states, vocab_size, tile,
        WITH_TARGETS=with_targets, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def tile_size(rows: int, vocab_size: int, processors: int) -> int:
    """Return tokens a program: few enough that the programs fill the GPU, many enough that they do it in one wave."""
    wanted = rows * vocab_size // (processors * PROGRAMS_PER_PROCESSOR)
    return min(max(triton.next_power_of_2(max(wanted, 1)), SMALLEST_TILE), LARGEST_TILE)


@functools.cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit
def lower_bound(arc_tokens, low, high, token):
    """Return first arc of a state whose token is at least `token`. Scalars."""
    while low < high:
        middle = low + (high - low) // 2
        if tl.load(arc_tokens + middle).to(tl.int32) < token:
            low = middle + 1
        else:
            high = middle
    return low


@triton.jit
def is_dense(arc_tokens, low, high, vocab_size):
    """Return whether a state has an arc for every token; tokens ascend, so the V-th one tells. Scalars."""
    dense = high - low >= vocab_size
    if dense:
        dense = tl.load(arc_tokens + low + vocab_size - 1).to(tl.int32) == vocab_size - 1
    return dense


@triton.jit
def fill_row(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    state, out, targets, first, last, vocab_size, WITH_TARGETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write scores (and targets) of the tokens `first .. last - 1` in a state to `out + token` (and `targets + token`)."""
    lanes = tl.arange(0, BLOCK)
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
    level = depth
    if is_dense(arc_tokens, low, high, vocab_size):
        for block in range(first, last, BLOCK):
            tokens = block + lanes
            inside = tokens < last
            weights = tl.load(arc_weights + low + tokens, mask=inside, other=0.0)
            tl.store(out + tokens, score + weights, mask=inside)
            if WITH_TARGETS:
                tl.store(targets + tokens, tl.load(arc_targets + low + tokens, mask=inside, other=0), mask=inside)
        level = depth - 1
    else:
        default = score + tl.load(backoff_weights + root)
        for block in range(first, last, BLOCK):
            tokens = block + lanes
            inside = tokens < last
            tl.store(out + tokens, tl.zeros((BLOCK,), tl.float32) + default, mask=inside)
            if WITH_TARGETS:
                tl.store(targets + tokens, tl.zeros((BLOCK,), tl.int32) + root, mask=inside)
    while level >= 0:
        current = state
        score = 0.0
        shorter = 0
        while shorter < level:  # the chain is in the cache by now: walking it again is cheaper than keeping it
            score += tl.load(backoff_weights + current)
            current = tl.load(backoff_states + current)
            shorter += 1
        low = tl.load(arc_offsets + current)
        high = tl.load(arc_offsets + current + 1)
        # Of many arcs only those of the tile are read. (Written without `if`: Triton before 3.6 fails to compile that.)
        many = high - low > BLOCK
        begin = lower_bound(arc_tokens, low, tl.where(many, high, low), first)
        end = lower_bound(arc_tokens, tl.where(many, begin, high), high, last)
        tl.debug_barrier()  # what a shorter context wrote must be there before it is overwritten
        for block in range(begin, end, BLOCK):
            arcs = block + lanes
            inside = arcs < end
            tokens = tl.load(arc_tokens + arcs, mask=inside, other=0).to(tl.int32)
            weights = tl.load(arc_weights + arcs, mask=inside, other=0.0)
            wanted = inside & (tokens >= first) & (tokens < last)
            tl.store(out + tokens, score + weights, mask=wanted)
            if WITH_TARGETS:
                tl.store(targets + tokens, tl.load(arc_targets + arcs, mask=inside, other=0), mask=wanted)
        level -= 1


@triton.jit
def _rows_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, out, targets, num_states, vocab_size, tile, WITH_TARGETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * tile
    last = tl.minimum(first + tile, vocab_size)
    state = tl.load(states + row)
    if (state >= 0) & (state < num_states):
        fill_row(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            state, out + row * vocab_size, targets + row * vocab_size, first, last, vocab_size, WITH_TARGETS, BLOCK,
        )  # fmt: skip
    else:
        for block in range(first, last, BLOCK):
            tokens = block + tl.arange(0, BLOCK)
            tl.store(out + row * vocab_size + tokens, tl.full((BLOCK,), float("nan"), tl.float32), mask=tokens < last)
            if WITH_TARGETS:
                tl.store(targets + row * vocab_size + tokens, tl.zeros((BLOCK,), tl.int32) + state, mask=tokens < last)


@triton.jit
def step_rows(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, tokens, active, num_states, vocab_size,
):  # fmt: skip
    """Return score and next state of one token a row, for a block of rows; rows that aren't active score 0 and stay."""
    valid = (states >= 0) & (states < num_states)
    looking = active & valid & (tokens >= 0) & (tokens < vocab_size)
    scores = tl.where(active & (valid == 0), float("nan"), 0.0)
    current = tl.where(valid, states, 0)
    next_states = states
    while tl.max(looking.to(tl.int32), axis=0) > 0:
        low = tl.load(arc_offsets + current, mask=looking, other=0)
        end = tl.load(arc_offsets + current + 1, mask=looking, other=0)
        backoff = tl.load(backoff_states + current, mask=looking, other=0)
        weight = tl.load(backoff_weights + current, mask=looking, other=0.0)
        at_root = backoff == current
        # A root that has every token needs no search.
        dense = looking & at_root & (end - low >= vocab_size)
        last = tl.load(arc_tokens + low + vocab_size - 1, mask=dense, other=-1).to(tl.int32)
        dense = dense & (last == vocab_size - 1)
        low = tl.where(dense, low + tokens, low)
        high = tl.where(dense, low, end)
        while tl.max((looking & (low < high)).to(tl.int32), axis=0) > 0:
            searching = looking & (low < high)
            middle = low + (high - low) // 2
            right = tl.load(arc_tokens + middle, mask=searching, other=0).to(tl.int32) < tokens
            low = tl.where(searching & right, middle + 1, low)
            high = tl.where(searching & (right == 0), middle, high)
        there = looking & (low < end)
        found = there & (tl.load(arc_tokens + low, mask=there, other=-1).to(tl.int32) == tokens)
        scores += tl.load(arc_weights + low, mask=found, other=0.0)
        scores += tl.where(looking & (found == 0), weight, 0.0)
        targets = tl.load(arc_targets + low, mask=found, other=0)
        next_states = tl.where(found, targets, tl.where(looking & at_root, current, next_states))
        looking = looking & (found == 0) & (at_root == 0)
        current = tl.where(looking, backoff, current)
    return scores, next_states


@triton.jit
def _step_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, tokens, out, targets, num_rows, num_states, vocab_size, ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    row_states = tl.load(states + rows, mask=inside, other=0)
    row_tokens = tl.load(tokens + rows, mask=inside, other=-1)
    scores, next_states = step_rows(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
        row_states, row_tokens, inside, num_states, vocab_size,
    )  # fmt: skip
    tl.store(out + rows, scores, mask=inside)
    tl.store(targets + rows, next_states, mask=inside)


@triton.jit
def _walk_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, token_ids, lengths, out, last, num_rows, longest, num_states, vocab_size, ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    row_states = tl.load(states + rows, mask=inside, other=0)
    row_lengths = tl.load(lengths + rows, mask=inside, other=0)
    starts = rows.to(tl.int64) * longest
    for position in range(0, tl.max(row_lengths, axis=0)):
        active = inside & (position < row_lengths)
        tokens = tl.load(token_ids + starts + position, mask=active, other=-1)
        scores, row_states = step_rows(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            row_states, tokens, active, num_states, vocab_size,
        )  # fmt: skip
        tl.store(out + starts + position, scores, mask=active)
    tl.store(last + rows, row_states, mask=inside)


@triton.jit
def _states_after_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    first_states, roots, token_ids, lengths, last,
    num_rows, longest, context_length, num_states, vocab_size, ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    row_lengths = tl.load(lengths + rows, mask=inside, other=0)
    starts = rows.to(tl.int64) * longest
    begin = row_lengths
    seen = tl.zeros((ROWS,), tl.int32)
    while tl.max(((begin > 0) & (seen < context_length)).to(tl.int32), axis=0) > 0:
        going = (begin > 0) & (seen < context_length)
        begin = tl.where(going, begin - 1, begin)
        tokens = tl.load(token_ids + starts + begin, mask=going, other=-1)
        seen += (going & (tokens >= 0) & (tokens < vocab_size)).to(tl.int32)
    # A context of full length needs no other tokens before it; a shorter one hangs on the start of the sentence.
    first_state = tl.load(first_states + rows, mask=inside, other=0)
    root = tl.load(roots + rows, mask=inside, other=0)
    row_states = tl.where(seen == context_length, root, first_state)
    while tl.max((begin < row_lengths).to(tl.int32), axis=0) > 0:
        active = begin < row_lengths
        tokens = tl.load(token_ids + starts + begin, mask=active, other=-1)
        _, row_states = step_rows(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            row_states, tokens, active, num_states, vocab_size,
        )  # fmt: skip
        begin += active.to(tl.int32)
    tl.store(last + rows, row_states, mask=inside)


AUTOMATON_POINTERS = ("arc_offsets", "arc_tokens", "arc_weights", "arc_targets", "backoff_states", "backoff_weights")


def automaton_signature(token_type: str) -> dict[str, str]:
    types = ("*i32", token_type, "*fp32", "*i32", "*i32", "*fp32")
    return dict(zip(AUTOMATON_POINTERS, types, strict=True))


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with the argument types and constants it is launched with, for compiling ahead of time."""
    for token_type in ("*i16", "*i32"):
        automaton = automaton_signature(token_type)
        for with_targets in (False, True):
            arguments = {"states": "*i32", "out": "*fp32", "targets": "*i32" if with_targets else "*fp32"}
            sizes = dict.fromkeys(("num_states", "vocab_size", "tile"), "i32")
            yield _rows_kernel, automaton | arguments | sizes, {"WITH_TARGETS": with_targets, "BLOCK": BLOCK}
        arguments = {"states": "*i32", "tokens": "*i32", "out": "*fp32", "targets": "*i32"}
        sizes = dict.fromkeys(("num_rows", "num_states", "vocab_size"), "i32")
        yield _step_kernel, automaton | arguments | sizes, {"ROWS": ROWS_PER_WARP}
        arguments = {"states": "*i32", "token_ids": "*i32", "lengths": "*i32", "out": "*fp32", "last": "*i32"}
        sizes = dict.fromkeys(("num_rows", "longest", "num_states", "vocab_size"), "i32")
        yield _walk_kernel, automaton | arguments | sizes, {"ROWS": ROWS_PER_WARP}
        arguments = dict.fromkeys(("first_states", "roots", "token_ids", "lengths", "last"), "*i32")
        sizes = dict.fromkeys(("num_rows", "longest", "context_length", "num_states", "vocab_size"), "i32")
        yield _states_after_kernel, automaton | arguments | sizes, {"ROWS": ROWS_PER_WARP}
