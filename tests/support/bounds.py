"""Kernels in Triton's interpreter read and write nothing but the tensors that they are given.

On a GPU, and in the interpreter as it is, what lies beside a tensor is read and overwritten without a word. `watch` has every
load, store and atomic operation of every launch compared with where the launch's tensors begin and end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves
from triton.runtime import interpreter

# Where their pointers are among arguments, and where the masks, if they have any.
MASKS = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3, "create_atomic_cas": None}
POINTERS = {"create_masked_load": 0, "create_masked_store": 0, "create_atomic_rmw": 1, "create_atomic_cas": 0}


class OutOfBoundsError(IndexError):
    """A kernel reads or writes what is in none of its tensors."""


class _Extents:
    """Where the tensors of the launch that runs lie."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.begins = self.ends = np.zeros(0, dtype=np.int64)

    def of_launch(self, arguments: Any) -> None:
        self.tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.numel()]
        self.tensors.sort(key=torch.Tensor.data_ptr)
        self.begins = np.array([tensor.data_ptr() for tensor in self.tensors], dtype=np.int64)
        self.ends = np.array([self._end(tensor) for tensor in self.tensors], dtype=np.int64)
        if len(self.ends):
            self.ends = np.maximum.accumulate(self.ends)  # some may lie within others

    @staticmethod
    def _end(tensor: torch.Tensor) -> int:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return tensor.data_ptr() + (last + 1) * tensor.element_size()

    def check(self, what: str, pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        at = np.atleast_1d(pointers.data).astype(np.int64)
        if mask is not None:
            at = at[np.broadcast_to(np.atleast_1d(mask.data), at.shape).astype(bool)]
        if not at.size:
            return
        nearest = np.searchsorted(self.begins, at, side="right") - 1
        ends = self.ends[np.maximum(nearest, 0)] if len(self.ends) else np.zeros_like(at)
        outside = (nearest < 0) | (at + max(size, 1) > ends)
        if outside.any():
            first = int(at[outside][0])
            tensor = min(self.tensors, key=lambda t: min(abs(first - t.data_ptr()), abs(first - self._end(t))), default=None)
            nearby = "there are none"
            if tensor is not None:
                place = (first - tensor.data_ptr()) // tensor.element_size()
                nearby = f"element {place} of a tensor of {tensor.dtype} and shape {tuple(tensor.shape)}"
            raise OutOfBoundsError(f"{what.removeprefix('create_')}: {outside.sum()} elements outside of all tensors: {nearby}")


def watch() -> Iterator[None]:
    """Have kernels refused that leave their tensors, until the generator goes on."""
    extents = _Extents()
    arguments_of = interpreter.GridExecutor._init_args_hst

    def arguments(executor: Any, args: Any, kwargs: Any) -> Any:
        on_host = arguments_of(executor, args, kwargs)
        extents.of_launch(on_host)
        return on_host

    def checked(name: str) -> Any:
        run = getattr(interpreter.InterpreterBuilder, name)
        pointers, masks = POINTERS[name], MASKS[name]

        def checked_run(builder: Any, *args: Any) -> Any:
            extents.check(name, args[pointers], None if masks is None else args[masks])
            return run(builder, *args)

        return checked_run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.GridExecutor, "_init_args_hst", arguments)
        for name in MASKS:
            patch.setattr(interpreter.InterpreterBuilder, name, checked(name))
        yield
