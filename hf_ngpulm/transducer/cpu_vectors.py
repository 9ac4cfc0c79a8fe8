"""What compilers find no vector instructions for by themselves: comparing many numbers at once, and taking hits one by one."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..automaton.cpu import compiled

BLOCK = 16  # numbers that are compared at once
_VECTOR = ir.VectorType(ir.FloatType(), BLOCK)


def _load(builder, address):
    loaded = builder.load(builder.inttoptr(address, _VECTOR.as_pointer()))
    loaded.align = 4
    return loaded


@intrinsic
def at_least(typing_context, address, least):
    """Which of the `BLOCK` float32 numbers at an address are as high: a bit for each, the first one's is the lowest."""

    def generate(context, builder, signature, arguments):
        value = arguments[1]
        single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        spread = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)
        limits = builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), spread)
        hits = builder.fcmp_ordered(">=", _load(builder, arguments[0]), limits)
        return builder.zext(builder.bitcast(hits, ir.IntType(BLOCK)), ir.IntType(64))

    return types.int64(types.intp, types.float32), generate


@intrinsic
def lowest_bit(typing_context, bits):
    """The place of the lowest bit that is set."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def count_bits(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def maxima(typing_context, address, blocks, out):
    """Of some blocks, at least one, of numbers (no NaN) the highest at each place, to an address."""

    def generate(context, builder, signature, arguments):
        address, blocks, out = arguments
        before = builder.block
        loop, after = builder.append_basic_block("maxima"), builder.append_basic_block("maxima.end")
        first = _load(builder, address)
        builder.branch(loop)
        builder.position_at_end(loop)
        at, highest = builder.phi(blocks.type), builder.phi(_VECTOR)
        numbers = _load(builder, builder.add(address, builder.mul(at, ir.Constant(at.type, 4 * BLOCK))))
        higher = builder.select(builder.fcmp_ordered(">", numbers, highest), numbers, highest)
        following = builder.add(at, ir.Constant(at.type, 1))
        for value, begin, changed in ((at, ir.Constant(at.type, 0), following), (highest, first, higher)):
            value.add_incoming(begin, before)
            value.add_incoming(changed, loop)
        builder.cbranch(builder.icmp_signed("<", following, blocks), loop, after)
        builder.position_at_end(after)
        builder.store(higher, builder.inttoptr(out, _VECTOR.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@compiled
def bound_of(numbers, most, tops):
    """A number that at least `most` of some blocks of numbers (no NaN) reach, or -inf; `tops` is room for a block."""
    bound = np.float32(-np.inf)
    if most <= BLOCK:
        maxima(numbers.ctypes.data, numbers.size // BLOCK, tops.ctypes.data)
        for top in tops:
            reached = count_bits(at_least(tops.ctypes.data, top)) >= most
            bound = max(bound, top if reached else np.float32(-np.inf))
    return bound
