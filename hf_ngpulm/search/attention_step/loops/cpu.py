"""Loops on the CPU, by the native core (`csrc/loops.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ....engines.native import Function
from ....engines.threads import on_rows

_end = Function("ngpulm_end_loops")


def end_loops(scores: Tensor, input_ids: Tensor, roles: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    begun = torch.empty_like(rows)
    length, classes = input_ids.shape[1], scores.shape[1]
    arguments = (input_ids.contiguous(), length, roles, len(roles), rows, ends, len(ends), classes, scores, begun)
    on_rows(_end, arguments, len(rows), 1000, lambda row: f"an end among {ends.tolist()} is none of {classes} classes")
    return begun
