"""Searches launch no more kernels on a GPU than they are meant to."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import launches


@pytest.mark.parametrize("row", launches.rows(), ids=lambda row: row.name)
def test_launches(row):
    assert 0 < row.count() <= row.goal
