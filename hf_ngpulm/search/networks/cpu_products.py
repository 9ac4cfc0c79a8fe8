"""Products of a few rows with a layer's weights, for networks that run within compiled loops.

A row's result doesn't depend on the rows beside it, so that what a search finds doesn't depend on its batch. The weights are
laid out anew when utterances begin, which takes as long as the product with a hundred rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from ...automaton.compiled import compiled

# Numbers that are multiplied at once, and the tile of sums that is kept in registers: rows, and vectors of a row.
try:
    _WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
except RuntimeError:  # where LLVM can't tell
    _WIDE = False
LANES = 16 if _WIDE else 8
MOST_ROWS = 8 if _WIDE else 4
VECTORS = 3


class Layer(NamedTuple):
    """A linear layer, its size `N` padded to whole vectors.

    Args:
        panels: float32 `[N * K]`: by blocks of `VECTORS` vectors of outputs (fewer in the last) the weights of each input.
        biases: float32 `[N]`.
    """

    panels: np.ndarray
    biases: np.ndarray

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> Layer:
        """Of weights `[N, K]` and biases `[N]`."""
        padded = -(-len(weight) // LANES) * LANES
        panels, biases = np.empty(padded * weight.shape[1], dtype=np.float32), np.zeros(padded, dtype=np.float32)
        biases[: len(weight)] = bias.numpy()
        _lay_out(weight.contiguous().numpy(), panels)
        return cls(panels, biases)


@compiled
def _lay_out(weight, panels):
    size, inputs = weight.shape
    for first in range(0, size, VECTORS * LANES):
        wide = min(VECTORS * LANES, -(-(size - first) // LANES) * LANES)
        for place in range(np.uintp(wide)):
            at = np.uintp(first * inputs) + place
            if first + place < size:
                for k in range(np.uintp(inputs)):
                    panels[at + k * np.uintp(wide)] = weight[np.uintp(first) + place, k]
            else:
                for k in range(np.uintp(inputs)):
                    panels[at + k * np.uintp(wide)] = 0.0


def _kernel_of(rows, vectors):
    """One tile: sums of `rows` times `vectors`, from addresses; strides in numbers."""
    vector = ir.VectorType(ir.FloatType(), LANES)
    splat = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

    def generate(context, builder, signature, arguments):
        x, x_stride, panel, depth, biases, out, out_stride = arguments
        number, index = ir.FloatType(), depth.type

        def place(address, offset):
            return builder.gep(builder.inttoptr(address, number.as_pointer()), [offset])

        def load(address, offset):
            loaded = builder.load(builder.bitcast(place(address, offset), vector.as_pointer()))
            loaded.align = 4
            return loaded

        def constant(value):
            return ir.Constant(index, value)

        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32")
        begins = [load(biases, constant(c * LANES)) for c in range(vectors)]
        x_rows = [builder.mul(x_stride, constant(r)) for r in range(rows)]
        before = builder.block
        loop, after = builder.append_basic_block("product"), builder.append_basic_block("product.end")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(index)
        k.add_incoming(constant(0), before)
        sums = [[builder.phi(vector) for _ in range(vectors)] for _ in range(rows)]
        base = builder.mul(k, constant(vectors * LANES))
        weights = [load(panel, builder.add(base, constant(c * LANES))) for c in range(vectors)]
        following = builder.add(k, constant(1))
        made = []
        for r in range(rows):
            single = builder.load(place(x, builder.add(x_rows[r], k)))
            spread = builder.insert_element(ir.Constant(vector, ir.Undefined), single, ir.Constant(ir.IntType(32), 0))
            spread = builder.shuffle_vector(spread, ir.Constant(vector, ir.Undefined), splat)
            made.append([builder.call(fma, [spread, weights[c], sums[r][c]]) for c in range(vectors)])
        for r in range(rows):
            for c in range(vectors):
                sums[r][c].add_incoming(begins[c], before)
                sums[r][c].add_incoming(made[r][c], loop)
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        for r in range(rows):
            line = builder.mul(out_stride, constant(r))
            for c in range(vectors):
                target = builder.bitcast(place(out, builder.add(line, constant(c * LANES))), vector.as_pointer())
                builder.store(made[r][c], target).align = 4
        return context.get_dummy_value()

    @intrinsic
    def kernel(typing_context, x, x_stride, panel, depth, biases, out, out_stride):
        return types.void(*[types.intp] * 7), generate

    return kernel


_8x3, _8x2, _8x1 = (_kernel_of(MOST_ROWS, vectors) for vectors in (3, 2, 1))
_4x3, _4x2, _4x1 = (_kernel_of(4, vectors) for vectors in (3, 2, 1))
_2x3, _2x2, _2x1 = (_kernel_of(2, vectors) for vectors in (3, 2, 1))
_1x3, _1x2, _1x1 = (_kernel_of(1, vectors) for vectors in (3, 2, 1))


@compiled
def product(x, panels, biases, out, rows):
    """out = biases + x @ w.T for the first rows of `[., K]` and `[., N]`, the weights as `Layer` has them; K >= 1."""
    vectors, depth = biases.size // LANES, x.shape[1]
    x_at, out_at, panels_at, biases_at = x.ctypes.data, out.ctypes.data, panels.ctypes.data, biases.ctypes.data
    x_stride, out_stride = x.shape[1], out.shape[1]
    for first in range(0, vectors, VECTORS):
        panel, bias = panels_at + 4 * first * LANES * depth, biases_at + 4 * first * LANES
        count = min(VECTORS, vectors - first)
        r = 0
        while r < rows:
            x_row, out_row = x_at + 4 * r * x_stride, out_at + 4 * (r * out_stride + first * LANES)
            if rows - r >= MOST_ROWS:
                if count == 3:
                    _8x3(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                elif count == 2:
                    _8x2(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                else:
                    _8x1(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                r += MOST_ROWS
            elif rows - r >= 4:
                if count == 3:
                    _4x3(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                elif count == 2:
                    _4x2(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                else:
                    _4x1(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                r += 4
            elif rows - r >= 2:
                if count == 3:
                    _2x3(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                elif count == 2:
                    _2x2(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                else:
                    _2x1(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                r += 2
            else:
                if count == 3:
                    _1x3(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                elif count == 2:
                    _1x2(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                else:
                    _1x1(x_row, x_stride, panel, depth, bias, out_row, out_stride)
                r += 1
