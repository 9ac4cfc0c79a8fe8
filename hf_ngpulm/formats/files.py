"""The file formats of language models: how each is told by its name or content, and what opens it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from ..ngrams.table import NGramTable
from .arpa import ArpaFile
from .kenlm import MAGIC, KenLMFile
from .nemo import read_nemo
from .units import NGramFile


class FileFormat(NamedTuple):
    """A row of the table. All that reads, finds or names files goes by it.

    Args:
        name: for messages.
        suffixes: endings of file names.
        open: returns an `NGramFile`, whose words a tokenizer maps to token ids, or an `NGramTable` of token ids.
        has_token_ids: whether it returns a table, and thus does without a tokenizer.
        magic: the bytes that files begin with; without them the suffix tells the format.
    """

    name: str
    suffixes: tuple[str, ...]
    open: Callable[[Any], NGramFile | NGramTable]
    has_token_ids: bool = False
    magic: bytes | None = None


KENLM = FileFormat("KenLM binary", (".bin", ".binary"), KenLMFile, magic=MAGIC[:8])
NEMO = FileFormat("NeMo checkpoint", (".nemo",), read_nemo, has_token_ids=True)
ARPA = FileFormat("ARPA file", (".arpa", ".arpa.gz", ".arpa.bz2", ".arpa.xz"), ArpaFile)
FORMATS = (KENLM, NEMO, ARPA)


def format_of(path: str | os.PathLike[str]) -> FileFormat:
    """Return the format of a file; what neither bytes nor suffix tell is taken for an ARPA file, whose reader may complain."""
    try:
        with open(path, "rb") as file:
            start = file.read(max(len(row.magic or b"") for row in FORMATS))
    except OSError:
        start = b""
    for row in FORMATS:
        if start.startswith(row.magic) if row.magic else os.fspath(path).endswith(row.suffixes):
            return row
    return ARPA


def is_named_like_a_file(name: str | os.PathLike[str]) -> bool:
    """Return whether a name ends as language model files do, and can't be a folder or a repo id by mistake."""
    return os.fspath(name).endswith(tuple(suffix for row in FORMATS for suffix in row.suffixes))
