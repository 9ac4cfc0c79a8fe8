"""For tests of Triton kernels on CPU tensors."""

import os

import pytest

# On a GPU they are tested in tests/gpu.


def has_triton() -> bool:
    """Return whether Triton can be imported; under sanitizers something of its name is there that can't be."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


needs_interpreter = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or not has_triton(), reason="no Triton, or not its interpreter"
)
