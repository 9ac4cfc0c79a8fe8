"""Launch kernels on the GPU that holds the tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_NOTHING: AbstractContextManager[Any] = nullcontext()


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one: Triton launches on that, wherever its arguments are. Others are left as they are."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(device)


def numbered(device: torch.device | str) -> torch.device:
    """Return a device as tensors tell of theirs: `cuda` is the current GPU, which has a number."""
    device = torch.device(device)
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())
