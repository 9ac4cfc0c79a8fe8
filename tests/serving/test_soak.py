"""Honest clients among vanishing, slow and hostile ones: theirs is what it always was, and every place comes back."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("wyoming")
from soak import soak


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [5.0, 600.0])
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_honest_clients_among_others(seconds):
    found = soak(seconds)
    assert found["wrong_count"] == 0, found["wrong"]
    assert found["places_left_taken"] == 0
    assert min(found["clients"].values()) > 2 and len(found["clients"]) == 6, found["clients"]
    if seconds > 100:
        assert found["memory_mib_last_quarter"] < 1.05 * found["memory_mib_second_quarter"], found["memory_mib"]
