"""List the commands, run a command, and convert errors to messages and exit statuses."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .options import command

# Each command in a line. A command is a function in the module of its name, which is imported when the command is called.
COMMANDS = {
    "demo": "Transcribe bundled clips with small models of every kind: alone, with a language model, a beam, phrases.",
    "train": "Train a language model: modified Kneser-Ney, as KenLM's lmplz.",
    "convert": "Convert a language model: ARPA, NeMo, KenLM binary, or saved -> saved or ARPA.",
    "interpolate": "Mix language models into one.",
    "info": "Show the order, size and training of a language model.",
    "push": "Put a language model on the Hub, with a card.",
    "score": "Score sentences (natural log, </s> included), and print the perplexity of all.",
    "transcribe": "Transcribe audio files, with a language model or phrases.",
    "learn": "Add a correction of a transcript, and show the phrases that the corrections teach.",
    "evaluate": "Measure error rates and speed of a recogniser on recordings with transcripts.",
    "tune": "Find the weights with which a model and an LM make the fewest errors.",
    "stream": "Transcribe a microphone live, or a file at the speed of speech.",
    "serve": "Serve recordings and live audio: OpenAI's API, Wyoming, and a page with a microphone.",
}


ADDRESS = re.compile(r"auto|local|(ray://)?[^/\s]+:[0-9]+")  # address of a Ray cluster


def function_of(name: str) -> Callable[..., None]:
    """Import a command, and return its function for Typer."""
    # Silence progress bars of loading weights, and advice for programmers.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    return command(getattr(import_module(f".{name}", __package__), name))


class Command(TyperCommand):
    """A command with an optional address after --ray. Without an address, --ray means "auto"."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments. If the argument after --ray looks like an address, use it as the cluster's address."""
        completed: list[str] = []
        for arg, following in zip(args, [*args[1:], ""]):
            completed += [arg, "auto"] if arg == "--ray" and not ADDRESS.fullmatch(following) else [arg]
        return super().parse_args(ctx, completed)


class Commands(TyperGroup):
    """The group of all commands. A command's module is imported when the command is called."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if no command has this name."""
        if cmd_name not in COMMANDS:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name])
        one = typer.Typer(**SETTINGS)
        one.command(cmd_name, cls=Command)(function_of(cmd_name))
        typed = typer.main.get_command(one)
        for parameter in typed.params:  # rich would read words in brackets as markup
            if getattr(parameter, "help", None):
                parameter.help = parameter.help.replace("[", r"\[")  # type: ignore[attr-defined]
        return typed

    def invoke(self, ctx: Any) -> Any:
        """Run a command. After Ctrl-C, print a line with the command's message (see `interruptible`)."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            print("hf-ngpulm: interrupted" + (f"; {stop}" if str(stop) else ""), file=sys.stderr)
            raise typer.Exit(130) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from `COMMANDS`, without importing a command."""
        self._listing = True
        super().format_help(ctx, formatter)


SETTINGS: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": "rich"}
app = typer.Typer(
    name="hf-ngpulm",
    cls=Commands,
    help="Fast n-gram language models for the speech recognisers of Hugging Face Transformers.",
    no_args_is_help=True,
    **SETTINGS,
)


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
    """Options that come before the command's name."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return the exit status."""
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
        extras = ("aiohttp", "prometheus_client", "sounddevice", "soundfile", "soxr", "wyoming")
        if error.name not in extras:
            raise
        return _complain(f"this command needs {error.name}: pip install 'hf-ngpulm[all]'")
    except (ValueError, OSError, ImportError) as error:
        return _complain(str(error))
    except Exception as error:
        # typer's own errors about options and arguments; their class has moved between its versions.
        if hasattr(error, "format_message"):
            message = error.format_message()
            return _complain(message) if message else 2  # no message: the help was shown
        raise


def _complain(message: str) -> int:
    line = " ".join(message.split())
    print(f"hf-ngpulm: error: {line}", file=sys.stderr)
    return 2
