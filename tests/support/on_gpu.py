"""Where the tests of tests/gpu run: on a GPU, or on one that is pretended, with kernels in `ptx`, so that they can't rot."""

from __future__ import annotations

from typing import Any

import pytest
import torch

STANDS_IN = not torch.cuda.is_available()
DEVICE = "cuda"
ENGINE = "gpu"
needs_cuda = pytest.mark.skipif(STANDS_IN, reason="needs CUDA, or the time that a GPU takes")


def sized(real: Any, small: Any) -> Any:
    """What a test takes on a GPU, and what where a CPU does the work of one."""
    return small if STANDS_IN else real
