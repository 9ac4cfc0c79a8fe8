"""Launch kernels on the GPU that holds the tensors, and copy results to the host with a single wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NOTHING: AbstractContextManager[Any] = nullcontext()


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context manager that makes a GPU the current GPU. For other devices, it does nothing.

    Triton launches kernels on the current GPU, even if their arguments are on another GPU.
    """
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(device)


def numbered(device: torch.device | str) -> torch.device:
    """Return a device with an index, as tensors report devices. For example, `cuda` becomes the current GPU."""
    device = torch.device(device)
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def on_host(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return copies of tensors on the CPU. The host waits for the device only once."""
    wholes = [tensor.contiguous() for tensor in tensors]
    # A dimension of size 1 may have any stride. `reshape` would keep that stride, and `view` would then raise an error.
    flat = [whole.as_strided((whole.numel(),), (1,)).view(torch.uint8) for whole in wholes]
    packed = torch.cat(flat).cpu().numpy()
    ends = np.cumsum([tensor.numel() * tensor.element_size() for tensor in tensors])[:-1]
    kinds = (torch.empty(0, dtype=tensor.dtype).numpy().dtype for tensor in tensors)
    return [
        part.copy().view(kind).reshape(tuple(tensor.shape))
        for part, kind, tensor in zip(np.split(packed, ends), kinds, tensors)
    ]
