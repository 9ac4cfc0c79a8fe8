"""A transducer's networks as compiled loops, on a few rows at a time.

Products of matrices as small as these are bound by reading the weights, which the loops here do as fast as a BLAS; and the
weights stay as the model has them. `exp` and what is made of it are such that they become vector instructions (Cephes'
polynomials, within 2e-7 of the value).
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from ...automaton.compiled import compiled
from ...engines.compiling import compiling
from .cpu_vectors import BLOCK, EXP, at_least, exp_sum, highest_of, lowest_bit
from .networks import ACTIVATIONS

RELU, TANH, SIGMOID, SILU = range(len(ACTIVATIONS))
# NaN and infinity keep their meaning, only sums may be taken in any order.
summing = compiling(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
contracted = compiling(nogil=True, error_model="numpy", fastmath={"contract"})
Index = np.uintp  # what may be negative is checked at every step
one, single = Index(1), np.float32
half = single(0.5)


@intrinsic
def bits_of(typing_context, number):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


@intrinsic
def float_of(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@intrinsic
def matrix_at(typing_context, address, rows, columns):
    """The float32 matrix at an address. (A tuple of matrices would have the loops compiled anew for each number of layers.)"""
    matrix = types.Array(types.float32, 2, "C")

    def generate(context, builder, signature, arguments):
        made = make_array(matrix)(context, builder)
        width = context.get_constant(types.intp, 4)
        populate_array(
            made,
            data=builder.inttoptr(arguments[0], context.get_data_type(types.float32).as_pointer()),
            shape=cgutils.pack_array(builder, arguments[1:]),
            strides=cgutils.pack_array(builder, [builder.mul(arguments[2], width), width]),
            itemsize=width,
            meminfo=None,
        )
        return made._getvalue()

    return matrix(types.int64, types.int64, types.int64), generate


@intrinsic
def all_borrowed(typing_context, given):
    """A tuple whose arrays have no owner, see `hf_ngpulm.automaton.compiled.borrowed`."""

    def generate(context, builder, signature, arguments):
        made = arguments[0]
        for place, kind in enumerate(signature.args[0]):
            if isinstance(kind, types.Array):
                owned = make_array(kind)(context, builder, value=builder.extract_value(made, place))
                owned.meminfo = cgutils.get_null_value(owned.meminfo.type)
                owned.parent = cgutils.get_null_value(owned.parent.type)
                made = builder.insert_value(made, owned._getvalue(), place)
        return made

    return given(given), generate


@contracted
def exp(number):
    x = min(max(number, single(-87.3)), single(88.3))
    shifted = x * single(1.4426950408889634) + single(12582912.0)  # rounds to a whole number, in the lowest bits
    power = bits_of(shifted) - np.int32(0x4B400000)
    rest = x - single(power) * single(0.693359375) + single(power) * single(2.12194440e-4)
    value = single(EXP[0]) * rest + single(EXP[1])
    value = value * rest + single(EXP[2])
    value = value * rest + single(EXP[3])
    value = value * rest + single(EXP[4])
    value = value * rest + single(EXP[5])
    value = value * rest * rest + rest + single(1.0)
    value *= float_of(np.int32((power + np.int32(127)) << np.int32(23)))
    return value if number == number else number  # NaN stays


@contracted
def sigmoid(x):
    return single(1.0) / (single(1.0) + exp(-x))


@contracted
def tanh(x):
    square = x * x
    value = single(-5.70498872745e-3) * square + single(2.06390887954e-2)
    value = value * square - single(5.37397155531e-2)
    value = value * square + single(1.33314422036e-1)
    value = value * square - single(3.33332819422e-1)
    near_zero = x + x * square * value
    falling = exp(single(-2.0) * abs(x))
    far = (single(1.0) - falling) / (single(1.0) + falling)
    return near_zero if square < single(0.390625) else (far if x > single(0.0) else -far)


@compiled
def highest_class(x, line, first, last):
    """The highest of the classes `first .. last - 1`: -inf if there is none, NaN if there is a NaN."""
    highest, blocks = single(-np.inf), (last - first) // BLOCK
    if blocks > 0:
        highest = highest_of(x.ctypes.data + 4 * (line * x.shape[1] + first), blocks)
    for c in range(first + blocks * BLOCK, last):
        if x[line, c] > highest or x[line, c] != x[line, c]:
            highest = x[line, c]
    return highest


@compiled
def sum_of_classes(x, line, first, last, highest):
    """The sum of the exponentials of the classes `first .. last - 1`, `highest` subtracted from each."""
    total, blocks = single(0.0), (last - first) // BLOCK
    if blocks > 0:
        total = exp_sum(x.ctypes.data + 4 * (line * x.shape[1] + first), blocks, highest)
    for c in range(first + blocks * BLOCK, last):
        total += exp(x[line, c] - highest)
    return total


@compiled
def place_of(x, line, first, last, number):
    """The first of the classes `first .. last - 1` that is as high as a number; one of them is."""
    address, blocks = x.ctypes.data + 4 * (line * x.shape[1] + first), (last - first) // BLOCK
    for block in range(blocks):
        hits = at_least(address + 4 * BLOCK * block, number)
        if hits:
            return first + block * BLOCK + lowest_bit(hits)
    at = first + blocks * BLOCK
    while x[line, at] < number:
        at += 1
    return at


@compiled
def normaliser_of(x, line, first, last):
    """The first of the highest classes `first .. last - 1`, and the log of the sum of exponentials; NaN if there is none."""
    highest = highest_class(x, line, first, last)
    if not np.isfinite(highest):
        return np.int64(first), single(np.nan)
    best = place_of(x, line, first, last, highest)
    return best, highest + np.log(sum_of_classes(x, line, first, last, highest))


@summing
def sum_for_confidence(x, line, classes, normaliser, best, measure, alpha):
    """What `confidence_of_sums` asks for; `measure` is a place among `MEASURES`."""
    total = single(0.0)
    if measure == 0:
        return exp(x[line, best] - normaliser)
    if measure == 1:
        for c in range(Index(classes)):
            log_prob = max(x[line, c] - normaliser, single(-1e4))
            total += exp(log_prob) * log_prob
    else:
        for c in range(Index(classes)):
            log_prob = max(x[line, c] - normaliser, single(-1e4))
            total += exp(alpha * log_prob)
    return total


@summing
def add_product(x, w, out, rows):
    """out += x @ w.T for the first rows of `[., K]` and `[., N]`, `w` `[N, K]`: four rows and four of the weights at a time.

    At the ends of a matrix the last row stands for those that aren't there, and is written more than once.
    """
    size, width, rows = Index(w.shape[0]), Index(w.shape[1]), Index(rows)
    for n in range(Index(0), size, Index(4)):
        n1, n2, n3 = min(n + one, size - one), min(n + Index(2), size - one), min(n + Index(3), size - one)
        r = Index(0)
        while r + one < rows:
            r1, r2, r3 = r + one, min(r + Index(2), rows - one), min(r + Index(3), rows - one)
            a00, a01, a02, a03 = out[r, n], out[r, n1], out[r, n2], out[r, n3]
            a10, a11, a12, a13 = out[r1, n], out[r1, n1], out[r1, n2], out[r1, n3]
            a20, a21, a22, a23 = out[r2, n], out[r2, n1], out[r2, n2], out[r2, n3]
            a30, a31, a32, a33 = out[r3, n], out[r3, n1], out[r3, n2], out[r3, n3]
            for k in range(width):
                x0, x1, x2, x3 = x[r, k], x[r1, k], x[r2, k], x[r3, k]
                w0, w1, w2, w3 = w[n, k], w[n1, k], w[n2, k], w[n3, k]
                a00 += x0 * w0
                a01 += x0 * w1
                a02 += x0 * w2
                a03 += x0 * w3
                a10 += x1 * w0
                a11 += x1 * w1
                a12 += x1 * w2
                a13 += x1 * w3
                a20 += x2 * w0
                a21 += x2 * w1
                a22 += x2 * w2
                a23 += x2 * w3
                a30 += x3 * w0
                a31 += x3 * w1
                a32 += x3 * w2
                a33 += x3 * w3
            out[r, n], out[r, n1], out[r, n2], out[r, n3] = a00, a01, a02, a03
            out[r1, n], out[r1, n1], out[r1, n2], out[r1, n3] = a10, a11, a12, a13
            out[r2, n], out[r2, n1], out[r2, n2], out[r2, n3] = a20, a21, a22, a23
            out[r3, n], out[r3, n1], out[r3, n2], out[r3, n3] = a30, a31, a32, a33
            r += Index(4)
        if r < rows:
            a0, a1, a2, a3 = out[r, n], out[r, n1], out[r, n2], out[r, n3]
            for k in range(width):
                x0 = x[r, k]
                a0 += x0 * w[n, k]
                a1 += x0 * w[n1, k]
                a2 += x0 * w[n2, k]
                a3 += x0 * w[n3, k]
            out[r, n], out[r, n1], out[r, n2], out[r, n3] = a0, a1, a2, a3


@contracted
def gate_tanh(x):
    """tanh within 4e-7: a quotient of polynomials, fitted to it over -8..8 for the least largest error; NaN stays.

    One division and no `exp`, unlike `tanh`: three times as fast where it becomes vector instructions.
    """
    x = single(-8.0) if x < single(-8.0) else (single(8.0) if x > single(8.0) else x)
    square = x * x
    above = single(2.3491618e-11) * square - single(1.46976897e-8)
    above = above * square + single(9.876423e-6)
    above = above * square + single(2.9856104e-3)
    above = above * square + single(0.12978986)
    above = above * square + single(1.0)
    below = single(2.371689e-4) * square + single(0.024026884)
    below = below * square + single(0.463123)
    below = below * square + single(1.0)
    return x * above / below


@contracted
def lstm_cell(gates, line, hidden, cell, layer, slot, out):
    """New states of one row in one layer, from what its gates are given; the hidden one also in a line of `out`."""
    size = Index(hidden.shape[2])
    for j in range(size):
        # The sigmoid of x is half of 1 + tanh(x / 2).
        enter = half + half * gate_tanh(half * gates[line, j])
        forget = half + half * gate_tanh(half * gates[line, size + j])
        candidate = gate_tanh(gates[line, Index(2) * size + j])
        leave = half + half * gate_tanh(half * gates[line, Index(3) * size + j])
        new = forget * cell[layer, slot, j] + enter * candidate
        cell[layer, slot, j] = new
        hidden[layer, slot, j] = out[line, j] = leave * gate_tanh(new)


@compiled
def convolve(count, sources, tokens, targets, embedding, convolution, convolution_bias, seen, out):
    """A prediction network that sees the last tokens only: `seen[k, slot]` are the embeddings of those before the last."""
    before = seen.shape[0]
    for i in range(count):
        source, target = sources[i], targets[i]
        for j in range(np.uintp(convolution_bias.size)):
            last = embedding[tokens[i], j]
            x = convolution_bias[j] + convolution[j, before] * last
            for k in range(before):
                x += convolution[j, k] * seen[k, source, j]
            for k in range(before - 1):
                seen[k, target, j] = seen[k + 1, source, j]
            if before:
                seen[before - 1, target, j] = last
            out[i, j] = np.float32(0.0) if x < np.float32(0.0) else x  # NaN stays


@contracted
def join_inputs(frames, row, time, predictions, slot, out, line, activation):
    """What the joint network's head is given for a frame, into a line of `out`; without the frame if `time` is negative."""
    size = Index(out.shape[1])
    if time < 0:
        for d in range(size):
            out[line, d] = predictions[slot, d]
    else:
        for d in range(size):
            out[line, d] = frames[row, time, d] + predictions[slot, d]
    if activation == RELU:
        for d in range(size):
            x = out[line, d]
            out[line, d] = single(0.0) if x < single(0.0) else x  # NaN stays
    elif activation == TANH:
        for d in range(size):
            out[line, d] = tanh(out[line, d])
    elif activation == SIGMOID:
        for d in range(size):
            out[line, d] = sigmoid(out[line, d])
    else:
        for d in range(size):
            out[line, d] *= sigmoid(out[line, d])
