"""The `hf-ngpulm` command. Each subcommand has a short file, which parses options, calls the library and prints."""

from __future__ import annotations

import sys
import warnings


def main() -> None:
    """Run the command line. A user's mistake prints one line on stderr and gives exit status 2, without a traceback."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"hf-ngpulm: error: the command line needs {error.name}: pip install 'hf-ngpulm[all]'")
    warnings.formatwarning = _line  # type: ignore[assignment]
    sys.exit(run(sys.argv[1:]))


def _line(message: Warning | str, *_: object) -> str:
    """Return the text of a warning, without the source file and line that raised it."""
    return f"hf-ngpulm: {' '.join(str(message).split())}\n"
