"""How the commands print: results on stdout, as text, tables or JSON lines; progress on stderr, on a terminal only."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from rich.console import Console


def print_line(line: str) -> None:
    """Print a line of results at once, clear of a progress bar."""
    with tqdm.external_write_mode():
        print(line, flush=True)


def print_json(**values: Any) -> None:
    """Print one JSON line; what is infinite or not a number, which JSON has no way to write, is null."""
    finite = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()}
    print_line(json.dumps(finite, ensure_ascii=False))


def console() -> Console:
    """Where tables go. Piped ones are as wide as need be, those on a terminal (or with `COLUMNS` set) as wide as it is."""
    from rich.console import Console

    fixed = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if fixed else 240)


def progress(total: int | None, unit: str) -> tqdm:
    """A progress bar."""
    return tqdm(total=total, unit=unit, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show what is being done, while it is."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)):
        yield
