"""The queries as compiled loops for the CPU.

Rows are independent: large batches are cut into runs of rows that run on several threads (the loops hold no GIL). numba
keeps the compiled code on disk, so only the first process on a machine waits for the compiler.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array, populate_array
from torch import Tensor

from ..engines.compiling import compiling
from ..engines.threads import in_threads
from .tensors import AutomatonTensors

CPU = torch.device("cpu")  # not the default device, whatever that is
compiled = compiling(nogil=True, error_model="numpy")


def borrowed(array):
    """Return the same array without an owner, so that no references to it are counted.

    Compiled code counts those of each array that it hands to a function or takes a slice of, in atomic instructions that take
    longer than a search among arcs does, and that threads with the same arrays wait for. What an array is borrowed from must
    outlive it.
    """
    return array


@intrinsic
def _without_owner(typing_context, array):
    def generate(context, builder, signature, arguments):
        given = make_array(signature.args[0])(context, builder, value=arguments[0])
        made = make_array(signature.return_type)(context, builder)
        populate_array(made, data=given.data, shape=given.shape, strides=given.strides, itemsize=given.itemsize, meminfo=None)
        return made._getvalue()

    return array(array), generate


@overload(borrowed)
def _borrowed(array):
    return lambda array: _without_owner(array)  # type: ignore[call-arg]  # the compiler gives the context


def borrowed_arrays(arrays):
    """Return the same for a named tuple of arrays."""
    return arrays


@intrinsic
def _without_owners(typing_context, arrays):
    def generate(context, builder, signature, arguments):
        kind = signature.args[0]
        found = []
        for item, value in zip(kind.types, cgutils.unpack_tuple(builder, arguments[0])):
            given, made = (make_array(item)(context, builder, **of) for of in ({"value": value}, {}))
            populate_array(
                made, data=given.data, shape=given.shape, strides=given.strides, itemsize=given.itemsize, meminfo=None
            )
            found.append(made._getvalue())
        return context.make_tuple(builder, signature.return_type, found)

    return arrays(arrays), generate


@overload(borrowed_arrays)
def _borrowed_arrays(arrays):
    return lambda arrays: _without_owners(arrays)  # type: ignore[call-arg]


@compiled
def borrowed_automaton(arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights):
    return (
        borrowed(arc_offsets), borrowed(arc_tokens), borrowed(arc_weights), borrowed(arc_targets), borrowed(backoff_states),
        borrowed(backoff_weights),
    )  # fmt: skip


def scores(automaton: AutomatonTensors, states: Tensor, vocab_size: int) -> Tensor:
    out = torch.empty((states.shape[0], vocab_size), dtype=torch.float32, device=CPU)
    _in_threads(_score_rows, states.shape[0], vocab_size, automaton, _array(states), out.numpy())
    return out


def advance(automaton: AutomatonTensors, states: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    out = torch.empty((states.shape[0], vocab_size), dtype=torch.float32, device=CPU)
    targets = torch.empty((states.shape[0], vocab_size), dtype=torch.int32, device=CPU)
    _in_threads(_advance_rows, states.shape[0], 2 * vocab_size, automaton, _array(states), out.numpy(), targets.numpy())
    return out, targets


def step(automaton: AutomatonTensors, states: Tensor, tokens: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    out = torch.empty(states.shape, dtype=torch.float32, device=CPU)
    targets = torch.empty(states.shape, dtype=torch.int32, device=CPU)
    arrays = (_array(states), _array(tokens), vocab_size, out.numpy(), targets.numpy())
    _in_threads(_step_rows, states.shape[0], 64, automaton, *arrays)
    return out, targets


def walk(
    automaton: AutomatonTensors, states: Tensor, token_ids: Tensor, lengths: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    out = torch.zeros(token_ids.shape, dtype=torch.float32, device=CPU)
    last = torch.empty(states.shape, dtype=torch.int32, device=CPU)
    arrays = (_array(states), _array(token_ids), _array(lengths), vocab_size, out.numpy(), last.numpy())
    _in_threads(_walk_rows, states.shape[0], 64 * token_ids.shape[1], automaton, *arrays)
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
    last = torch.empty(starts.shape, dtype=torch.int32, device=CPU)
    inputs = (_array(starts), _array(roots), _array(token_ids), _array(lengths), context_length, vocab_size)
    _in_threads(
        _states_after_rows,
        starts.shape[0],
        64 * min(context_length, token_ids.shape[1]),
        automaton,
        *inputs,
        last.numpy(),
    )
    return last


def _array(tensor: Tensor) -> np.ndarray:
    # numba would compile the loops anew for arrays with gaps.
    return tensor.contiguous().numpy()


def arrays_of(automaton: AutomatonTensors) -> tuple[np.ndarray, ...]:
    return tuple(tensor.numpy() for tensor in automaton)


def _in_threads(kernel: Any, rows: int, elements_per_row: int, automaton: AutomatonTensors, *arguments: Any) -> None:
    arrays = arrays_of(automaton)
    for bad_row in in_threads(lambda first, last: kernel(first, last, *arrays, *arguments), rows, elements_per_row):
        if bad_row >= 0:
            raise IndexError(f"state {int(arguments[0][bad_row])} in row {bad_row} is outside 0..{automaton.num_states - 1}")


@compiled
def find_arc(arc_tokens, low, high, token):
    """Return index of the arc for a token among a state's arcs, -1 if it has none."""
    end = high
    while low < high:
        middle = (low + high) >> 1
        if arc_tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low if low < end and arc_tokens[low] == token else -1


