"""Detect and end loops on the GPU, with one Triton kernel.

The kernel runs a program per row. For each length of a phrase the program compares the row's last tokens with the tokens that
are one phrase earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....automaton.gpu import EXACT
from ....engines.devices import current
from .. import START
from . import ENDLESS, ENDLESS_OTHERS, ENDLESS_TIMES, LONGEST, SHORTEST, TIMES, WINDOW

_START, _LONGEST, _WINDOW = tl.constexpr(START), tl.constexpr(LONGEST), tl.constexpr(WINDOW)
_TIMES, _SHORTEST = tl.constexpr(TIMES), tl.constexpr(SHORTEST)
_ENDLESS_TIMES, _ENDLESS, _SHARE = (tl.constexpr(number) for number in (ENDLESS_TIMES, ENDLESS, round(1 / ENDLESS_OTHERS)))
LANES, BLOCK = 256, 1024


def end_loops(scores: Tensor, input_ids: Tensor, roles: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    begun = torch.empty_like(rows)
    if len(rows):
        with current(scores.device):
            _end_loops_kernel[(len(rows),)](
                scores, input_ids, roles, rows, ends, begun, input_ids.shape[1], scores.shape[1], len(roles), len(ends),
                ENDS=triton.next_power_of_2(max(len(ends), 1)), LANES=LANES, BLOCK=BLOCK, num_warps=4, **EXACT,
            )  # fmt: skip
    return begun


@triton.jit(do_not_specialize=["length"])
def _end_loops_kernel(
    scores, input_ids, roles, rows, ends, begun, length, classes, num_roles, num_ends,
    ENDS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, LANES)
    last = input_ids + row * length + length - 1
    inside = (lanes < length) & (lanes < _WINDOW)
    tokens = tl.load(last - lanes, mask=inside, other=-1)
    known = (tokens >= 0) & (tokens < num_roles)
    role = tl.load(roles + tokens, mask=known, other=_START).to(tl.int32)
    size = tl.min(tl.where((role & _START) != 0, lanes, LANES), 0)
    in_loop = length * 0  # Triton's interpreter needs a tensor here
    endless = length * 0
    for period in range(1, _LONGEST + 1):
        there = lanes + period < size
        before = tl.load(last - lanes - period, mask=there, other=-1)
        differs = (before != tokens) | (there == 0)
        needed = tl.maximum((_TIMES - 1) * period, _SHORTEST - period)
        others = tl.sum(tl.where(differs & (lanes < needed), 1, 0), 0)
        in_loop = tl.where(others == 0, 1, in_loop)
        needed = tl.maximum((_ENDLESS_TIMES - 1) * period, _ENDLESS - period)
        others = tl.sum(tl.where(differs & (lanes < needed), 1, 0), 0)
        endless = tl.where(others <= needed // _SHARE, 1, endless)
    tl.store(begun + row, in_loop != 0)
    may_change = tl.load(rows + row).to(tl.int32)
    if (in_loop * endless * may_change) != 0:
        x = scores + row * classes
        places = tl.arange(0, ENDS)
        end_tokens = tl.load(ends + places, mask=places < num_ends, other=0)
        kept = tl.load(x + end_tokens, mask=places < num_ends, other=float("-inf"))
        if tl.max(kept, 0) > float("-inf"):
            tl.debug_barrier()
            for block in range(0, classes, BLOCK):
                at = block + tl.arange(0, BLOCK)
                tl.store(x + at, float("-inf"), mask=at < classes)
            tl.debug_barrier()  # all scores must be -inf before the scores of `ends` are written back
            tl.store(x + end_tokens, kept, mask=places < num_ends)


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with its argument types and constants, for compiling ahead of time."""
    signature = {"scores": "*fp32", "input_ids": "*i64", "roles": "*i8", "rows": "*i1", "ends": "*i64", "begun": "*i1"}
    signature |= dict.fromkeys(("length", "classes", "num_roles", "num_ends"), "i32")
    yield _end_loops_kernel, signature, {"ENDS": 2, "LANES": LANES, "BLOCK": BLOCK, **EXACT}
