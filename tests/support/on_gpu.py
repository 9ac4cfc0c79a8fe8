"""Where the tests of tests/gpu run: on a GPU, or on a CPU that stands in for one, to see that they run at all."""

from __future__ import annotations

import os
from typing import Any

import pytest

STANDS_IN = bool(os.environ.get("HF_NGPULM_GPU_STAND_IN"))
DEVICE = "cpu" if STANDS_IN else "cuda"
ENGINE = "gpu"
needs_cuda = pytest.mark.skipif(STANDS_IN, reason="needs CUDA, or the time that a GPU takes")


def sized(real: Any, small: Any) -> Any:
    """What a test takes on a GPU, and what where Triton's interpreter does the work of one."""
    return small if STANDS_IN else real