@compiled
def step_one(arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, state, token, vocab_size):
    """Return score of a token and the state it leads to."""
    score = np.float32(0.0)
    if token < 0 or token >= vocab_size:
        return score, state
    while True:
        low, high = arc_offsets[state], arc_offsets[state + 1]
        backoff = backoff_states[state]
        if backoff == state and high - low >= vocab_size and arc_tokens[low + vocab_size - 1] == vocab_size - 1:
            arc = low + token  # a root that has every token needs no search
        else:
            arc = find_arc(arc_tokens, low, high, token)
        if arc >= 0:
            return score + arc_weights[arc], arc_targets[arc]
        score += backoff_weights[state]
        if backoff == state:
            return score, state
        state = backoff


@compiled
def score_one(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, state, vocab_size, chain, out
):
    """Return scores of all tokens: the root's, then those of ever longer contexts over them.

    `chain` is room for the states of a backoff chain; it is returned, grown if it was too small.
    """
    depth = 0
    while backoff_states[state] != state:
        if depth == chain.size:
            chain = np.concatenate((chain, np.empty_like(chain)))
        chain[depth] = state
        depth += 1
        state = backoff_states[state]
    score = np.float32(0.0)
    for level in range(depth):
        score += backoff_weights[chain[level]]
    low, high = arc_offsets[state], arc_offsets[state + 1]
    if high - low >= vocab_size and arc_tokens[low + vocab_size - 1] == vocab_size - 1:
        weights = arc_weights[low : low + vocab_size]
        for token in range(vocab_size):
            out[token] = score + weights[token]
    else:
        default = score + backoff_weights[state]
        for token in range(vocab_size):
            out[token] = default
        for arc in range(low, high):
            if arc_tokens[arc] < vocab_size:
                out[arc_tokens[arc]] = score + arc_weights[arc]
    for level in range(depth - 1, -1, -1):
        score = np.float32(0.0)
        for longer in range(level):
            score += backoff_weights[chain[longer]]
        for arc in range(arc_offsets[chain[level]], arc_offsets[chain[level] + 1]):
            if arc_tokens[arc] < vocab_size:
                out[arc_tokens[arc]] = score + arc_weights[arc]
    return chain


@compiled
def _score_rows(first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, states, out):
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    out = borrowed(out)
    chain = np.empty(16, dtype=np.int32)
    for row in range(first, last):
        if states[row] < 0 or states[row] >= backoff_states.size:
            return row
        chain = score_one(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            states[row], out.shape[1], chain, out[row],
        )  # fmt: skip
    return -1


@compiled
def _advance_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, out, targets,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    out, targets = borrowed(out), borrowed(targets)
    chain = np.empty(16, dtype=np.int32)
    vocab_size = out.shape[1]
    for row in range(first, last):
        state = states[row]
        if state < 0 or state >= backoff_states.size:
            return row
        chain = score_one(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            state, vocab_size, chain, out[row],
        )  # fmt: skip
        depth = 0
        while backoff_states[state] != state:
            chain[depth] = state
            depth += 1
            state = backoff_states[state]
        low, high = arc_offsets[state], arc_offsets[state + 1]
        if high - low >= vocab_size and arc_tokens[low + vocab_size - 1] == vocab_size - 1:
            targets[row] = arc_targets[low : low + vocab_size]
        else:
            targets[row] = state
            depth += 1
            if depth > chain.size:
                chain = np.concatenate((chain, np.empty_like(chain)))
            chain[depth - 1] = state
        for level in range(depth - 1, -1, -1):
            for arc in range(arc_offsets[chain[level]], arc_offsets[chain[level] + 1]):
                if arc_tokens[arc] < vocab_size:
                    targets[row, arc_tokens[arc]] = arc_targets[arc]
    return -1


@compiled
def _step_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, tokens, vocab_size, out, targets,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    for row in range(first, last):
        if states[row] < 0 or states[row] >= backoff_states.size:
            return row
        out[row], targets[row] = step_one(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            states[row], tokens[row], vocab_size,
        )  # fmt: skip
    return -1


@compiled
def _walk_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, token_ids, lengths, vocab_size, out, last_states,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    for row in range(first, last):
        state = states[row]
        if state < 0 or state >= backoff_states.size:
            return row
        for position in range(lengths[row]):
            out[row, position], state = step_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                state, token_ids[row, position], vocab_size,
            )  # fmt: skip
        last_states[row] = state
    return -1


@compiled
def _states_after_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    starts, roots, token_ids, lengths, context_length, vocab_size, last_states,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    for row in range(first, last):
        if starts[row] < 0 or starts[row] >= backoff_states.size:
            return row
        begin = lengths[row]
        seen = 0
        while begin > 0 and seen < context_length:
            begin -= 1
            seen += 0 <= token_ids[row, begin] < vocab_size
        # A context of full length needs no other tokens before it; a shorter one hangs on the start of the sentence.
        state = roots[row] if seen == context_length else starts[row]
        for position in range(begin, lengths[row]):
            _, state = step_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                state, token_ids[row, position], vocab_size,
            )  # fmt: skip
        last_states[row] = state
    return -1
