"""The subcommands together, and what becomes of errors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from . import convert, demo, info, score, transcribe

EXTRAS = ("jiwer", "rich", "soundfile", "soxr")
LONGEST_COMPLAINT = 600  # characters; libraries put whole manuals into their messages

app = typer.Typer(
    name="hf-ngpulm",
    help="Fast n-gram language models for the speech recognisers of Hugging Face Transformers.",
    epilog="Try it: hf-ngpulm demo. Examples of a command: hf-ngpulm COMMAND --help.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(demo.demo)
app.command()(transcribe.transcribe)
app.command()(convert.convert)
app.command()(info.info)
app.command()(score.score)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"hf-ngpulm {version('hf-ngpulm')}")
        except PackageNotFoundError:
            print("hf-ngpulm (not installed: running from source)")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit status."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be valid text
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")  # advice meant for programmers
            result = typer.main.get_command(app).main(list(arguments), prog_name="hf-ngpulm", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        return _complain(f"this command needs {error.name}: pip install 'hf-ngpulm[all]'")
    except (ValueError, OSError) as error:
        return _complain(str(error))
    except MemoryError:
        return _complain("not enough memory")
    except Exception as error:
        # typer's own complaints about options and arguments; their class has moved between its versions.
        if hasattr(error, "format_message"):
            message = error.format_message()
            return _complain(message) if message else 2  # no message: the help was shown
        raise


def _complain(message: str) -> int:
    line = " ".join(message.split())
    if len(line) > LONGEST_COMPLAINT:
        line = line[: LONGEST_COMPLAINT - 1] + "…"
    print(f"hf-ngpulm: error: {line}", file=sys.stderr)
    return 2
