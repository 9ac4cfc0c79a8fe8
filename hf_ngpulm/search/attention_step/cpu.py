"""Compiled loops for the CPU: each row's scores are added into it, with no more memory than a row's arcs take."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...automaton.compiled import CPU, arrays_of, borrowed, borrowed_automaton, compiled, step_one
from ...engines.threads import in_threads
from . import HOLD, KINDS, START, TEXT, Roles, Rows

# The compiler makes vector instructions of loops over this many elements whose results don't depend on each other.
LANES = 256
LOG_2 = np.float32(np.log(2))
LOG2_E = np.float32(1.4426950408889634)
# Added and taken away again, it rounds to whole numbers.
ROUNDING = np.float32(1.5 * 2**23)
SMALLEST_EXPONENT = np.float32(-126.0)
# 2 ** x for x in -0.5 .. 0.5: a minimax polynomial, relative error 2e-7.
P0, P1, P2, P3, P4, P5 = (
    np.float32(p) for p in (1.0, 0.693147182464599609, 0.240226462483406067, 0.0555032841861248016, 0.00961838569492101669,
                            0.00133987003937363625)
)  # fmt: skip


def fuse(scores: Tensor, input_ids: Tensor, rows: Rows, roles: Roles, shared: bool) -> None:
    _fuse(scores, input_ids, rows.starts, rows, roles, shared, carried=False)


def fuse_at(scores: Tensor, states: Tensor, rows: Rows, roles: Roles, shared: bool) -> None:
    _fuse(scores, torch.empty((len(states), 0), dtype=torch.int64, device=CPU), states, rows, roles, shared, carried=True)


def _fuse(scores: Tensor, input_ids: Tensor, starts: Tensor, rows: Rows, roles: Roles, shared: bool, *, carried: bool) -> None:
    arrays = (
        *arrays_of(rows.tensors), scores.numpy(), input_ids.numpy(),
        roles.roles.numpy(), roles.unscored.numpy(), roles.ends.numpy(),
        starts.numpy(), rows.starts.numpy(), rows.roots.numpy(), rows.weights.numpy(),
        rows.context_length, rows.vocab_size, shared, np.float32(roles.log_guess), roles.holds, carried,
    )  # fmt: skip
    in_threads(lambda first, last: _fuse_rows(first, last, *arrays), *scores.shape)


def follow(states: Tensor, tokens: Tensor, rows: Rows, roles: Roles) -> Tensor:
    found = torch.empty_like(states)
    arrays = (
        *arrays_of(rows.tensors), states.numpy(), tokens.numpy(), roles.roles.numpy(), rows.starts.numpy(), rows.vocab_size,
        found.numpy(),
    )  # fmt: skip
    in_threads(lambda first, last: _follow_rows(first, last, *arrays), len(states), 64)
    return found


@compiled
def log_sum_exp(values):
    """Return the largest of some values, a float32 array, and the log of the sum of their exp; its error is below 1e-6."""
    sums = np.full(LANES, -np.inf, dtype=np.float32)
    whole = values.size // LANES * LANES
    for block in range(0, whole, LANES):
        part = values[block : block + LANES]
        for lane in range(LANES):
            sums[lane] = part[lane] if part[lane] > sums[lane] else sums[lane]
    highest = np.float32(-np.inf)
    for lane in range(LANES):
        highest = max(highest, sums[lane])
    for i in range(whole, values.size):
        highest = max(highest, values[i])
    if not (-np.inf < highest < np.inf):
        return highest, highest
    powers = np.empty(LANES, dtype=np.int32)
    as_floats = powers.view(np.float32)
    fractions = np.empty(LANES, dtype=np.float32)
    sums[:] = 0
    for block in range(0, whole, LANES):
        part = values[block : block + LANES]
        for lane in range(LANES):
            x = (part[lane] - highest) * LOG2_E
            x = x if x > SMALLEST_EXPONENT else SMALLEST_EXPONENT
            power = (x + ROUNDING) - ROUNDING
            x = x - power
            powers[lane] = (np.int32(power) + np.int32(127)) << np.int32(23)
            fractions[lane] = P0 + x * (P1 + x * (P2 + x * (P3 + x * (P4 + x * P5))))
        for lane in range(LANES):
            sums[lane] += fractions[lane] * as_floats[lane]
    total = 0.0
    for lane in range(LANES):
        total += sums[lane]
    for i in range(whole, values.size):
        total += np.exp(np.float64(values[i]) - highest)
    return highest, np.float32(highest + np.log(total))


@compiled
def _fuse_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    scores, input_ids, roles, unscored, ends, starts, first_states, roots, weights,
    context_length, vocab_size, shared, log_guess, holds, carried,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    chain = np.empty(16, dtype=np.int32)
    unscored_before = np.empty(unscored.size, dtype=np.float32)
    ends_before = np.empty(ends.size, dtype=np.float32)
    arcs_before = np.empty(1024, dtype=np.float32)
    kept = np.empty(scores.shape[1], dtype=np.float32)
    length = input_ids.shape[1]
    for row in range(first, last):
        weight = weights[row]
        if starts[row] < 0 or weight == 0:
            continue
        x, tokens = borrowed(scores[row]), borrowed(input_ids[row])

        # The state after the last tokens of the transcript; carried ones are after all of them.
        begin = position = length
        seen, met = 0, 0
        while position > 0 and met == 0 and (seen < context_length or holds):
            position -= 1
            token = tokens[position]
            if 0 <= token < roles.size:
                met = roles[token] & (START | HOLD)
                if met == 0 and roles[token] == TEXT and seen < context_length:
                    seen += 1
                    begin = position
        if met & HOLD:
            continue
        state = roots[row] if seen == context_length and not carried else starts[row]
        for position in range(begin, length):
            token = tokens[position]
            if 0 <= token < roles.size and roles[token] & KINDS == TEXT:
                _, state = step_one(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    state, token, vocab_size,
                )  # fmt: skip
        final, _ = step_one(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            state, vocab_size, vocab_size + 1,
        )  # fmt: skip

        # What the LM scores is alone in the row meanwhile.
        ends_apart = shared and state == first_states[row]
        for i in range(ends.size):
            ends_before[i] = x[ends[i]]
        end = log_sum_exp(ends_before)[1] if shared else np.float32(-np.inf)
        is_sure = end > -np.inf and end > log_sum_exp(x)[1] - LOG_2
        if is_sure:
            kept[:] = x
        for i in range(unscored.size):
            unscored_before[i] = x[unscored[i]]
            x[unscored[i]] = -np.inf
        if ends_apart:
            for i in range(ends.size):
                x[ends[i]] = -np.inf
        best_before = sum_before = np.float32(0.0)
        if shared:
            best_before, sum_before = log_sum_exp(x)

        # The root's scores go to all tokens at once; those with arcs in longer contexts are then set from what they were.
        depth = 0
        score = np.float32(0.0)
        while True:
            low, high = arc_offsets[state], arc_offsets[state + 1]
            backoff = backoff_states[state]
            dense = backoff == state and high - low >= vocab_size and arc_tokens[low + vocab_size - 1] == vocab_size - 1
            if dense:
                break
            if depth == chain.size:
                chain = np.concatenate((chain, np.empty_like(chain)))
            chain[depth] = state
            depth += 1
            score += backoff_weights[state]
            if backoff == state:
                break
            state = backoff
        count = 0
        for level in range(depth):
            count += arc_offsets[chain[level] + 1] - arc_offsets[chain[level]]
        if count > arcs_before.size:
            arcs_before = np.empty(2 * count, dtype=np.float32)
        k = 0
        for level in range(depth - 1, -1, -1):
            for arc in range(arc_offsets[chain[level]], arc_offsets[chain[level] + 1]):
                if arc_tokens[arc] < vocab_size:
                    arcs_before[k] = x[arc_tokens[arc]]
                k += 1
        if dense:
            root_weights = borrowed(arc_weights[low : low + vocab_size])
            for token in range(vocab_size):
                x[token] += weight * (score + root_weights[token])
        else:
            for token in range(vocab_size):
                x[token] += weight * score
        k = 0
        for level in range(depth - 1, -1, -1):
            score = np.float32(0.0)
            for longer in range(level):
                score += backoff_weights[chain[longer]]
            for arc in range(arc_offsets[chain[level]], arc_offsets[chain[level] + 1]):
                if arc_tokens[arc] < vocab_size:
                    x[arc_tokens[arc]] = arcs_before[k] + weight * (score + arc_weights[arc])
                k += 1

        for i in range(ends.size):
            x[ends[i]] = -np.inf if ends_apart else ends_before[i] + weight * final

        of_others = np.float32(0.0)
        if shared and sum_before > -np.inf:
            best, total = log_sum_exp(x)
            lost = sum_before - total
            if -np.inf < lost < np.inf:
                gained = min(lost, np.float32(abs(weight) * log_guess))
                for i in range(x.size):
                    x[i] += gained
                of_others = min(of_others, gained - lost, best + gained - best_before)
        for i in range(unscored.size):
            x[unscored[i]] = unscored_before[i] + of_others
        for i in range(ends.size):
            if ends_apart:
                x[ends[i]] = ends_before[i] + of_others
            ends_before[i] = x[ends[i]]
        if is_sure and log_sum_exp(ends_before)[1] < end:
            x[:] = kept


@compiled
def _follow_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, tokens, roles, starts, vocab_size, found,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    for row in range(first, last):
        state, token = states[row], tokens[row]
        role = roles[token] if 0 <= token < roles.size else 0
        if role & START:
            state = starts[row]
        elif role & HOLD:
            state = np.int32(-1)
        elif role & KINDS == TEXT and state >= 0:
            _, state = step_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                state, token, vocab_size,
            )  # fmt: skip
        found[row] = state
