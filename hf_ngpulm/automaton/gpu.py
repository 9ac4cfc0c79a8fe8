"""Answer queries with Triton kernels, which also run on CPU tensors in Triton's interpreter (TRITON_INTERPRET=1).

A query mostly waits for memory. If the address of a load is the result of another load, both together take as long as thousands
of additions. So each kernel issues as many loads as possible at the same time.

Full-vocabulary queries run one program per tile of a row's vocabulary. The program walks the backoff chain once and loads the
data of each context on the way. Then it writes the scores of the root. After this, the program overwrites scores with the
scores of longer and longer contexts, with a barrier between contexts. So it needs no mask of the tokens that already have a
score. Queries about single tokens assign a few rows to each warp, which reads many arcs of each row at once. A kernel could
report an invalid state only by making the host wait. So an invalid state scores NaN, and no kernel follows its arcs.

The kernels negate conditions as `(x == 0)`, because the interpreter of Triton 3.2 doesn't support `~` on conditions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..engines.devices import current
from .tensors import AutomatonTensors

# Options of all launches: no thread fuses a product with a sum (FMA). If two threads add their products, each thread would fuse
# its own product, and the two results would differ in the last bits.
EXACT: dict[str, int] = {"enable_fp_fusion": False}
# Without this option NVIDIA's compiler uses fewer registers and keeps the other values in memory. Other GPUs lack the option.
REGISTERS: dict[str, int] = EXACT if torch.version.hip else EXACT | {"maxnreg": 128}
ROWS_PER_WARP = 8
ONE_WARP: dict[str, int] = {"ROWS": ROWS_PER_WARP, "num_warps": 1, **REGISTERS}
LANES = tl.constexpr(16)  # arcs of a row that are read at once
# A program writes the scores of at least this many tokens; fewer aren't worth its walk along the chain.
SMALLEST_TILE = 1024
LARGEST_TILE = 16384
BLOCK = 1024
PROGRAMS_PER_PROCESSOR = 8  # resident programs, each with 4 warps and up to 64 registers per thread
CHAIN = tl.constexpr(32)  # contexts of a chain that are kept in registers


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
        with current(states.device):
            _step_kernel[(triton.cdiv(rows, ROWS_PER_WARP),)](
                *automaton, states.contiguous(), tokens.contiguous(), out, targets, rows, automaton.num_states, vocab_size,
                **ONE_WARP,
            )  # fmt: skip
    return out, targets


def walk(
    automaton: AutomatonTensors, states: Tensor, token_ids: Tensor, lengths: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    rows, longest = token_ids.shape
    out = torch.zeros((rows, longest), dtype=torch.float32, device=states.device)
    last = torch.empty(rows, dtype=torch.int32, device=states.device)
    if rows:
        with current(states.device):
            _walk_kernel[(triton.cdiv(rows, ROWS_PER_WARP),)](
                *automaton, states.contiguous(), token_ids.contiguous(), lengths.contiguous(), out, last,
                rows, longest, automaton.num_states, vocab_size, **ONE_WARP,
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
        with current(starts.device):
            _states_after_kernel[(triton.cdiv(rows, ROWS_PER_WARP),)](
                *automaton, starts.contiguous(), roots.contiguous(), token_ids.contiguous(), lengths.contiguous(), last,
                rows, longest, context_length, automaton.num_states, vocab_size, **ONE_WARP,
            )  # fmt: skip
    return last


def _launch_rows(
    automaton: AutomatonTensors, states: Tensor, vocab_size: int, out: Tensor, targets: Tensor, with_targets: bool
) -> None:
    rows = states.shape[0]
    if rows == 0:
        return
    tile = tile_size(rows, vocab_size, processors(states.device))
    with current(states.device):
        _rows_kernel[(rows, triton.cdiv(vocab_size, tile))](
            *automaton, states.contiguous(), out, targets, automaton.num_states, vocab_size, tile,
            WITH_TARGETS=with_targets, BLOCK=BLOCK, num_warps=4, **EXACT,
        )  # fmt: skip


def tile_size(rows: int, vocab_size: int, processors: int) -> int:
    """Return the number of tokens per program, on a GPU with `processors` multiprocessors.

    The number is so small that the programs fill the GPU, and so large that most programs run at the same time.
    """
    wanted = rows * vocab_size // (processors * PROGRAMS_PER_PROCESSOR)
    return min(max(triton.next_power_of_2(max(wanted, 1)), SMALLEST_TILE), LARGEST_TILE)


@functools.cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit
def context(arc_offsets, backoff_states, backoff_weights, states, mask):
    """Return four values for each state of a block: the first arc, the end of the arcs, the backoff state and weight."""
    low = tl.load(arc_offsets + states, mask=mask, other=0)
    end = tl.load(arc_offsets + states + 1, mask=mask, other=0)
    backoff = tl.load(backoff_states + states, mask=mask, other=0)
    weight = tl.load(backoff_weights + states, mask=mask, other=0.0)
    return low, end, backoff, weight


@triton.jit
def chain_of(arc_offsets, backoff_states, backoff_weights, state):
    """Walk from a state along the backoff arcs to the root. The states on the way are a chain of contexts.

    Returns:
        Nine values. The first value is the number of contexts before the root. Three values have an entry for each context
        `0 .. CHAIN - 1` steps from the state: the first arc, the end of the arcs (int32 `[CHAIN]`), and the sum of backoff
        weights on the way to the context (float32 `[CHAIN]`). The same three values follow for the root, as scalars. The last
        two values are the root and the root's backoff weight.
    """
    links = tl.arange(0, CHAIN)
    lows = tl.zeros((CHAIN,), tl.int32)
    ends = tl.zeros((CHAIN,), tl.int32)
    sums = tl.zeros((CHAIN,), tl.float32)
    depth = 0
    score = 0.0
    root = state
    low = tl.load(arc_offsets + root)
    end = tl.load(arc_offsets + root + 1)
    backoff = tl.load(backoff_states + root)
    weight = tl.load(backoff_weights + root)
    while backoff != root:
        here = links == depth
        lows = tl.where(here, low, lows)
        ends = tl.where(here, end, ends)
        sums = tl.where(here, score, sums)
        score += weight
        root = backoff
        depth += 1
        low = tl.load(arc_offsets + root)
        end = tl.load(arc_offsets + root + 1)
        backoff = tl.load(backoff_states + root)
        weight = tl.load(backoff_weights + root)
    here = links == depth
    lows = tl.where(here, low, lows)
    ends = tl.where(here, end, ends)
    sums = tl.where(here, score, sums)
    return depth, lows, ends, sums, low, end, score, root, weight


@triton.jit
def link_of(arc_offsets, backoff_states, backoff_weights, state, lows, ends, sums, level):
    """Return three values for the context `level` backoff steps from a state: the first arc, the end of the arcs, and the sum
    of backoff weights on the way. `lows`, `ends`, `sums`: from `chain_of`.
    """
    here = tl.arange(0, CHAIN) == level
    low = tl.sum(tl.where(here, lows, 0), axis=0)
    end = tl.sum(tl.where(here, ends, 0), axis=0)
    score = tl.sum(tl.where(here, sums, 0.0), axis=0)
    # The part of a chain beyond `CHAIN` is walked again. (Without `if`: Triton before 3.6 fails to compile a loop inside one.)
    is_far = level >= CHAIN
    steps = tl.where(is_far, level, 0)
    current = state
    walked = 0.0
    shorter = 0
    while shorter < steps:
        walked += tl.load(backoff_weights + current)
        current = tl.load(backoff_states + current)
        shorter += 1
    low = tl.where(is_far, tl.load(arc_offsets + current, mask=is_far, other=0), low)
    end = tl.where(is_far, tl.load(arc_offsets + current + 1, mask=is_far, other=0), end)
    return low, end, tl.where(is_far, walked, score)


@triton.jit
def arcs_between(arc_tokens, low, end, first, last, narrow, BLOCK: tl.constexpr):
    """Narrow the range of a context's arcs, `low .. end - 1`. Return the bounds (scalars) of a smaller range, which has all
    arcs for the tokens `first .. last - 1`, and few other arcs.

    If `narrow` is true and the context has many arcs, `BLOCK` arcs at equal distances are read at once to narrow the range.
    """
    lanes = tl.arange(0, BLOCK)
    begin = low
    count = end - low
    # (A loop of at most one round: Triton 3.3 can't compile it as an `if`.)
    for _ in range(0, tl.where(narrow & (count > BLOCK), 1, 0)):
        apart = (count + BLOCK - 1) // BLOCK
        places = lanes * apart
        inside = places < count
        tokens = tl.load(arc_tokens + low + places, mask=inside, other=0).to(tl.int32)
        # One sum holds two counts: tokens below `first` in the lower 16 bits, tokens below `last` above them.
        below = (inside & (tokens < first)).to(tl.int32) + ((inside & (tokens < last)).to(tl.int32) << 16)
        below = tl.sum(below, axis=0)
        begin = low + tl.maximum((below & 0xFFFF) - 1, 0) * apart
        end = tl.minimum(low + (below >> 16) * apart, end)
    return begin, end


@triton.jit
def fill_row(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    state, out, targets, first, last, vocab_size, WITH_TARGETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the scores of the tokens `first .. last - 1` in a state to `out + token`. If WITH_TARGETS, write the next states to
    `targets + token`.
    """
    lanes = tl.arange(0, BLOCK)
    depth, lows, ends, sums, low, end, score, root, weight = chain_of(arc_offsets, backoff_states, backoff_weights, state)
    # Tokens ascend, so the V-th arc shows whether every token has an arc. It is loaded at the same time as the weights.
    full = end - low >= vocab_size
    readable = tl.where(full, vocab_size, 0)
    dense = tl.load(arc_tokens + low + vocab_size - 1, mask=full, other=-1).to(tl.int32) == vocab_size - 1
    for block in range(first, last, BLOCK):
        tokens = block + lanes
        inside = tokens < last
        weights = tl.load(arc_weights + low + tokens, mask=inside & (tokens < readable), other=0.0)
        tl.store(out + tokens, score + tl.where(dense, weights, weight), mask=inside)
        if WITH_TARGETS:
            arc_ends = tl.load(arc_targets + low + tokens, mask=inside & (tokens < readable), other=0)
            tl.store(targets + tokens, tl.where(dense, arc_ends, root), mask=inside)
    level = tl.where(dense, depth - 1, depth)
    while level >= 0:
        low, end, score = link_of(arc_offsets, backoff_states, backoff_weights, state, lows, ends, sums, level)
        begin, end = arcs_between(arc_tokens, low, end, first, last, last - first < vocab_size, BLOCK)
        tl.debug_barrier()  # the scores of a shorter context must be written before they are overwritten
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


