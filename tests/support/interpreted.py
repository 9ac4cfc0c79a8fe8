"""For tests of Triton kernels on CPU tensors, where `ptx` interprets what they are compiled to. On a GPU: tests/gpu."""

import pytest
import torch


def has_triton() -> bool:
    """Return whether Triton can be imported; under sanitizers something of its name is there that can't be."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


IS_INTERPRETED = has_triton() and not torch.cuda.is_available()


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, at an address that 16 divides: for others kernels are compiled anew."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


needs_interpreter = pytest.mark.skipif(not IS_INTERPRETED, reason="no Triton, or a GPU")
