"""These tests need a CUDA device, or HF_NGPULM_GPU_STAND_IN=1 (see `on_gpu`); where there is neither they aren't collected."""

import pytest
import torch
from on_gpu import STANDS_IN

collect_ignore_glob = [] if STANDS_IN or torch.cuda.is_available() else ["test_*.py"]


@pytest.fixture(autouse=True)
def exact_products():
    """Products of float32 are what they are on a CPU: convolutions round to 10 bits of mantissa by default."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
