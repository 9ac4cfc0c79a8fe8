"""Audio of one stream that is still needed."""

from __future__ import annotations

from collections import deque

import numpy as np


class Samples:
    """A recording of which the begin is forgotten as it grows. Positions count from its begin.

    Args:
        received: samples so far.
        ended: whether no more will come.
    """

    def __init__(self) -> None:
        self.received = 0
        self.ended = False
        self._first = 0  # position of the first sample that is held
        self._pieces: deque[np.ndarray] = deque()

    def append(self, samples: np.ndarray) -> None:
        if len(samples):
            self._pieces.append(samples.astype(np.float32))  # a copy: the caller may reuse his own
            self.received += len(samples)

    def slice(self, begin: int, end: int) -> np.ndarray:
        """Return samples from `begin` to `end`; zeros before the recording's begin, none after its end."""
        whole = np.concatenate([np.zeros(max(0, -begin), dtype=np.float32), *self._pieces])
        first = self._first if begin >= 0 else begin
        return whole[begin - first : max(0, min(end, self.received) - first)]

    def forget(self, before: int) -> None:
        """Drop pieces that lie wholly before a position."""
        while self._pieces and self._first + len(self._pieces[0]) <= before:
            self._first += len(self._pieces.popleft())
