"""Read texts from files and datasets, one sentence at a time."""

from __future__ import annotations

import bz2
import csv
import glob
import gzip
import io
import json
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..common.extras import needed

# Names of the transcript's field in manifests and datasets, most common first.
FIELDS = ("text", "sentence", "transcription", "transcript", "normalized_text", "raw_transcription")
ROWS_PER_BATCH = 8192
JSON_LINES = (".jsonl", ".json", ".ndjson")
_DATASET_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_COMPRESSIONS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
Progress = Callable[[int], Any]


def read_texts(
    inputs: Sequence[str | os.PathLike[str]], field: str | None = None, split: str = "train", progress: Progress | None = None
) -> Iterator[str]:
    """Yield the sentences of several inputs, one input after the other. Inputs are read only as far as needed.

    A blank line of a text file, or an empty field, is an empty sentence "". KenLM's lmplz follows the same rule.

    Args:
        inputs: names of inputs. An input is a text file (one sentence per line), JSON lines (`.jsonl`, or `.json` like NeMo's
            manifests), a JSON array of objects (`.json`), a `.csv` or `.tsv` with a header, a compressed file of these kinds
            (`.gz`, `.bz2`, `.xz`), a Parquet file (needs pyarrow), "-" for lines from standard input, a folder saved by
            `datasets`, or the id of a dataset on the Hub (`org/name` or `org/name:config`).
        field: the field or column with the text; by default the first existing name of "text", "sentence", "transcription",
            "transcript", "normalized_text", "raw_transcription".
        split: the split of datasets.
        progress: called with the number of bytes read from files.

    Raises:
        FileNotFoundError: an input isn't a file and can't be the id of a dataset.
        ValueError: a line isn't UTF-8, or a row lacks the field; the error names the file and the line.
    """
    for source in inputs:
        for text in _texts_of(os.fspath(source), field, split, progress):
            yield text.strip()


class TextFiles:
    """Read the texts of files one after the other, or divide the files into parts for the tasks of a cluster.

    Args:
        inputs, field, split, progress: see `read_texts`. An input may also be a pattern such as "books/*.txt". The files that
            match a pattern are read in alphabetical order.
        are_ids: whether the files contain decimal token ids. Then the texts are blocks of ids, see `read_ids`.

    Raises:
        FileNotFoundError: no file fits a pattern.
    """

    def __init__(
        self,
        inputs: Sequence[str | os.PathLike[str]],
        field: str | None = None,
        split: str = "train",
        progress: Progress | None = None,
        are_ids: bool = False,
    ) -> None:
        self.inputs = [name for source in inputs for name in _fitting(os.fspath(source))]
        self.field, self.split, self.progress, self.are_ids = field, split, progress, are_ids

    def __iter__(self) -> Iterator[Any]:
        if self.are_ids:
            return read_ids(self.inputs, self.progress)
        return read_texts(self.inputs, self.field, self.split, self.progress)

    def parts(self, size: int) -> Iterator[list[FilePart]]:
        """Yield parts of about `size` bytes. Any machine that sees the files can read a part. A part may have several small
        files. Only uncompressed lines of text, JSON or ids can be divided; each other input is a single part.

        Raises:
            ValueError: an input is standard input.
        """
        part: list[FilePart] = []
        left = size
        for name in self.inputs:
            if name == "-":
                raise ValueError("the machines of a cluster can't read standard input; name a file that all of them see")
            whole = FilePart(name, 0, None, self.field, self.split, self.are_ids)
            if not _is_lines(name):
                yield from (part, [whole]) if part else ([whole],)
                part, left = [], size
                continue
            begin, end = 0, os.path.getsize(name)
            while begin < end:
                taken = min(left, end - begin)
                part.append(replace(whole, begin=begin, end=begin + taken))
                begin, left = begin + taken, left - taken
                if not left:
                    yield part
                    part, left = [], size
        if part:
            yield part


@dataclass(frozen=True)
class FilePart:
    """Hold an input of `TextFiles`, or the lines of a file that begin at the bytes `begin .. end - 1`. `end` is None for an
    input that can't be divided.
    """

    name: str
    begin: int
    end: int | None
    field: str | None
    split: str
    are_ids: bool

    def texts(self) -> Iterator[Any]:
        """Yield the texts of this part."""
        if self.end is None:
            yield from TextFiles([self.name], self.field, self.split, are_ids=self.are_ids)
            return
        where = f"{self.name}, after byte {self.begin}"
        if self.are_ids:
            lines, first = self._lines(), 1
            while block := list(islice(lines, ROWS_PER_BATCH)):
                yield _ids_of(b"".join(block), where, first)
                first += len(block)
            return
        is_json = Path(self.name).suffix.lower() in JSON_LINES
        for number, raw in enumerate(self._lines(), start=1):
            line = _decoded(raw, self.begin == 0 and number == 1, f"{where}, line {number}")
            if not is_json:
                yield line.strip()
            elif line and not line.isspace():
                yield _json_row(line, self.field, f"{where}, line {number}").strip()

    def _lines(self) -> Iterator[bytes]:
        assert self.end is not None
        with open(self.name, "rb") as file:
            at = self.begin
            if at:
                file.seek(at - 1)
                at += len(file.readline()) - 1
            while at < self.end and (line := file.readline()):
                at += len(line)
                yield line


