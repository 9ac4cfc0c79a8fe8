"""The reference of the command line, made of the commands' own signatures; MkDocs calls this when it builds the site."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any

PLACE = "<!-- the commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the reference where a page has its place."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """All commands, as Markdown."""
    return "\n\n".join(_command(name, function) for name, function in commands().items())


def commands() -> dict[str, Callable[..., None]]:
    """The functions behind the commands, by name."""
    from hf_ngpulm.cli.app import COMMANDS, function_of

    return {name: function_of(name) for name in COMMANDS}


def parameters(function: Callable[..., None]) -> list[tuple[str, Any, Any, Any]]:
    """Name, type, what Typer was told, and default of each parameter of a command."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        if typing.get_origin(hint) is typing.Union:  # what Python 3.10 makes of a default that is None
            hint = typing.get_args(hint)[0]
        kind, told = typing.get_args(hint)[:2]
        found.append((name, kind, told, parameter.default))
    return found


def option_names(name: str, told: Any) -> list[str]:
    """`Annotated[..., typer.Option("--name", "-n")]` leaves the first of the names where a default may stand."""
    given = [text for text in (told.default, *(told.param_decls or ())) if isinstance(text, str) and text.startswith("-")]
    return [part for names in given or [f"--{name.replace('_', '-')}"] for part in names.split("/")]


def _command(name: str, function: Callable[..., None]) -> str:
    arguments, options, usage = [], [], [f"hf-ngpulm {name}"]
    for parameter, kind, told, default in parameters(function):
        help_text = _escaped(told.help or "")
        needed = default is inspect.Parameter.empty
        if type(told).__name__ == "ArgumentInfo":
            word = (told.metavar or parameter.upper()) + ("..." if "list" in str(kind) else "")
            usage.append(word if needed else f"[{word}]")
            arguments.append((f"`{word}`", help_text, "required" if needed else ""))
        elif not told.hidden:
            shown = ", ".join(f"`{each}`" for each in option_names(parameter, told))
            value = (told.metavar or _value(kind)).replace("|", "\\|")
            options.append((shown + (f" `{value}`" if value else ""), help_text, "required" if needed else _default(default)))
    if options:
        usage.append("[OPTIONS]")
    parts = [
        f"## hf-ngpulm {name}",
        "```text\n" + " ".join(usage) + "\n```",
        *_told(function.__doc__ or "", f"hf-ngpulm {name} "),
    ]
    for heading, rows in (("Argument", arguments), ("Option", options)):
        if rows:
            parts.append(
                "\n".join([f"| {heading} | | Default |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])
            )
    return "\n\n".join(parts)


def _told(text: str, start: str) -> list[str]:
    """A command's help: paragraphs, of which those that are commands are examples."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        is_code = start in paragraph
        parts.append(f"```text\n{paragraph}\n```" if is_code else _escaped(paragraph))
    return parts


def _value(kind: Any) -> str:
    """What an option takes; nothing for a switch."""
    inner = [part for part in typing.get_args(kind) if part is not type(None)]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return _value(inner[0])
    if typing.get_origin(kind) is list:
        return _value(inner[0])
    return {bool: "", str: "TEXT", int: "INTEGER", float: "NUMBER"}[kind]


def _default(value: Any) -> str:
    return "" if value is None or value is False else "on" if value is True else f"`{value}`"


def _escaped(text: str) -> str:
    """Text for a table: what it means in Markdown or HTML it is not."""
    return re.sub(r"([|>*_\[\]])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")
