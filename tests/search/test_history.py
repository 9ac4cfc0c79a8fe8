"""What hypotheses consist of: the same by the native core as written plainly."""

import numpy as np
import pytest

from hf_ngpulm.search.history import History

BLANK = 3


@pytest.mark.parametrize("measured", [True, False])
def test_labels_without_the_native_core(measured):
    random = np.random.default_rng(0)
    ways = [History(4, 1, goes_on=True) for _ in range(2)]
    states = [(np.full(4, BLANK, dtype=np.int32), np.zeros(4)) for _ in ways]
    firsts, rows = np.zeros(4, dtype=np.int64), np.array([3, 0, 1])
    for _ in range(3):
        labels, lengths = random.integers(1, BLANK + 1, (3, 9)).astype(np.int32), random.integers(0, 10, 3).astype(np.int32)
        confidences = random.random((3, 9)).astype(np.float32) if measured else None
        for history, (last, sums), name in zip(ways, states, ("label", "_label_slowly")):
            history.with_room(rows, 9)
            getattr(history, name)(rows, labels, lengths, firsts, last, sums, confidences, BLANK)
        firsts[rows] += lengths
    assert ways[0].sizes.tolist() == ways[1].sizes.tolist() != [[0]] * 4
    assert np.array_equal(ways[0].tails, ways[1].tails)
    assert all(np.array_equal(a, b) for a, b in zip(*states))
