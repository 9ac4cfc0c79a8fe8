"""For tests of Triton kernels on CPU tensors."""

import os
from importlib.util import find_spec

import pytest

# On a GPU they are tested in tests/gpu.
needs_interpreter = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None, reason="no Triton, or not its interpreter"
)
