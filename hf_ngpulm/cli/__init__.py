"""The `hf-ngpulm` command. A file per subcommand, thin: it parses, calls the library, and prints."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit status 2, never a traceback."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"hf-ngpulm: error: the command line needs {error.name}: pip install 'hf-ngpulm[all]'")
    sys.exit(run(sys.argv[1:]))
