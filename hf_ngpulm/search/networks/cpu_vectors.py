"""What compilers find no vector instructions for by themselves, or shorter ones than there are: comparing many numbers at once
and taking hits one by one, the highest of them, and sums of exponentials.
"""

from __future__ import annotations

import functools

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...automaton.compiled import compiled

BLOCK = 16  # numbers that are compared at once
_VECTOR = ir.VectorType(ir.FloatType(), BLOCK)
# exp(x) - 1 - x as a polynomial times x squared, the highest power first (Cephes).
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


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


def _along_blocks(builder, addresses, blocks, begins, change):
    """Change some values block by block, of which there is at least one; the values behind the last.

    `change` is given the block's address behind each of `addresses`, and the values.
    """
    before = builder.block
    loop, after = builder.append_basic_block("blocks"), builder.append_basic_block("blocks.end")
    builder.branch(loop)
    builder.position_at_end(loop)
    at, values = builder.phi(blocks.type), [builder.phi(begin.type) for begin in begins]
    offset = builder.mul(at, ir.Constant(at.type, 4 * BLOCK))
    places = [builder.add(address, offset) for address in addresses]
    changed = [builder.add(at, ir.Constant(at.type, 1)), *change(places, *values)]
    for value, begin, then in zip((at, *values), (ir.Constant(at.type, 0), *begins), changed):
        value.add_incoming(begin, before)
        value.add_incoming(then, loop)
    builder.cbranch(builder.icmp_signed("<", changed[0], blocks), loop, after)
    builder.position_at_end(after)
    return changed[1:]


def _higher(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _across(builder, vector, join):
    """All numbers of a vector as one."""
    half = BLOCK // 2
    while half:
        lanes = [lane ^ half for lane in range(BLOCK)]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), lanes)
        vector = join(vector, builder.shuffle_vector(vector, ir.Constant(_VECTOR, ir.Undefined), mask))
        half //= 2
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


@intrinsic
def highest_of(typing_context, address, blocks):
    """The highest number of some blocks, at least one; NaN if there is one."""

    def generate(context, builder, signature, arguments):
        flags = ir.VectorType(ir.IntType(1), BLOCK)

        def change(places, highest, broken):
            numbers = _load(builder, places[0])
            return _higher(builder, numbers, highest), builder.or_(broken, builder.fcmp_unordered("uno", numbers, numbers))

        begins = (ir.Constant(_VECTOR, [float("-inf")] * BLOCK), ir.Constant(flags, [0] * BLOCK))
        highest, broken = _along_blocks(builder, arguments[:1], arguments[1], begins, change)
        highest = _across(builder, highest, functools.partial(_higher, builder))
        bits = builder.bitcast(broken, ir.IntType(BLOCK))
        return builder.select(
            builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 0)), highest, ir.Constant(highest.type, float("nan"))
        )

    return types.float32(types.intp, types.intp), generate


@intrinsic
def exp_sum(typing_context, address, blocks, highest):
    """The sum of the exponentials of some blocks of numbers, at least one, their `highest` subtracted from each; NaN stays.

    As `hf_ngpulm.search.networks.cpu_networks.exp` has it.
    """

    def generate(context, builder, signature, arguments):
        address, blocks, highest = arguments
        integers = ir.VectorType(ir.IntType(32), BLOCK)
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fmuladd.v{BLOCK}f32"
        )

        def all_of(number):
            return ir.Constant(_VECTOR, [float(np.float32(number))] * BLOCK)

        def whole(number):
            return ir.Constant(integers, [number] * BLOCK)

        single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), highest, ir.Constant(ir.IntType(32), 0))
        subtracted = builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), whole(0))

        def change(places, total):
            x = builder.fsub(_load(builder, places[0]), subtracted)
            least = all_of(-87.3)
            x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
            shifted = builder.call(fma, [x, all_of(1.4426950408889634), all_of(12582912.0)])
            rounded = builder.fsub(shifted, all_of(12582912.0))
            rest = builder.call(fma, [rounded, all_of(-0.693359375), x])
            rest = builder.call(fma, [rounded, all_of(2.12194440e-4), rest])
            value = all_of(EXP[0])
            for factor in EXP[1:]:
                value = builder.call(fma, [value, rest, all_of(factor)])
            value = builder.call(fma, [builder.fmul(value, rest), rest, builder.fadd(rest, all_of(1.0))])
            # The power of 2 lies in the lowest bits of `shifted`; those above them leave at the top.
            power = builder.shl(builder.bitcast(shifted, integers), whole(23))
            scale = builder.bitcast(builder.add(power, whole(127 << 23)), _VECTOR)
            return (builder.call(fma, [value, scale, total]),)

        (total,) = _along_blocks(builder, [address], blocks, (all_of(0.0),), change)
        return _across(builder, total, builder.fadd)

    return types.float32(types.intp, types.intp, types.float32), generate


@intrinsic
def maxima(typing_context, address, blocks, out):
    """Of some blocks, at least one, of numbers (no NaN) the highest at each place, to an address."""

    def generate(context, builder, signature, arguments):
        address, blocks, out = arguments

        def change(places, highest):
            return (_higher(builder, _load(builder, places[0]), highest),)

        begins = (ir.Constant(_VECTOR, [float("-inf")] * BLOCK),)
        (highest,) = _along_blocks(builder, [address], blocks, begins, change)
        builder.store(highest, builder.inttoptr(out, _VECTOR.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def add_blocks(typing_context, first, second, out, blocks):
    """Sums of some blocks of numbers, at least one, at two addresses to a third one: -inf for what isn't a number."""

    def generate(context, builder, signature, arguments):
        lowest = ir.Constant(_VECTOR, [float("-inf")] * BLOCK)

        def change(places):
            total = builder.fadd(*(_load(builder, place) for place in places[:2]))
            total = builder.select(builder.fcmp_ordered("ord", total, total), total, lowest)
            builder.store(total, builder.inttoptr(places[2], _VECTOR.as_pointer())).align = 4
            return ()

        _along_blocks(builder, arguments[:3], arguments[3], (), change)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


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