# Sizes divisible by 16 aren't specialised either. If they were, each thread would store four adjacent scores, and the loads of
# neighbouring threads (weights at arbitrary addresses) would be four apart.
@triton.jit(do_not_specialize=["num_states", "vocab_size", "tile"])
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
def find_arcs(arc_tokens, low, size, tokens):
    """Search the arcs of each row's context for the row's token. Return an arc per row, and whether it is the arc of the token.

    `low` is the first arc of each context, `size` the number of its arcs. While many arcs remain, each round reads `LANES` arcs
    at equal distances. Binary search is faster among the last few arcs, because they are neighbours in memory.
    """
    lanes = tl.arange(0, LANES)[None, :]
    while tl.max(size, axis=0) > LANES:
        apart = (size + LANES - 1) // LANES
        places = lanes * apart[:, None]
        inside = places < size[:, None]
        there = tl.load(arc_tokens + low[:, None] + places, mask=inside, other=0).to(tl.int32)
        not_above = tl.sum((inside & (there <= tokens[:, None])).to(tl.int32), axis=1)
        skipped = tl.maximum(not_above - 1, 0) * apart
        low = low + skipped
        size = tl.where(size > LANES, tl.minimum(apart, size - skipped), size - skipped)
    while tl.max(size, axis=0) > 1:
        half = size // 2
        later = (half > 0) & (tl.load(arc_tokens + low + half, mask=half > 0, other=0).to(tl.int32) <= tokens)
        low += tl.where(later, half, 0)
        size = tl.where(later | (half == 0), size - half, half)
    return low, (size > 0) & (tl.load(arc_tokens + low, mask=size > 0, other=-1).to(tl.int32) == tokens)


