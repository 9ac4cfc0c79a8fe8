"""The subcommands together, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from . import convert, demo, evaluate, info, interpolate, score, serve, stream, train, transcribe, tune

app = typer.Typer(
    name="hf-ngpulm",
    help="Fast n-gram language models for the speech recognisers of Hugging Face Transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(demo.demo)
app.command()(train.train)
app.command()(convert.convert)
app.command()(interpolate.interpolate)
app.command()(info.info)
app.command()(score.score)
app.command()(transcribe.transcribe)
app.command()(evaluate.evaluate)
app.command()(tune.tune)
app.command()(stream.stream)
app.command()(serve.serve)


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
    # Progress bars of weights being loaded, and advice meant for programmers, don't belong in a command's output.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit status."""
    try:
        result = typer.main.get_command(app).main(list(arguments), prog_name="hf-ngpulm", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        extras = ("accelerate", "aiohttp", "datasets", "jiwer", "matplotlib", "pyarrow", "sounddevice", "soundfile", "soxr")
        if error.name not in extras:
            raise
        return _complain(f"this command needs {error.name}: pip install 'hf-ngpulm[all]'")
    except (ValueError, OSError, ImportError) as error:
        return _complain(str(error))
    except Exception as error:
        # typer's own complaints about options and arguments; their class has moved between its versions.
        if hasattr(error, "format_message"):
            message = error.format_message()
            return _complain(message) if message else 2  # no message: the help was shown
        raise


def _complain(message: str) -> int:
    line = " ".join(message.split())
    print(f"hf-ngpulm: error: {line}", file=sys.stderr)
    return 2
