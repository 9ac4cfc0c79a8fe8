"""Show progress bars on standard error, one bar per stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")


class Bars:
    """Shows a progress bar for each stage, or nothing.

    Args:
        shown: whether to show anything.
        total_bytes: size in bytes of the files that the first stage reads; None if unknown. If the size is known, the stage's
            bar counts the bytes that `read` reports. Otherwise the bar counts sentences.
    """

    def __init__(self, shown: bool = False, total_bytes: int | None = None) -> None:
        self.shown = shown
        self.total_bytes = total_bytes
        self._reading: tqdm[Any] | None = None

    def read(self, num_bytes: int) -> None:
        """Report that more bytes of the input were read."""
        if self._reading is not None:
            self._reading.update(num_bytes)

    def over(self, batches: Iterable[T], name: str, total: int | None, size_of: Any) -> Iterator[T]:
        """Yield batches, and show a bar for them. `size_of(batch)` returns a batch's number of sentences. `total`: the number
        of all sentences; None if it is unknown.
        """
        in_bytes = self.total_bytes is not None
        unit = (
            {"unit": "B", "unit_scale": True, "unit_divisor": 1024} if in_bytes else {"unit": " sentences", "unit_scale": True}
        )
        with tqdm(desc=name, total=self.total_bytes if in_bytes else total, disable=not self.shown, **unit) as bar:
            self._reading = bar if in_bytes else None
            try:
                for batch in batches:
                    yield batch
                    if not in_bytes:
                        bar.update(size_of(batch))
            finally:
                self._reading = None

    @contextmanager
    def stage(self, name: str, steps: int = 1) -> Iterator[tqdm[Any]]:
        """Begin a stage with a known number of steps. The caller reports steps to the yielded bar with `update()`."""
        with tqdm(desc=name, total=steps, disable=not self.shown, bar_format="{l_bar}{bar}| {elapsed}") as bar:
            yield bar
            bar.update(bar.total - bar.n)
