"""Launch kernels on the GPU that holds the tensors, and wait for it once for all that the host asks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


def on_host(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return copies of tensors on the CPU, for which the host waits once."""
    wholes = [tensor.contiguous() for tensor in tensors]
    # (A dimension of size 1 may have any stride: `reshape` would keep it, and `view` refuse it.)
    flat = [whole.as_strided((whole.numel(),), (1,)).view(torch.uint8) for whole in wholes]
    packed = torch.cat(flat).cpu().numpy()
    ends = np.cumsum([tensor.numel() * tensor.element_size() for tensor in tensors])[:-1]
    kinds = (torch.empty(0, dtype=tensor.dtype).numpy().dtype for tensor in tensors)
    return [
        part.copy().view(kind).reshape(tuple(tensor.shape))
        for part, kind, tensor in zip(np.split(packed, ends), kinds, tensors)
    ]
