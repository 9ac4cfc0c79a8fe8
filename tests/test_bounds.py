"""The guard over kernels in Triton's interpreter: what they read or write beside their tensors is refused."""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run on a GPU here", allow_module_level=True)
triton = pytest.importorskip("triton")
tl = triton.language


@triton.jit
def copy_kernel(source, target, first, count, BLOCK: tl.constexpr):
    at = first + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count, other=0.0), mask=at < count)


@triton.jit
def count_kernel(counts, at, BLOCK: tl.constexpr):
    tl.atomic_add(counts + at + tl.arange(0, BLOCK), 1)


def test_tensors_are_read_and_written_to_their_ends():
    source, target = torch.arange(12.0), torch.zeros(12)
    copy_kernel[(1,)](source[2:9], target[5:], 0, 7, BLOCK=8)
    assert target.tolist() == [0.0] * 5 + source[2:9].tolist()


@pytest.mark.parametrize(
    "first, count, sizes, place",
    [(0, 8, (8, 7), 7), (0, 8, (7, 8), 7), (-1, 7, (8, 8), -1)],
    ids=["a store behind", "a load behind", "a load before"],
)
def test_what_lies_beside_is_refused(first, count, sizes, place):
    room = torch.zeros(64)  # of one storage: what is meant are the tensors, not where they are
    source, target = room[16 : 16 + sizes[0]], room[40 : 40 + sizes[1]]
    with pytest.raises(Exception, match=f"1 elements outside of all tensors: element {place} of a tensor of torch.float32"):
        copy_kernel[(1,)](source, target, first, count, BLOCK=8)
    assert not room.any()


def test_atomic_operations_are_watched_too():
    with pytest.raises(Exception, match="atomic_rmw: 2 elements outside of all tensors"):
        count_kernel[(1,)](torch.zeros(8, dtype=torch.int32), 6, BLOCK=4)
