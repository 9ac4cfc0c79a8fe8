"""For tests of Triton kernels on CPU tensors, which `ptx` runs. On a GPU they are tested in tests/gpu."""

import pytest
import torch


def has_triton() -> bool:
    """Return whether Triton can be imported; under sanitizers something of its name is there that can't be."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


IS_EMULATED = has_triton() and not torch.cuda.is_available()
needs_emulator = pytest.mark.skipif(not IS_EMULATED, reason="no Triton, or a GPU")
