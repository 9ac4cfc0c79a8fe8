"""CTC prefix beam search with language models on the GPU, with two Triton kernels.

`_peaks_kernel` normalises all frames of all rows in parallel, and stores the highest logit of each block of classes.
`_search_kernel` runs a program per utterance, which walks the frames. There are no launches per frame, and nothing waits for
the host.

The search skips blocks of classes that can't give a new prefix. The score of an extension is at most the prefix's score, plus
the block's highest acoustic score, plus the best LM score in the prefix's state. If this bound isn't above the worst of the
best K scores so far, the extension can't enter the beam, so skipping it doesn't change the result. The CPU engine does the
same.

A program keeps the beam's small arrays in registers, padded to a power of two. Values that change only for new prefixes stay in
the result's tensors. A place of the beam holds one prefix. All places are scored in parallel, in `[place, token]` tiles. A
group is a subset of a place's tokens. Each group offers its best extension, and the program chooses among the offers, which fit
in a warp.

A line of global memory holds the LM scores and target states of all tokens in a prefix's state. The program writes the lines of
all new prefixes at once, at the first frame that may extend them. It writes level by level, from the shortest context to the
longest, so that longer contexts overwrite shorter ones.

Within `if`, the result of a Triton function is assigned to a variable before use, because Triton 3.3 would otherwise take the
function's `return` for a `return` of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...automaton.gpu import EXACT, automaton_signature
from ...automaton.tensors import AutomatonTensors
from ...engines.devices import current
from . import BLANK, INSIDE, BeamFrames, BeamRules, BeamState, cpu

MOST_ROWS = tl.constexpr(16)  # maximum number of lines that are filled at a time
NOTHING = tl.constexpr((0x807FFFFF - 2**32) << 32)  # key of the score -inf at index 0
HIGHEST_KEY = tl.constexpr(2**63 - 1)
STAYING = tl.constexpr(1 << 30)  # keys of extensions have lower indices, keys of prefixes that stay have higher ones
MOST_GROUPS = 32  # the number of threads in a warp, so that finding the best group needs no barrier between warps
LABEL_BLANK, LABEL_INSIDE = tl.constexpr(BLANK), tl.constexpr(INSIDE)
FEWEST_PLACES = 4
TILE = 2048  # maximum size of a tile, in places times tokens
SMALLEST_BLOCK = 16
ELEMENTS_PER_WARP = 256
MOST_WARPS = 16
REGISTERS = 65536  # number of registers of a multiprocessor
MOST_BEAMS = 128  # the kernel compares all pairs of places, so larger beams would need too many registers


def ctc_beam(
    automaton: AutomatonTensors, state: BeamState, logits: Tensor, lengths: Tensor, rules: BeamRules
) -> tuple[BeamState, BeamFrames]:
    weights, bonuses, unscored, blank, vocab_size, threshold, skip, text_hashes = rules
    batch_size, frames, classes = logits.shape
    num_beams, num_automata = state.lm_states.shape[1:]
    device = logits.device
    if num_beams > MOST_BEAMS:
        new_state, happened = cpu.ctc_beam(*_moved((automaton, state, logits, lengths, rules), torch.device("cpu")))
        return _moved(new_state, device), _moved(happened, device)
    state = BeamState(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in state))
    links = torch.arange(num_beams, dtype=torch.int32, device=device).repeat(batch_size, frames, 1)
    labels = torch.full_like(links, BLANK)
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32, device=device)
    if batch_size and frames and classes:
        tiles = tiling(num_beams, classes)
        lines = room_for_lines(state.lm_states, tiles["PLACES"], min(vocab_size, classes))
        with current(device):
            peaks = peaks_of(logits, lengths.contiguous(), blank, tiles)
            _search_kernel[(batch_size,)](
                *automaton, logits, *logits.stride(), *peaks,
                lengths.contiguous(), weights.contiguous(), bonuses.contiguous(), unscored.contiguous(),
                state.texts if text_hashes is None else text_hashes.contiguous(),
                *state, *lines, links, labels, bad_frames,
                frames, classes, num_beams, blank, vocab_size, float(threshold), float(skip),
                NUM_AUTOMATA=num_automata, JOINS=text_hashes is not None, **tiles,
            )  # fmt: skip
    return state, BeamFrames(links, labels, bad_frames)


def _moved(values: Any, device: torch.device) -> Any:
    """Return tensors, or tuples with tensors, on another device."""
    if isinstance(values, tuple):
        moved = (_moved(value, device) for value in values)
        return type(values)(*moved) if hasattr(values, "_fields") else tuple(moved)
    return values.to(device) if isinstance(values, Tensor) else values


def tiling(num_beams: int, classes: int) -> dict[str, int]:
    """Return the kernel's tile sizes, number of warps and compiler options for `num_beams` prefixes and `classes` classes."""
    places = max(triton.next_power_of_2(num_beams), FEWEST_PLACES)
    block = max(min(triton.next_power_of_2(classes), TILE // places), SMALLEST_BLOCK)
    groups = min(max(places, MOST_GROUPS), places * block)
    num_warps = min(max(places * max(block, places // 4) // ELEMENTS_PER_WARP, 1), MOST_WARPS)
    # One program gets all registers of a multiprocessor. By default, NVIDIA's assembler sometimes uses half of the registers
    # and spills values to memory. AMD's compiler doesn't have the option `maxnreg`.
    options = EXACT if torch.version.hip else EXACT | {"maxnreg": min(REGISTERS // (32 * num_warps), 255)}
    return {"PLACES": places, "BLOCK": block, "GROUPS": groups, "num_warps": num_warps, **options}


def peaks_of(logits: Tensor, lengths: Tensor, blank: int, tiles: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return three tensors: the logsumexp of each frame's logits, `[B, T]`; each frame's highest logit without the blank, `[B,
    T]`; and the highest logit of each block of classes, `[B, T, blocks]`.
    """
    batch_size, frames, classes = logits.shape
    normalisers = torch.empty((batch_size, frames), device=logits.device)
    frame_peaks = torch.empty_like(normalisers)
    block_peaks = torch.empty((batch_size, frames, triton.cdiv(classes, tiles["BLOCK"])), device=logits.device)
    with current(logits.device):
        _peaks_kernel[(batch_size * frames,)](
            logits, *logits.stride(), lengths, normalisers, frame_peaks, block_peaks, frames, classes, blank,
            BLOCK=tiles["BLOCK"], num_warps=1, **EXACT,
        )  # fmt: skip
    return normalisers, frame_peaks, block_peaks


def room_for_lines(lm_states: Tensor, places: int, candidates: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return empty lines for a search that begins with the states `lm_states`, `[B, K, M]`. A line belongs to the states of one
    prefix. For each token in `0 .. candidates - 1`, the line holds the score and the target state.

    The result has four tensors: for each line the states, an upper bound of the token scores, the tokens' scores and the
    tokens' targets. There are twice as many lines as places, so a line stays valid for some time after its prefix has left the
    beam.
    """
    batch_size, _, num_automata = lm_states.shape
    line_states = torch.full((batch_size, 2 * places, num_automata), -1, dtype=torch.int32, device=lm_states.device)
    line_peaks = torch.empty((batch_size, 2 * places), device=lm_states.device)
    line_scores = torch.empty((*line_states.shape, candidates), device=lm_states.device)
    return line_states, line_peaks, line_scores, torch.empty_like(line_scores, dtype=torch.int32)


# These sizes change from batch to batch, and kernels compiled for multiples of 16 aren't faster.
@triton.jit(do_not_specialize=["row_stride", "frame_stride", "frames", "classes", "blank"])
def _peaks_kernel(
    logits, row_stride, frame_stride, class_stride, lengths, normalisers, frame_peaks, block_peaks, frames, classes, blank,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write each frame's logsumexp, its highest logit without the blank, and the highest logit of each block of classes."""
    at = tl.program_id(0).to(tl.int64)
    row = at // frames
    frame = at % frames
    if frame < tl.load(lengths + row):
        x = logits + row * row_stride + frame * frame_stride
        num_blocks = (classes + BLOCK - 1) // BLOCK
        highest = tl.load(x + (row * 0 + blank) * class_stride).to(tl.float32)
        frame_peak = float("-inf")
        total = tl.zeros((BLOCK,), tl.float32)
        for block in range(0, num_blocks):
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            values = tl.load(x + tokens.to(tl.int64) * class_stride, mask=tokens < classes, other=float("-inf")).to(tl.float32)
            peak = tl.max(tl.where(tokens == blank, float("-inf"), values), axis=0)
            tl.store(block_peaks + at * num_blocks + block, peak)
            frame_peak = tl.maximum(frame_peak, peak)
            new_highest = tl.maximum(highest, peak)
            shift = tl.where(new_highest > float("-inf"), new_highest, 0.0)
            total = total * tl.exp(highest - shift) + tl.exp(values - shift)  # NaN stays NaN
            highest = new_highest
        tl.store(normalisers + at, tl.where(highest > float("-inf"), highest, 0.0) + tl.log(tl.sum(total, axis=0)))
        tl.store(frame_peaks + at, frame_peak)


@triton.jit
def _add(a, b):
    """Return log(exp(a) + exp(b))"""
    highest = tl.maximum(a, b)
    difference = tl.minimum(a, b) - tl.where(highest > float("-inf"), highest, 0.0)
    return highest + tl.log(1.0 + tl.exp(difference))


@triton.jit
def _extend_hash(hashes, tokens):
    mixed = (hashes + tokens.to(tl.int64) + 1) * 6364136223846793005 + 1442695040888963407
    return mixed ^ (mixed >> 29)


@triton.jit
def _take(values, at):
    """Return `values[at]`, or 0 where the index `at` is out of range. Up to 32 values stay in one warp, without a barrier."""
    is_place = (at >= 0) & (at < values.shape[0])
    return tl.where(is_place, tl.gather(values, tl.where(is_place, at, 0), 0), 0)


@triton.jit
def _key_of(scores, indices):
    """Return int64 keys that sort by score, then by index (in the lower 32 bits). NaN counts as -inf."""
    bits = tl.where(scores > float("-inf"), scores, float("-inf")).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | indices


@triton.jit
def _extension_index(tokens, order, PLACES: tl.constexpr):
    """Return the index that each extension has in its key (see `_key_of`). `order` is the rank of the prefix that is extended.

    Of equal scores, the highest index wins. So lower tokens have higher indices. For the same token, lower ranks have higher
    indices.
    """
    return STAYING - 1 - (tokens * PLACES + order)


@triton.jit
def _extension_of(keys, PLACES: tl.constexpr):
    """Return two values for the key of each extension: the token, and the rank of the prefix that is extended. This inverts
    `_extension_index`.
    """
    code = STAYING - 1 - keys.to(tl.int32)
    return code // PLACES, code % PLACES


@triton.jit
def _count_before(first, second, alive):
    """Sort the elements that are `alive` by `first`, then by `second`. Return each element's rank among these elements."""
    before = (first[None, :] < first[:, None]) | ((first[None, :] == first[:, None]) & (second[None, :] < second[:, None]))
    return tl.sum((before & alive[None, :]).to(tl.int32), axis=1)


@triton.jit
def _score_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _find_parents(hashes, parent_hashes, sizes, last, alive, num_beams, places, PLACES: tl.constexpr):
    """Return four values for each prefix. (The parent of a prefix is the prefix without its last token.)

    The values are the parent's place (-1 if the parent isn't in the beam), whether the parent ends in the same token as the
    prefix, the prefix's rank by hash, and the index with which `_key_of` makes the key of a prefix that stays in the beam.
    """
    inside = places < num_beams
    own = tl.load(hashes + places, mask=inside, other=0)
    own_size = tl.load(sizes + places, mask=inside, other=0)
    of_parent = tl.load(parent_hashes + places, mask=inside, other=0)
    alike = (of_parent[:, None] == own[None, :]) & (own_size[:, None] == own_size[None, :] + 1)
    alike = alike & alive[:, None] & alive[None, :]  # [child, parent]
    parents = tl.max(tl.where(alike, places[None, :], -1), axis=1)
    by_hash = _count_before(own, places, alive)
    staying = STAYING + tl.where(alive, PLACES - 1 - _count_before(last, of_parent, alive), places - PLACES)
    return parents, (_take(last, parents) == last) & (parents >= 0), by_hash, staying


@triton.jit
def _has_twins(texts, alive, places, inside):
    """Return whether any two prefixes that are `alive` have the same text. `texts` points to the hashes of the texts."""
    own = tl.load(texts + places, mask=inside, other=0)
    same = (own[:, None] == own[None, :]) & alive[:, None] & alive[None, :] & (places[:, None] < places[None, :])
    return tl.max(tl.max(same.to(tl.int32), axis=1), axis=0) > 0


@triton.jit
def _join_texts(texts, last, of_parent, added, by_blanks, by_tokens, places, PLACES: tl.constexpr):
    """Give the scores of each text to its best prefix (see `hf_ngpulm.search.ctc_beam`).

    `by_blanks` and `by_tokens` are log `p_b` and log `p_t` of the prefixes. `added` is the sum of LM scores and bonuses, and
    `of_parent` is the hash of each prefix's parent. Return the new `by_blanks` and `by_tokens`, and whether any prefix has lost
    both scores.
    """
    totals = _add(by_blanks, by_tokens)
    alive = totals > float("-inf")
    order = _count_before(last, of_parent, alive)
    keys = _key_of(totals + added, PLACES - 1 - order)
    same = (texts[:, None] == texts[None, :]) & alive[:, None] & alive[None, :]
    of_text = PLACES - 1 - tl.max(tl.where(same, keys[None, :], NOTHING), axis=1).to(tl.int32)
    of_text = _place_in_order(of_text, order, alive, places)
    same = same & (last[:, None] == last[None, :])
    of_token = PLACES - 1 - tl.max(tl.where(same, keys[None, :], NOTHING), axis=1).to(tl.int32)
    of_token = _place_in_order(of_token, order, alive, places)
    new_blanks = _gathered(by_blanks, of_text, alive, places)
    new_tokens = _gathered(by_tokens, of_token, alive, places)
    died = alive & (new_blanks == float("-inf")) & (new_tokens == float("-inf"))
    return new_blanks, new_tokens, tl.max(died.to(tl.int32), axis=0) > 0


@triton.jit
def _place_in_order(numbers, order, alive, places):
    """Return the places of the prefixes that have the ranks `numbers`. For a rank that no prefix has, return 0. `order` has
    each place's rank.
    """
    return tl.sum(tl.where((numbers[:, None] == order[None, :]) & alive[None, :], places[None, :], 0), axis=1)


@triton.jit
def _gathered(scores, to, alive, places):
    """Move scores to the places in `to`. Return for each place the logsumexp of the scores that were moved to this place."""
    values = tl.where((to[None, :] == places[:, None]) & alive[None, :], scores[None, :], float("-inf"))  # [to, from]
    highest = tl.max(values, axis=1)
    shift = tl.where(highest > float("-inf"), highest, 0.0)
    return highest + tl.log(tl.maximum(tl.sum(tl.exp(values - shift[:, None]), axis=1), 1e-30))


@triton.jit
def _fill_lines(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, active, line_scores, line_targets, starts, weight, blank, candidates, vocab_size,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the scores and targets of the tokens `0 .. candidates - 1` in the state of each active row. `starts` has the index
    in `line_scores` and `line_targets` at which the row's line begins.

    Return an upper bound of each row's best weighted token score: the highest score that was written, even if a longer context
    has overwritten it.
    """
    columns = tl.arange(0, BLOCK)
    best = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    root = states
    depth = tl.zeros((ROWS,), tl.int32)
    score = tl.zeros((ROWS,), tl.float32)
    backoff = tl.load(backoff_states + root, mask=active, other=0)
    climbing = active & (backoff != root)
    while tl.max(climbing.to(tl.int32), axis=0) > 0:
        score += tl.load(backoff_weights + root, mask=climbing, other=0.0)
        root = tl.where(climbing, backoff, root)
        depth += climbing.to(tl.int32)
        backoff = tl.load(backoff_states + root, mask=climbing, other=0)
        climbing = climbing & (backoff != root)
    low = tl.load(arc_offsets + root, mask=active, other=0)
    end = tl.load(arc_offsets + root + 1, mask=active, other=0)
    dense = active & (end - low >= vocab_size)
    last = tl.load(arc_tokens + low + vocab_size - 1, mask=dense, other=-1).to(tl.int32)
    dense = dense & (last == vocab_size - 1)
    default = score + tl.load(backoff_weights + root, mask=active & (dense == 0), other=0.0)
    for block in range(0, candidates, BLOCK):
        tokens = block + columns[None, :]
        inside = active[:, None] & (tokens < candidates)
        known = inside & dense[:, None]
        values = default[:, None] + tl.load(arc_weights + low[:, None] + tokens, mask=known, other=0.0)
        targets = tl.load(arc_targets + low[:, None] + tokens, mask=known, other=0)
        tl.store(line_scores + starts[:, None] + tokens, values, mask=inside)
        tl.store(line_targets + starts[:, None] + tokens, tl.where(known, targets, root[:, None]), mask=inside)
        best = tl.where(inside & (tokens != blank), tl.maximum(best, weight * values), best)
    level = tl.where(active, tl.where(dense, depth - 1, depth), -1)
    deepest = tl.max(level, axis=0)
    while deepest >= 0:
        current = states
        score = tl.zeros((ROWS,), tl.float32)
        for shorter in range(0, deepest):  # walking the cached chain of backoffs again costs less than storing it
            walking = shorter < level
            score += tl.load(backoff_weights + current, mask=walking, other=0.0)
            current = tl.where(walking, tl.load(backoff_states + current, mask=walking, other=0), current)
        low = tl.load(arc_offsets + current, mask=level >= 0, other=0)
        end = tl.load(arc_offsets + current + 1, mask=level >= 0, other=0)
        longest = tl.max(end - low, axis=0)
        tl.debug_barrier()  # a shorter context's writes must end before a longer context overwrites them
        for block in range(0, longest, BLOCK):
            arcs = low[:, None] + block + columns[None, :]
            inside = arcs < end[:, None]
            # Loads come first, so that their latencies overlap.
            tokens = tl.load(arc_tokens + arcs, mask=inside, other=0)
            values = tl.load(arc_weights + arcs, mask=inside, other=0.0)
            targets = tl.load(arc_targets + arcs, mask=inside, other=0)
            tokens = tokens.to(tl.int32)
            inside = inside & (tokens < candidates)
            values += score[:, None]
            tl.store(line_scores + starts[:, None] + tokens, values, mask=inside)
            tl.store(line_targets + starts[:, None] + tokens, targets, mask=inside)
            best = tl.where(inside & (tokens != blank), tl.maximum(best, weight * values), best)
        level -= 1
        deepest -= 1
    return tl.max(best, axis=1)


@triton.jit
def lines_of(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    lm_states, alive, lines, next_line, line_states, line_peaks, line_scores, line_targets,
    weights, blank, candidates, vocab_size,
    NUM_AUTOMATA: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Give a line to each prefix that has none (`lines` is -1). If a line already has the prefix's states, use this line.
    Otherwise fill an unused line.

    Return three values: each prefix's line, the line at which the next search for an unused line begins, and the best token
    score in each prefix's line.
    """
    NUM_LINES: tl.constexpr = 2 * PLACES
    ROWS: tl.constexpr = PLACES if PLACES < MOST_ROWS else MOST_ROWS
    # Number of columns that are filled at a time. With twice as many, the kernel spills registers.
    FILL: tl.constexpr = PLACES * BLOCK // ROWS // 2 if PLACES * BLOCK > 1024 else PLACES * BLOCK // ROWS
    places = tl.arange(0, PLACES)
    every = (tl.arange(0, NUM_LINES) + next_line) % NUM_LINES  # all lines, in the order in which they are reused
    without = alive & (lines < 0)
    held = without[:, None] & (every >= 0)[None, :]  # [place, line]
    alike = without[:, None] & without[None, :]  # [place, place]
    for m in tl.static_range(NUM_AUTOMATA):
        states = tl.load(lm_states + places * NUM_AUTOMATA + m, mask=without, other=-2)
        held = held & (states[:, None] == tl.load(line_states + every * NUM_AUTOMATA + m)[None, :])
        alike = alike & (states[:, None] == states[None, :])
    lines = tl.where(without, tl.max(tl.where(held, every[None, :], -1), axis=1), lines)
    # Prefixes with the same states share the line of the first one.
    first = tl.min(tl.where(alike, places[None, :], PLACES), axis=1)
    missing = alive & (lines < 0)
    leading = missing & (first == places)
    needed = tl.max(((lines[:, None] == every[None, :]) & alive[:, None]).to(tl.int32), axis=0)
    free = tl.where(needed > 0, -1, tl.cumsum(1 - needed, axis=0) - 1)  # number of each unused line
    turn = tl.where(leading, tl.cumsum(leading.to(tl.int32), axis=0) - 1, -2)
    own = tl.sum(tl.where(turn[:, None] == free[None, :], every[None, :], 0), axis=1)
    lines = tl.where(missing, _take(own, first), lines)
    count = tl.sum(leading.to(tl.int32), axis=0)
    tl.debug_barrier()  # all threads must have read the lines before they are rewritten
    for begin in range(0, count, ROWS):
        rows = begin + tl.arange(0, ROWS)
        active = rows < count
        turns = rows[:, None] == turn[None, :]
        places_of_rows = tl.sum(tl.where(turns, places[None, :], 0), axis=1)
        lines_of_rows = tl.sum(tl.where(turns, own[None, :], 0), axis=1)
        starts = lines_of_rows.to(tl.int64) * (NUM_AUTOMATA * candidates)
        row_peaks = tl.zeros((ROWS,), tl.float32)
        for m in tl.static_range(NUM_AUTOMATA):
            row_states = tl.load(lm_states + places_of_rows * NUM_AUTOMATA + m, mask=active, other=0)
            tl.store(line_states + lines_of_rows * NUM_AUTOMATA + m, row_states, mask=active)
            row_peaks += _fill_lines(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                row_states, active, line_scores, line_targets, starts + m * candidates,
                tl.load(weights + m), blank, candidates, vocab_size, ROWS, FILL,
            )  # fmt: skip
        tl.store(line_peaks + lines_of_rows, row_peaks, mask=active)
    tl.debug_barrier()
    return lines, (next_line + count) % NUM_LINES, tl.load(line_peaks + lines, mask=alive, other=0.0)


@triton.jit
def _best_extensions(
    x, class_stride, classes, normaliser, slack, block_peaks, num_blocks, blank,
    by_same, by_other, last, order, reach, highest_reach, worst, limits,
    line_scores, line_starts, weights, candidates, bonus, without_lm,
    NUM_AUTOMATA: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Return the highest key below each group's limit; `NOTHING` if there is none. A group is a subset of a place's tokens.

    A key holds the score of an extension and an index of the token and the place (see `_extension_index`). The score is the
    place's score (`by_same` for the place's last token, otherwise `by_other`), plus the token's log-probability, LM scores and
    bonus. Blocks that can't reach the score `worst` are skipped.
    """
    columns = tl.arange(0, BLOCK)
    below = tl.broadcast_to(limits[:, None], (GROUPS, PLACES * BLOCK // GROUPS))
    below = tl.reshape(below, (PLACES, BLOCK))
    keys = tl.full((PLACES, BLOCK), NOTHING, tl.int64)
    by_same, by_other, last, order = by_same[:, None], by_other[:, None], last[:, None], order[:, None]
    reach, line_starts = reach[:, None], line_starts[:, None]
    for block in range(0, num_blocks):
        peak = tl.load(block_peaks + block) + slack
        if peak + highest_reach > worst:
            tokens = block * BLOCK + columns
            log_probs = tl.load(x + tokens.to(tl.int64) * class_stride, mask=tokens < classes, other=float("-inf"))
            wanted = (reach + peak > worst) & (below > NOTHING)
            scored = wanted & (tokens < candidates)[None, :]
            extra = tl.zeros((PLACES, BLOCK), tl.float32)
            for m in tl.static_range(NUM_AUTOMATA):
                at = line_starts + m * candidates + tokens[None, :]
                weight = tl.load(weights + m)
                extra += weight * tl.load(line_scores + at, mask=scored, other=0.0)
            log_probs = tl.where(tokens == blank, float("-inf"), log_probs.to(tl.float32) - normaliser)
            extra += tl.where(tokens < candidates, bonus, bonus + without_lm)[None, :]
            scores = tl.where(last == tokens[None, :], by_same, by_other)
            scores = scores + log_probs[None, :] + extra
            of_block = _key_of(scores, _extension_index(tokens[None, :], order, PLACES))
            keys = tl.where(wanted & (of_block < below), tl.maximum(keys, of_block), keys)
    best = tl.max(tl.reshape(keys, (GROUPS, PLACES * BLOCK // GROUPS)), axis=1)
    return tl.gather(best, tl.arange(0, GROUPS), 0)  # each warp gets all keys, so the caller's loop needs no barrier


@triton.jit
def _extended(
    x, class_stride, classes, normaliser, frame_peak, block_peaks, num_blocks, blank,
    by_blanks, totals, added, last, alive, parents, by_hash, keys, best, threshold, reach, places,
    line_scores, line_starts, weights, candidates, bonus, without_lm,
    NUM_AUTOMATA: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Replace the worst prefixes of the beam by better extensions. `keys` has the key that each prefix has if the prefix stays.

    Return four values. Three have an entry per place: the new key, the old place of the prefix that stays or is extended, and
    the new token (-1 if the prefix stays). The fourth value is the best score.
    """
    from_places = places
    tokens_added = places * 0 - 1
    lowest = tl.min(keys, axis=0)
    worst = tl.maximum(_score_of(lowest), best - threshold)  # the lowest score that can still enter the beam
    highest_reach = tl.max(reach, axis=0)
    slack = 1e-3 + 1e-6 * tl.abs(highest_reach)  # exceeds rounding errors of the bounds
    slack = tl.where(slack < float("inf"), slack, 0.0) - normaliser
    # In each round, every group offers its best extension below its limit. If the offer is taken, it becomes the group's limit
    # for the next round; the other groups have nothing more to offer. (The loop has no flag, because Triton 3.5 to 3.7 can't
    # compile a loop that carries a value which its body doesn't read.)
    limits = tl.full((GROUPS,), HIGHEST_KEY, tl.int64)
    while frame_peak + slack + highest_reach > worst:
        offered = _best_extensions(
            x, class_stride, classes, normaliser, slack, block_peaks, num_blocks, blank,
            by_blanks + added, totals + added, last, by_hash, reach, highest_reach, worst, limits,
            line_scores, line_starts, weights, candidates, bonus, without_lm,
            NUM_AUTOMATA, PLACES, BLOCK, GROUPS,
        )  # fmt: skip
        limits = tl.full((GROUPS,), NOTHING, tl.int64)
        highest = tl.max(offered, axis=0)
        score = _score_of(highest)
        while (highest > lowest) & (score >= worst) & (score > float("-inf")):
            token, number = _extension_of(highest, PLACES)
            place = tl.sum(tl.where(alive & (by_hash == number), places, 0), axis=0)
            # An extension that equals a prefix of the beam is already merged with this prefix.
            present = tl.max(((parents == place) & (last == token)).to(tl.int32), axis=0) > 0
            replaced = keys == tl.where(present, -1, lowest)
            keys = tl.where(replaced, highest, keys)
            from_places = tl.where(replaced, place, from_places)
            tokens_added = tl.where(replaced, token, tokens_added)
            lowest = tl.min(keys, axis=0)
            best = tl.where(present, best, tl.maximum(best, score))
            worst = tl.maximum(_score_of(lowest), best - threshold)
            taken = offered == highest
            limits = tl.where(taken, highest, limits)
            offered = tl.where(taken, NOTHING, offered)
            highest = tl.max(offered, axis=0)
            score = _score_of(highest)
        highest_reach = tl.where(tl.max(limits, axis=0) > NOTHING, highest_reach, float("-inf"))
    return keys, from_places, tokens_added, best


@triton.jit
def _store_new(
    x, class_stride, normaliser, from_places, tokens_added, is_new, by_blanks, totals, last, lines, places,
    hashes, parent_hashes, sizes, lm_scores, lm_states, texts, text_hashes, line_scores, line_targets,
    weights, classes, candidates, bonus, without_lm, NUM_AUTOMATA: tl.constexpr, JOINS: tl.constexpr,
):  # fmt: skip
    """Store the hashes, sizes and LM states of new prefixes. Return two values for each new prefix: the acoustic score, and the
    sum of the LM scores and bonuses that the new token adds.
    """
    token = tl.where(is_new, tokens_added, 0)
    log_probs = tl.load(x + token.to(tl.int64) * class_stride, mask=is_new, other=0.0).to(tl.float32)
    before = tl.where(token == _take(last, from_places), _take(by_blanks, from_places), _take(totals, from_places))
    scored = is_new & (token < candidates)
    extra = tl.where(token < candidates, bonus, bonus + without_lm)
    old_hashes = tl.load(hashes + from_places, mask=is_new, other=0)
    old_sizes = tl.load(sizes + from_places, mask=is_new, other=0)
    new_hashes = _extend_hash(old_hashes, token)
    tl.debug_barrier()  # all threads must have read the hashes before they change
    tl.store(hashes + places, new_hashes, mask=is_new)
    tl.store(parent_hashes + places, old_hashes, mask=is_new)
    tl.store(sizes + places, old_sizes + 1, mask=is_new)
    line_starts = _take(lines, from_places).to(tl.int64) * (NUM_AUTOMATA * candidates)
    for m in tl.static_range(NUM_AUTOMATA):
        at = from_places * NUM_AUTOMATA + m
        entry = line_starts + m * candidates + token
        score = tl.load(line_scores + entry, mask=scored, other=0.0)
        target = tl.load(line_targets + entry, mask=scored, other=0)
        extra += tl.load(weights + m) * score
        old_score = tl.load(lm_scores + at, mask=is_new, other=0.0)
        old_state = tl.load(lm_states + at, mask=is_new, other=0)
        tl.debug_barrier()
        tl.store(lm_scores + places * NUM_AUTOMATA + m, old_score + score, mask=is_new)
        tl.store(lm_states + places * NUM_AUTOMATA + m, tl.where(scored, target, old_state), mask=is_new)
    if JOINS:
        old_texts = tl.load(texts + from_places, mask=is_new, other=0)
        factors = tl.load(text_hashes + token, mask=is_new, other=0)
        summands = tl.load(text_hashes + classes + token, mask=is_new, other=0)
        tl.debug_barrier()
        tl.store(texts + places, old_texts * factors + summands, mask=is_new)
    return before + log_probs - normaliser, extra


@triton.jit(do_not_specialize=["row_stride", "frame_stride", "frames", "classes", "num_beams", "blank", "vocab_size"])
def _search_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, row_stride, frame_stride, class_stride, normalisers, frame_peaks, block_peaks,
    lengths, weights, bonuses, unscored, text_hashes,
    offsets, blank_scores, token_scores, last_tokens, hashes, parent_hashes, sizes, fused, lm_scores, lm_states, texts,
    line_states, line_peaks, line_scores, line_targets, links, labels, bad_frames,
    frames, classes, num_beams, blank, vocab_size, threshold, skip,
    NUM_AUTOMATA: tl.constexpr, JOINS: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, PLACES)
    inside = places < num_beams
    length = tl.minimum(tl.load(lengths + row), frames)
    bonus = tl.load(bonuses + row)
    without_lm = tl.load(unscored + row)
    candidates = tl.minimum(vocab_size, classes)
    num_blocks = (classes + BLOCK - 1) // BLOCK
    blank_scores += row * num_beams
    token_scores += row * num_beams
    last_tokens += row * num_beams
    hashes += row * num_beams
    parent_hashes += row * num_beams
    sizes += row * num_beams
    fused += row * num_beams
    lm_scores += row * num_beams * NUM_AUTOMATA
    lm_states += row * num_beams * NUM_AUTOMATA
    texts += row * num_beams
    weights += row * NUM_AUTOMATA
    line_states += row * (2 * PLACES) * NUM_AUTOMATA
    line_peaks += row * (2 * PLACES)
    line_scores += row * (2 * PLACES) * NUM_AUTOMATA * candidates
    line_targets += row * (2 * PLACES) * NUM_AUTOMATA * candidates

    # The beam, by place. Places without a prefix have the score -inf.
    offset = tl.load(offsets + row)
    by_blanks = tl.load(blank_scores + places, mask=inside, other=float("-inf"))
    by_tokens = tl.load(token_scores + places, mask=inside, other=float("-inf"))
    last = tl.load(last_tokens + places, mask=inside, other=-1)
    added = tl.load(fused + places, mask=inside, other=0.0)
    totals = _add(by_blanks, by_tokens)
    parents, like_parent, by_hash, staying_index = _find_parents(
        hashes, parent_hashes, sizes, last, totals > float("-inf"), num_beams, places, PLACES
    )
    lines = places * 0 - 1  # each prefix's line of LM scores; -1 if it has none
    next_line = 0
    # Upper bound of the LM scores and the bonus that a token adds.
    highest_added = tl.zeros((PLACES,), tl.float32) + bonus + tl.where(classes > candidates, tl.maximum(without_lm, 0.0), 0.0)
    joins = length < 0  # whether several prefixes may have the same text
    if JOINS:
        joins = _has_twins(texts, totals > float("-inf"), places, inside)
    frame = length * 0  # Triton's interpreter needs a tensor here
    while frame < length:
        at_frame = row * frames + frame
        x = logits + row * row_stride + frame.to(tl.int64) * frame_stride
        alive = totals > float("-inf")
        # Loads come first, so that their latencies overlap.
        normaliser = tl.load(normalisers + at_frame)
        frame_peak = tl.load(frame_peaks + at_frame)
        blank_log_prob = tl.load(x + (row * 0 + blank) * class_stride).to(tl.float32)
        repeatable = alive & (last >= 0)
        last_log_probs = tl.load(x + last.to(tl.int64) * class_stride, mask=repeatable, other=float("-inf")).to(tl.float32)
        if (normaliser > float("-inf")) & (normaliser < float("inf")):
            blank_log_prob -= normaliser
            possible = tl.exp(blank_log_prob) <= skip  # whether other classes than the blank are possible
            last_log_probs -= tl.where(possible, normaliser, float("inf"))

            # A prefix stays by a blank, by its last token once more, or by its parent's extension (see `reference`).
            before = tl.where(like_parent, _take(by_blanks, parents), _take(totals, parents))
            from_blank = totals + blank_log_prob
            from_token = by_tokens + last_log_probs
            from_parent = tl.where(parents >= 0, before + last_log_probs, float("-inf"))
            staying = tl.where(alive, _add(_add(from_blank, from_token), from_parent) + added, float("-inf"))

            # A prefix that stays keeps its place. A better extension takes the place of the prefix with the lowest score.
            keys = tl.where(inside, _key_of(staying, staying_index), HIGHEST_KEY)
            best = tl.max(staying, axis=0)
            from_places = places
            tokens_added = places * 0 - 1
            if possible:
                if NUM_AUTOMATA > 0:
                    unknown = tl.max((alive & (lines < 0)).to(tl.int32), axis=0) > 0
                    if unknown:
                        lines, next_line, peaks = lines_of(
                            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                            lm_states, alive, lines, next_line, line_states, line_peaks, line_scores, line_targets,
                            weights, blank, candidates, vocab_size, NUM_AUTOMATA, PLACES, BLOCK,
                        )  # fmt: skip
                        highest_added = bonus + tl.where(classes > candidates, tl.maximum(peaks, without_lm), peaks)
                line_starts = lines * (NUM_AUTOMATA * candidates)
                reach = tl.where(alive, totals + added + highest_added, float("-inf"))
                keys, from_places, tokens_added, best = _extended(
                    x, class_stride, classes, normaliser, frame_peak, block_peaks + at_frame * num_blocks, num_blocks, blank,
                    by_blanks, totals, added, last, alive, parents, by_hash, keys, best, threshold, reach, places,
                    line_scores, line_starts, weights, candidates, bonus, without_lm, NUM_AUTOMATA, PLACES, BLOCK, GROUPS,
                )  # fmt: skip

            if best > float("-inf"):  # otherwise sums with huge weights have overflowed, and the row keeps its state
                scores = tl.where(inside, _score_of(keys), float("-inf"))
                kept = (scores > float("-inf")) & (scores >= best - threshold)
                is_new = kept & (tokens_added >= 0)
                stays = kept & (tokens_added < 0)
                anew = from_parent > _add(from_blank, from_token)
                link = tl.where(is_new, from_places, tl.where(stays & anew, parents, places))
                label = tl.where(anew, last, tl.where(from_token > from_blank, LABEL_INSIDE, LABEL_BLANK))
                label = tl.where(is_new, tokens_added, tl.where(stays, label, LABEL_BLANK))
                tl.store(links + at_frame * num_beams + places, link, mask=inside)
                tl.store(labels + at_frame * num_beams + places, label, mask=inside)
                new_by_blanks = tl.where(stays, from_blank, float("-inf"))
                new_by_tokens = tl.where(stays, _add(from_token, from_parent), float("-inf"))
                changes = tl.max((is_new | (alive & (kept == 0))).to(tl.int32), axis=0) > 0
                any_new = tl.max(is_new.to(tl.int32), axis=0) > 0
                if any_new:
                    scores_of_new, extra = _store_new(
                        x, class_stride, normaliser, from_places, tokens_added, is_new, by_blanks, totals, last, lines, places,
                        hashes, parent_hashes, sizes, lm_scores, lm_states, texts, text_hashes, line_scores, line_targets,
                        weights, classes, candidates, bonus, without_lm, NUM_AUTOMATA, JOINS,
                    )  # fmt: skip
                    new_by_tokens = tl.where(is_new, scores_of_new, new_by_tokens)
                    if JOINS:
                        tl.debug_barrier()
                        joins = _has_twins(texts, kept, places, inside)
                    added = tl.where(is_new, _take(added, from_places) + extra, added)
                    last = tl.where(is_new, tokens_added, last)
                    lines = tl.where(is_new, -1, lines)
                if joins:
                    own_texts = tl.load(texts + places, mask=inside, other=0)
                    of_parent = tl.load(parent_hashes + places, mask=inside, other=0)
                    new_by_blanks, new_by_tokens, died = _join_texts(
                        own_texts, last, of_parent, added, new_by_blanks, new_by_tokens, places, PLACES
                    )
                    changes = changes | died
                top = tl.max(tl.maximum(new_by_blanks, new_by_tokens), axis=0)
                by_blanks = new_by_blanks - top
                by_tokens = new_by_tokens - top
                offset += top
                totals = _add(by_blanks, by_tokens)
                if changes:
                    tl.debug_barrier()
                    parents, like_parent, by_hash, staying_index = _find_parents(
                        hashes, parent_hashes, sizes, last, totals > float("-inf"), num_beams, places, PLACES
                    )
            frame += 1
        else:
            tl.store(bad_frames + row, frame)
            length = 0
    tl.debug_barrier()  # all threads must have read the initial values, even if a row has no frames
    tl.store(offsets + row, offset)
    tl.store(blank_scores + places, by_blanks, mask=inside)
    tl.store(token_scores + places, by_tokens, mask=inside)
    tl.store(last_tokens + places, last, mask=inside)
    tl.store(fused + places, added, mask=inside)


def frames_signature(logit_type: str) -> dict[str, str]:
    """Return the types of two groups of kernel arguments: the logits, and the peaks of the logits."""
    sizes = dict.fromkeys(("row_stride", "frame_stride", "class_stride", "frames", "classes", "blank"), "i32")
    peaks = dict.fromkeys(("normalisers", "frame_peaks", "block_peaks"), "*fp32")
    return {"logits": logit_type, "lengths": "*i32"} | sizes | peaks


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with its argument types and constants, for compiling ahead of time."""
    combinations = (("*i16", "*fp32", 8, 1), ("*i32", "*fp16", 4, 0), ("*i16", "*bf16", 16, 2), ("*i16", "*fp32", 64, 2))
    floats = (
        "blank_scores",
        "token_scores",
        "fused",
        "lm_scores",
        "weights",
        "bonuses",
        "unscored",
        "line_peaks",
        "line_scores",
    )
    integers = ("last_tokens", "sizes", "lm_states", "line_states", "line_targets", "links", "labels", "bad_frames")
    others = dict.fromkeys(floats, "*fp32") | dict.fromkeys(integers, "*i32") | {"offsets": "*fp64", "threshold": "fp32"}
    others |= dict.fromkeys(("hashes", "parent_hashes", "texts", "text_hashes"), "*i64")
    others |= {"skip": "fp32", "num_beams": "i32", "vocab_size": "i32"}
    for token_type, logit_type, places, num_automata in combinations:
        tiles = tiling(places, TILE)
        yield _peaks_kernel, frames_signature(logit_type), {"BLOCK": tiles["BLOCK"], "num_warps": 1, **EXACT}
        constants = {"NUM_AUTOMATA": num_automata, "JOINS": num_automata > 0, **tiles}
        yield _search_kernel, automaton_signature(token_type) | frames_signature(logit_type) | others, constants
