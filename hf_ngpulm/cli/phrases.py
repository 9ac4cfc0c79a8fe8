"""Phrases on the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Annotated

import typer

PhrasesOption = Annotated[
    list[str] | None,
    typer.Option("--phrases", help="A file of phrases, one a line, or a phrase itself; may be given several times."),
]
PhraseWeightOption = Annotated[float | None, typer.Option("--phrase-weight", help="Weight of the phrases [default: 1].")]


_LIKE_A_FILE = re.compile(r"\.(txt|tsv|csv|jsonl?|lst|list)$", re.IGNORECASE)


def read_phrases(given: Sequence[str] | None) -> list[str]:
    """Phrases of files, one a line (empty lines are left out), and phrases themselves.

    Raises:
        FileNotFoundError: what is named like a file isn't there; nobody says "names.txt".
        ValueError: a file without phrases.
    """
    phrases: list[str] = []
    for text in given or []:
        if os.path.isfile(text):
            with open(text, encoding="utf-8") as file:
                found = [line.strip() for line in file if line.strip()]
            if not found:
                raise ValueError(f"{text}: holds no phrases (one a line)")
            phrases += found
        elif _LIKE_A_FILE.search(text):
            raise FileNotFoundError(f"--phrases {text}: no such file")
        else:
            phrases.append(text)
    return phrases
