"""The `hf-ngpulm` command. A file per subcommand, thin: it parses, calls the library, and prints."""

from __future__ import annotations

import sys
import warnings


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit status 2, never a traceback."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"hf-ngpulm: error: the command line needs {error.name}: pip install 'hf-ngpulm[all]'")
    warnings.formatwarning = _line  # type: ignore[assignment]
    sys.exit(run(sys.argv[1:]))


def _line(message: Warning | str, *_: object) -> str:
    """Return a warning without the place in the source that it comes from."""
    return f"hf-ngpulm: {' '.join(str(message).split())}\n"
