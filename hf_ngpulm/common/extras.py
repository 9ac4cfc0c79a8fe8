"""Import packages of optional extras. If a package is missing, the error names its extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str, what: str) -> Iterator[None]:
    """Import packages of an extra within the `with` block.

    Args:
        extra: the extra's name, as in `pip install 'hf-ngpulm[extra]'`.
        what: the feature that needs the packages, as a plural noun, for the message.

    Raises:
        ImportError: a package is missing; the message names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{what} need {error.name}: pip install 'hf-ngpulm[{extra}]'", name=error.name) from None
