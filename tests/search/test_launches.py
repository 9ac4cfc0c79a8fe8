"""Searches launch no more kernels on a GPU than they are meant to."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("launches are counted in Triton's interpreter", allow_module_level=True)

import launches


@pytest.mark.parametrize("row", launches.rows(), ids=lambda row: row.name)
def test_launches(row):
    assert 0 < row.count() <= row.goal
