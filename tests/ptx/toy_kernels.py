"""Toy kernels: some right, some wrong in a way that only shows once they are compiled; and some of PTX by hand."""

from types import SimpleNamespace as Some

import torch
import triton
import triton.language as tl
from ptx import driver

HEADER = """.version 8.8
.target sm_80
.address_size 64
.visible .entry toy(
	.param .u64 .ptr .global .align 1 toy_param_0
)
.reqntid 64
{
	.reg .pred 	%p<4>;
	.reg .b32 	%r<40>;
	.reg .b64 	%rd<4>;
"""


def run_ptx(body: str, warps: int = 2, programs: int = 1, size: int = 64) -> torch.Tensor:
    """Run PTX on one tensor of int32 zeros; return that."""
    source = Some(fn=Some(fn=Some(__name__="toy")), signature={"x": "*i32"})
    launcher = driver.Launcher(source, Some(num_warps=warps, shared=0), HEADER + body + "\n}\n")
    x = torch.zeros(size, dtype=torch.int32)
    launcher(programs, 1, 1, x)
    return x


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, n, BLOCK):
        found += tl.load(x + begin + lanes, mask=begin + lanes < n, other=0.0)
    tl.store(out, tl.sum(found, axis=0))


@triton.jit
def dot(x, y, out, BLOCK: tl.constexpr):
    """Each thread stores the sum that it has."""
    lanes = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x + lanes) * tl.load(y + lanes), axis=0)
    tl.store(out + lanes, total)


@triton.jit
def reverse(x, scratch, out, BLOCK: tl.constexpr, BARRIER: tl.constexpr):
    """Threads read what others have written."""
    lanes = tl.arange(0, BLOCK)
    tl.store(scratch + lanes, tl.load(x + lanes))
    if BARRIER:
        tl.debug_barrier()
    tl.store(out + lanes, tl.load(scratch + BLOCK - 1 - lanes))


@triton.jit
def rotate_through_a_sum(x, scratch, out, BLOCK: tl.constexpr):
    """The sum has a barrier of Triton's between the store and the load."""
    lanes = tl.arange(0, BLOCK)
    values = tl.load(x + lanes)
    tl.store(scratch + lanes, values)
    total = tl.sum(values, axis=0)
    tl.store(out + lanes, total + tl.load(scratch + BLOCK - 1 - lanes))


@triton.jit
def count_up(x, out, BARRIER: tl.constexpr):
    """One thread writes what all have read."""
    value = tl.load(x)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x, value + 1)
    tl.store(out + tl.arange(0, 128), value)


@triton.jit
def overlap(out, STEP: tl.constexpr):
    """With a small step two programs write to the same place."""
    tl.store(out + tl.program_id(0) * STEP + tl.arange(0, 128), tl.program_id(0))


@triton.jit
def gather(x, places, out):
    lanes = tl.arange(0, 32)
    tl.store(out + lanes, tl.load(x + tl.load(places + lanes)))


@triton.jit
def wait_for(flag, out):
    while tl.load(flag, volatile=True) == 0:
        tl.store(out, 1)


@triton.jit
def sort(x, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.sort(tl.load(x + lanes)))
