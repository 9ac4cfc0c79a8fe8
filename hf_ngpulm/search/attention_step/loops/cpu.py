"""Detect and end loops on the CPU, with the native core (`csrc/loops.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ....engines.native import Function, Struct
from ....engines.threads import on_rows

_end = Function("ngpulm_end_loops")


class Ends(Struct):
    """The classes that end a transcript, and the roles of all classes, for the native core."""

    @classmethod
    def lent(cls, roles: Tensor, ends: Tensor, classes: int) -> Ends:
        """Return a struct of `ends` (ids of the classes that end a transcript), `roles` (a role per class, see `Roles`) and
        `classes`, the number of classes. The struct is cached on `ends`. Use the struct only in the next call.
        """
        key = (roles.data_ptr(), len(roles), len(ends), classes)
        return cls.kept(ends, key, lambda: cls._of(roles, ends, classes))

    @classmethod
    def _of(cls, roles: Tensor, ends: Tensor, classes: int) -> Ends:
        return cls(roles=roles, ends=ends, num_roles=len(roles), num_ends=len(ends), classes=classes)


def end_loops(scores: Tensor, input_ids: Tensor, roles: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    begun = torch.empty_like(rows)
    length, classes = input_ids.shape[1], scores.shape[1]
    arguments = (Ends.lent(roles, ends, classes), input_ids.contiguous(), length, rows, scores, begun)
    on_rows(_end, arguments, len(rows), 1000, lambda row: f"an end among {ends.tolist()} is none of {classes} classes")
    return begun
