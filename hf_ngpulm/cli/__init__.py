"""Run the `hf-ngpulm` command. Each subcommand has a short module that parses options, calls the library and prints results."""

from __future__ import annotations

import sys
import warnings


def main() -> None:
    """Run the command line. After a user's mistake, print one line on stderr without a traceback, and exit with status 2."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"hf-ngpulm: error: the command line needs {error.name}: pip install 'hf-ngpulm[all]'")
    warnings.formatwarning = _line  # type: ignore[assignment]
    sys.exit(run(sys.argv[1:]))


def _line(message: Warning | str, *_: object) -> str:
    """Return the text of a warning, without the name and the line of the source file."""
    return f"hf-ngpulm: {' '.join(str(message).split())}\n"
