"""No barrier of the project's kernels can be taken out unnoticed."""

import pytest
from interpreted import IS_INTERPRETED

if not IS_INTERPRETED:
    pytest.skip("no Triton, or a GPU", allow_module_level=True)

import barriers


@pytest.mark.slow
@pytest.mark.parametrize("barrier", barriers.barriers(), ids=lambda barrier: barrier.place)
def test_kernels_fail_without(barrier):
    assert barriers.noticed(barrier) is not None
