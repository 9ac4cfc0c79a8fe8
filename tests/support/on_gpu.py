"""Where the tests of tests/gpu run: on a GPU, or on one that is pretended, with kernels in `ptx`, so that they can't rot."""

from __future__ import annotations

from typing import Any

import pytest
import torch

STANDS_IN = not torch.cuda.is_available()
DEVICE = "cuda"
ENGINE = "gpu"
# Kernels are compiled for each type of logits; where that takes most of the time, fast tests of engines have these types, too.
HALVES = [pytest.param(dtype, marks=[pytest.mark.slow] * STANDS_IN) for dtype in (torch.float16, torch.bfloat16)]
needs_cuda = pytest.mark.skipif(STANDS_IN, reason="needs CUDA, or the time that a GPU takes")


def sized(real: Any, small: Any) -> Any:
    """What a test takes on a GPU, and what where a CPU does the work of one."""
    return small if STANDS_IN else real
