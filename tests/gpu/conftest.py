"""These tests are for a CUDA device. Without one they run on a GPU that is pretended: smaller, and less of them."""

import pytest
import torch
from interpreted import IS_INTERPRETED

collect_ignore_glob = [] if IS_INTERPRETED or torch.cuda.is_available() else ["test_*.py"]


@pytest.fixture(autouse=True, scope="module")
def device():
    if torch.cuda.is_available():
        yield
        return
    from pretended_gpu import pretended_gpu

    with pretended_gpu():
        yield


@pytest.fixture(autouse=True)
def exact_products():
    """Products of float32 are what they are on a CPU: convolutions round to 10 bits of mantissa by default."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
