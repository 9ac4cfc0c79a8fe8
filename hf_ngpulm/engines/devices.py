"""Launch kernels on the GPU that holds the tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_NOTHING: AbstractContextManager[Any] = nullcontext()


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, since Triton launches on that whatever device its arguments are on. No-op for other
    devices."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(device)


def numbered(device: torch.device | str) -> torch.device:
    """Return a device with its index, as tensors report theirs: `cuda` becomes the current GPU."""
    device = torch.device(device)
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())