@triton.jit
def step_rows(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, tokens, active, num_states, vocab_size,
):  # fmt: skip
    """Return the score and next state of one token per row, for a block of rows. Inactive rows score 0 and keep their state."""
    valid = (states >= 0) & (states < num_states)
    looking = active & valid & (tokens >= 0) & (tokens < vocab_size)
    scores = tl.where(active & (valid == 0), float("nan"), 0.0)
    current = tl.where(valid, states, 0)
    next_states = states
    hits = tokens * 0 - 1  # the arc that each row follows
    low, end, backoff, weight = context(arc_offsets, backoff_states, backoff_weights, current, looking)
    while tl.max(looking.to(tl.int32), axis=0) > 0:
        # The next context is loaded before it is known whether it is needed.
        next_low, next_end, next_backoff, next_weight = context(
            arc_offsets, backoff_states, backoff_weights, backoff, looking
        )  # fmt: skip
        at_root = backoff == current
        # In a root with an arc for every token, the index of an arc is its token.
        guessed = looking & at_root & (tokens < end - low)
        guessed = guessed & (tl.load(arc_tokens + low + tokens, mask=guessed, other=-1).to(tl.int32) == tokens)
        searched = looking & (guessed == 0)
        arcs, found = find_arcs(arc_tokens, low, tl.where(searched, end - low, 0), tokens)
        found = found | guessed
        hits = tl.where(found, tl.where(guessed, low + tokens, arcs), hits)
        looking = looking & (found == 0)
        scores += tl.where(looking, weight, 0.0)
        next_states = tl.where(looking & at_root, current, next_states)
        looking = looking & (at_root == 0)
        current = tl.where(looking, backoff, current)
        low, end, backoff, weight = next_low, next_end, next_backoff, next_weight
    scores += tl.load(arc_weights + hits, mask=hits >= 0, other=0.0)
    return scores, tl.where(hits >= 0, tl.load(arc_targets + hits, mask=hits >= 0, other=0), next_states)


