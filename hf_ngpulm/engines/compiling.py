"""Compiled loops, kept on disk where there is a folder for them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numba

logger = logging.getLogger(__name__)


def compiling(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return `numba.njit` with some options. What it compiles stays on disk, or, where no folder can be written to, in the
    process."""

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
            _tell()
            return numba.njit(**options)(function)

    return compiled


@functools.cache
def _tell() -> None:
    logger.warning(
        "numba finds no folder that it can write to: every process compiles the loops anew, which takes up to minutes; set "
        "NUMBA_CACHE_DIR to a folder that stays"
    )
