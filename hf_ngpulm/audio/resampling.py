"""Audio that comes in pieces, at another rate."""

from __future__ import annotations

from typing import Any

import numpy as np

LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000  # hertz


class Resampler:
    """Resamples piece by piece; all pieces together are what the whole gives at once.

    Args:
        rate: of what comes in, in hertz.
        wanted: of what goes out.

    Raises:
        ValueError: a rate out of range.
    """

    def __init__(self, rate: int, wanted: int) -> None:
        if isinstance(rate, bool) or not isinstance(rate, int) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise ValueError(f"a sampling rate should be a whole number from {LOWEST_RATE} to {HIGHEST_RATE} Hz, got {rate!r}")
        self._stream: Any = None
        if rate != wanted:
            import soxr

            self._stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")

    def __call__(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Return float32 `[N]` -> `[M]`; what is held back comes with the last piece."""
        if self._stream is None:
            return samples
        return self._stream.resample_chunk(np.ascontiguousarray(samples, dtype=np.float32), last=last)
