"""No barrier of the project's kernels can be taken out unnoticed."""

import pytest
from emulated import needs_emulator

pytestmark = [pytest.mark.slow, needs_emulator]
pytest.importorskip("triton")

import barriers


@pytest.mark.parametrize("barrier", barriers.barriers(), ids=lambda barrier: barrier.place)
def test_kernels_fail_without(barrier):
    assert barriers.noticed(barrier) is not None
