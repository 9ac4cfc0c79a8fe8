"""Columns of numbers that grow at their ends."""

from __future__ import annotations

from typing import Any

import numpy as np

SMALLEST = 1024


class Column:
    """An array with spare room behind its first `size` entries, which doubles when it is used up. That room holds zeros, which
    take no memory until they are written to.

    Args:
        dtype: of the numbers.
    """

    def __init__(self, dtype: Any) -> None:
        self.array = np.zeros(SMALLEST, dtype=dtype)
        self.size = 0

    def add(self, count: int) -> np.ndarray:
        """So many more entries, to be written to."""
        first, self.size = self.size, self.size + count
        if self.size > len(self.array):
            grown = np.zeros(max(self.size, 2 * len(self.array)), dtype=self.array.dtype)
            grown[:first] = self.array[:first]
            self.array = grown
        return self.array[first : self.size]

    @property
    def used(self) -> np.ndarray:
        """The entries."""
        return self.array[: self.size]
