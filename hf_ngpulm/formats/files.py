"""List the file formats of language models. A format has a reader, and names or content that identify it."""

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
    """Describe a format of language model files. `FORMATS` lists all formats."""

    name: str  # the name in messages
    suffixes: tuple[str, ...]  # endings of file names
    # function that opens a path. It returns an `NGramTable` of token ids, or an `NGramFile`. A tokenizer maps the words of an
    # `NGramFile` to token ids.
    open: Callable[[Any], NGramFile | NGramTable]
    has_token_ids: bool = False  # whether `open` returns a table, so that no tokenizer is needed
    magic: bytes | None = None  # the bytes that files of this format begin with; if None, the suffix identifies the format


KENLM = FileFormat("KenLM binary", (".bin", ".binary"), KenLMFile, magic=MAGIC[:8])
NEMO = FileFormat("NeMo checkpoint", (".nemo",), read_nemo, has_token_ids=True)
ARPA = FileFormat("ARPA file", (".arpa", ".arpa.gz", ".arpa.bz2", ".arpa.xz"), ArpaFile)
FORMATS = (KENLM, NEMO, ARPA)


def format_of(path: str | os.PathLike[str]) -> FileFormat:
    """Return the format of a file.

    If neither bytes nor suffix identify the format, return `ARPA`. The reader of ARPA files refuses other content.
    """
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
    """Return whether a name has the suffix of a language model file. Such a name isn't treated as a folder or repo id."""
    return os.fspath(name).endswith(tuple(suffix for row in FORMATS for suffix in row.suffixes))