@triton.jit(do_not_specialize=["num_rows", "num_states", "vocab_size"])
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


@triton.jit(do_not_specialize=["num_rows", "longest", "num_states", "vocab_size"])
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


@triton.jit(do_not_specialize=["num_rows", "longest", "context_length", "num_states", "vocab_size"])
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
    back = 1 + tl.arange(0, LANES)[None, :]
    while tl.max(((begin > 0) & (seen < context_length)).to(tl.int32), axis=0) > 0:
        places = begin[:, None] - back
        there = (places >= 0) & (seen < context_length)[:, None]
        earlier = tl.load(token_ids + starts[:, None] + places, mask=there, other=-1)
        known = ((earlier >= 0) & (earlier < vocab_size)).to(tl.int32)
        needed = there & (seen[:, None] + tl.cumsum(known, axis=1) - known < context_length)
        begin -= tl.sum(needed.to(tl.int32), axis=1)
        seen += tl.sum(tl.where(needed, known, 0), axis=1)
    # A context of full length doesn't depend on earlier tokens; a shorter context depends on the start of the sentence.
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
    """Yield every kernel with its argument types and constants, for compiling ahead of time."""
    for token_type in ("*i16", "*i32"):
        automaton = automaton_signature(token_type)
        for with_targets in (False, True):
            arguments = {"states": "*i32", "out": "*fp32", "targets": "*i32" if with_targets else "*fp32"}
            sizes = dict.fromkeys(("num_states", "vocab_size", "tile"), "i32")
            yield _rows_kernel, automaton | arguments | sizes, {"WITH_TARGETS": with_targets, "BLOCK": BLOCK, **EXACT}
        arguments = {"states": "*i32", "tokens": "*i32", "out": "*fp32", "targets": "*i32"}
        sizes = dict.fromkeys(("num_rows", "num_states", "vocab_size"), "i32")
        yield _step_kernel, automaton | arguments | sizes, ONE_WARP
        arguments = {"states": "*i32", "token_ids": "*i32", "lengths": "*i32", "out": "*fp32", "last": "*i32"}
        sizes = dict.fromkeys(("num_rows", "longest", "num_states", "vocab_size"), "i32")
        yield _walk_kernel, automaton | arguments | sizes, ONE_WARP
        arguments = dict.fromkeys(("first_states", "roots", "token_ids", "lengths", "last"), "*i32")
        sizes = dict.fromkeys(("num_rows", "longest", "context_length", "num_states", "vocab_size"), "i32")
        yield _states_after_kernel, automaton | arguments | sizes, ONE_WARP
