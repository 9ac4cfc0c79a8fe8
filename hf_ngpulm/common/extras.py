"""Import packages of extras: if a package is missing, the error names its extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str, what: str) -> Iterator[None]:
    """Import packages of an extra within the block.

    Args:
        extra: as in `pip install 'hf-ngpulm[extra]'`.
        what: is done with them, in the plural.

    Raises:
        ImportError: one isn't there; names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{what} need {error.name}: pip install 'hf-ngpulm[{extra}]'", name=error.name) from None
