"""Print tables, lines of JSON, and messages on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def tell(message: str) -> None:
    """Print a line on standard error."""
    print(f"hf-ngpulm: {message}", file=sys.stderr, flush=True)


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """If the block ends with KeyboardInterrupt, add a message about the saved work. `kept`: returns this message."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(kept()) from None


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_result(result: dict[str, Any], output: str | None, as_json: bool, show: Callable[[], None]) -> None:
    """Write a result to the JSON file `output`, if given. Then print the result as a line of JSON, or call `show`."""
    if output:
        Path(output).write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
    if as_json:
        print_json(result)
    else:
        show()


def print_line(text: Any, **options: Any) -> None:
    """Print a line without wrapping it at the terminal's width. `[bold]` and similar tags are markup."""
    Console(highlight=False).print(text, soft_wrap=True, **options)


def print_table(
    rows: Iterable[Sequence[str]], headings: Sequence[str] | None = None, title: str | None = None, bold: int | None = None
) -> None:
    """Print a table. If it has headings, all columns after the first are right-aligned. `bold`: number of a row to print in
    bold.
    """
    table = Table(title=title, show_header=headings is not None)
    for i, heading in enumerate(headings or ()):
        table.add_column(heading, justify="right" if i else "left")
    for i, row in enumerate(rows):
        table.add_row(*row, style="bold" if i == bold else None)
    Console(highlight=False).print(table)


def percent(rate: float | None, digits: int = 1) -> str:
    """Return a ratio as a text in percent. For None, return "-"."""
    return "-" if rate is None else f"{100 * rate:.{digits}f}%"


def meaning(result: dict[str, Any]) -> str:
    """Return a result of `Understanding.as_dict` as text. The first line is the meaning. Other lines explain the meaning."""
    slots = ", ".join(f"{slot['name']}={slot['value']!r}" for slot in result["slots"])
    intent = f"{result['intent'] or 'understood'}({slots})" if result["understood"] else "not understood"
    lines = [f"{intent}, confidence {result['confidence']:.2f}"]
    explained = result.get("explanation", {})
    if "evidence" in explained:
        lines.append(f"  evidence {explained['evidence']:.2f}, understood from {explained['least_evidence']:.2f}")
    readings = [("in the grammar", each) for each in explained.get("readings", ())]
    for name, reading in (*readings, ("free", explained.get("free"))):
        if reading is not None:
            scores = ", ".join(
                f"{kind.removesuffix('_score')} {reading[kind]:.2f}" for kind in reading if kind.endswith("_score")
            )
            lines.append(f"  {name}: {reading['text']} ({scores})")
    return "\n  ".join(lines)