def _fitting(name: str) -> list[str]:
    """Return the files that match a pattern. If `name` exists or isn't a pattern, return only `name`."""
    if os.path.exists(name) or not glob.has_magic(name):
        return [name]
    found = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not found:
        raise FileNotFoundError(f"{name}: no file fits this pattern")
    return found


def _is_lines(name: str) -> bool:
    kind = Path(name).suffix.lower()
    if not os.path.isfile(name) or kind in (*_COMPRESSIONS, ".parquet", ".csv", ".tsv"):
        return False
    if kind not in JSON_LINES:
        return True
    with open(name, "rb") as file:
        return not file.read(1 << 10).decode("utf-8-sig", "ignore").lstrip().startswith("[")


def total_bytes(inputs: Sequence[str | os.PathLike[str]]) -> int | None:
    """Return the total size of the inputs in bytes; None if an input isn't a file."""
    if all(os.path.isfile(source) for source in inputs):
        return sum(os.path.getsize(source) for source in inputs)
    return None


def read_ids(
    inputs: Sequence[str | os.PathLike[str]], progress: Progress | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of sentences from files of decimal token ids. A block has ids `[L]` and lengths `[S]`.

    Each line of a file is a sentence, as in KenLM.

    Raises:
        ValueError: a line contains anything except decimal token ids; the error names the line.
    """
    for source in inputs:
        name, number = os.fspath(source), 1
        with _opened(name, progress) as file:
            rest = b""
            while block := file.read1(1 << 22):  # type: ignore[attr-defined]  # returns available data at once
                lines, end, rest = (rest + block).rpartition(b"\n")
                if end:
                    yield _ids_of(lines + end, name, number)
                    number += lines.count(end) + 1
            if rest:
                yield _ids_of(rest, name, number)


def _ids_of(lines: bytes, name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    data = np.frombuffer(lines, dtype=np.uint8)
    is_digit = (data >= ord("0")) & (data <= ord("9"))
    is_line_end = data == ord("\n")
    strange = ~(is_digit | is_line_end | np.isin(data, np.frombuffer(b" \t\r", dtype=np.uint8)))
    if strange.any():
        line = number + int(is_line_end[: int(strange.argmax())].sum())
        shown = lines.splitlines()[line - number][:60].decode("utf-8", "replace")
        raise ValueError(f"{name}, line {line}: expected decimal token ids, got {shown!r}; text needs the tokenizer")
    # An id ends at its last digit. Each digit's place value follows from its distance to that end.
    ends = np.flatnonzero(is_digit & ~np.append(is_digit[1:], False))
    begins = np.flatnonzero(is_digit & ~np.append(False, is_digit[:-1]))
    if ends.size and int((ends - begins).max()) > 9:
        raise ValueError(f"{name}: a token id of more than ten digits after line {number}")
    ids = np.zeros(ends.size, dtype=np.int64)
    for place in range(int((ends - begins).max()) + 1 if ends.size else 0):
        there = ends - begins >= place
        ids[there] += (data[ends[there] - place] - ord("0")).astype(np.int64) * 10**place
    line_ends = np.flatnonzero(is_line_end)
    if not lines.endswith(b"\n"):
        line_ends = np.append(line_ends, data.size)
    return ids, np.diff(np.searchsorted(ends, line_ends), prepend=0)


def _texts_of(name: str, field: str | None, split: str, progress: Progress | None) -> Iterator[str]:
    kind = Path(re.sub(r"\.(gz|bz2|xz)$", "", name.lower())).suffix
    if name != "-" and not os.path.isfile(name):
        return _dataset(name, field, split)
    if kind in JSON_LINES:
        return _json_rows(name, field, progress)
    if name.lower().endswith(".parquet"):
        return _parquet(name, field, progress)
    if kind in (".csv", ".tsv"):
        return _csv(name, field, "\t" if kind == ".tsv" else ",", progress)
    return (line for _, line in _all_lines(name, progress))


class _Counted(io.FileIO):
    """Open a file, and report the number of bytes that are read from it."""

    progress: Progress | None = None

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer) or 0
        if self.progress is not None and size:
            self.progress(size)
        return size


@contextmanager
def _opened(name: str, progress: Progress | None) -> Iterator[IO[bytes]]:
    """Open a file or standard input as bytes. Compressed files are decompressed."""
    if name == "-":
        yield sys.stdin.buffer
        return
    if not os.path.exists(name):
        raise FileNotFoundError(f"{name}: no such file")
    counted = _Counted(name)
    counted.progress = progress
    with io.BufferedReader(counted, 1 << 20) as raw:
        decompress = _COMPRESSIONS.get(Path(name).suffix.lower())
        if decompress is None:
            yield raw
            return
        try:
            with decompress(raw, "rb") as file:
                yield io.BufferedReader(file, 1 << 20)  # type: ignore[misc]
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{name}: the compressed file is cut short or damaged: {error}") from None
        except OSError as error:  # "not a gzipped file", a wrong checksum: without an error number
            if error.errno is not None:
                raise
            raise ValueError(f"{name}: the compressed file is damaged: {error}") from None


def numbered_lines(name: str, progress: Progress | None) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that isn't blank."""
    return ((number, line) for number, line in _all_lines(name, progress) if line and not line.isspace())


def _all_lines(name: str, progress: Progress | None) -> Iterator[tuple[int, str]]:
    with _opened(name, progress) as file:
        for number, raw in enumerate(file, start=1):
            yield number, _decoded(raw, number == 1, f"{name}, line {number}")


def _decoded(raw: bytes, is_first: bool, where: str) -> str:
    try:
        line = raw.decode("utf-8-sig" if is_first else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text: {error}") from None
    if "\0" in line:
        raise ValueError(f"{where}: a zero byte; this looks like a binary file, not text")
    return line


def _json_rows(name: str, field: str | None, progress: Progress | None) -> Iterator[str]:
    lines = numbered_lines(name, progress)
    first = next(lines, None)
    if first is not None and first[0] == 1 and first[1].lstrip().startswith("["):
        try:
            rows = json.loads("".join([first[1], *(line for _, line in lines)]))
        except ValueError as error:
            raise ValueError(f"{name}: not JSON: {error}") from None
        for number, row in enumerate(rows, start=1):
            yield _field_of(row, field, f"{name}, entry {number}")
        return
    for number, line in chain([] if first is None else [first], lines):
        yield _json_row(line, field, f"{name}, line {number}")


def _json_row(line: str, field: str | None, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not a JSON object: {error}") from None
    return _field_of(row, field, where)


def _field_of(row: Any, field: str | None, where: str) -> str:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object with the text in a field, got {str(row)[:60]!r}")
    name = choose_field(list(row), field, where)
    if not isinstance(row[name], str):
        raise ValueError(f"{where}: the field {name!r} isn't text, but {str(row[name])[:60]!r}")
    return row[name]


def choose_field(names: list[str], field: str | None, where: str) -> str:
    """Return the name of the field with the text: `field` if given, otherwise the first name in `FIELDS` that exists. Raises
    ValueError if there is no such field. `where`: the place in the input, for the message.
    """
    for candidate in FIELDS if field is None else (field,):
        if candidate in names:
            return candidate
    wanted = f"no field {field!r}" if field is not None else f"none of the fields {', '.join(FIELDS)}"
    raise ValueError(
        f"{where}: {wanted}; there are {', '.join(map(repr, names)) or 'none'}. Name the one with the text (field)"
    )


def _parquet(name: str, field: str | None, progress: Progress | None) -> Iterator[str]:
    with needed("eval", f"{name}: Parquet files"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        file = pq.ParquetFile(name)
        column = choose_field(file.schema_arrow.names, field, name)
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=[column]):
            values = batch.column(0)
            if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
                raise ValueError(f"{name}: the column {column!r} isn't text, but {values.type}")
            yield from (value for value in values.to_pylist() if value is not None)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{name}: not a Parquet file, or damaged: {error}") from None
    if progress is not None:
        progress(os.path.getsize(name))


def _csv(name: str, field: str | None, delimiter: str, progress: Progress | None) -> Iterator[str]:
    with _opened(name, progress) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, delimiter=delimiter)
        try:
            names = next(filter(None, rows), [])
            column = names.index(choose_field(names, field, name))
            for row in filter(None, rows):  # blank lines have no fields
                if len(row) != len(names):
                    raise ValueError(f"{name}, line {rows.line_num}: {len(row)} fields, the header has {len(names)}")
                yield row[column]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{name}, line {rows.line_num + 1}: can't be read as a table: {error}") from None


def _dataset(name: str, field: str | None, split: str) -> Iterator[str]:
    """Yield the texts of a dataset in a folder or on the Hub."""
    local = os.path.isdir(name)
    if not local and (not _DATASET_ID.fullmatch(name) or re.search(r"\.(txt|json|jsonl|csv|tsv|parquet|gz|xz|bz2)$", name)):
        raise FileNotFoundError(f"{name}: no such file (and no id of a dataset on the Hub, which looks like org/name)")
    with needed("eval", "datasets"):
        import datasets

    if local:
        try:
            rows: Any = datasets.load_from_disk(name)
        except FileNotFoundError:
            raise ValueError(f"{name}: a folder, but not one saved by datasets; name the files in it") from None
        rows = rows[split] if isinstance(rows, datasets.DatasetDict) else rows
    else:
        repo, _, config = name.partition(":")
        rows = datasets.load_dataset(repo, config or None, split=split, streaming=True)
    columns = rows.column_names
    if columns is not None:
        rows = rows.select_columns([choose_field(list(columns), field, name)])  # leaves the audio undecoded
    for number, row in enumerate(rows, start=1):
        yield _field_of(row, field, f"{name}, row {number}")
