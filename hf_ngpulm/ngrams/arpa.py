"""ARPA files, read and written by column.

The text is split and parsed by pyarrow's vectorised kernels in blocks of lines, a few blocks at a time on several threads; no
Python code runs per line. What differs between KenLM's and SRILM's dialects (tabs or blanks between fields, missing backoffs,
`-99` for log 0, `<unk>` or `<UNK>`, Windows line ends, trailing blanks, blank lines) is accepted everywhere.
"""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import NGramFormatError
from ..files import write_beside
from ..vocabulary import Vocabulary
from .table import NGramTable
from .units import NEMO_OFFSET, units_to_ids

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

LN10 = math.log(10.0)
LOG10_ZERO = -99.0  # SRILM's and KenLM's way to write log 0
LINES_PER_BLOCK = 1 << 17
# Rounding in the writer of a file may leave a log-probability this far above 0 (log10).
ROUNDING = 1e-4
_DECOMPRESSORS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_SPECIAL_WORDS = {"<s>": "bos", "<S>": "bos", "</s>": "eos", "</S>": "eos", "<unk>": "unk", "<UNK>": "unk"}


def read_arpa(path: str | os.PathLike[str], vocabulary: Vocabulary, units: str = "auto") -> NGramTable:
    """Read an ARPA file (plain, .gz, .bz2 or .xz, told apart by content) into a table.

    N-grams of order 2 and up that contain `<unk>` become n-grams of the tokenizer's unknown token; where it has none they are
    left out, with a warning (`<unk>` then stands for no single token). A log-probability of `-inf` is read as -99, as both
    toolkits write log 0.

    Args:
        path: the file.
        vocabulary: the ids that its units stand for.
        units: "auto", "piece", "id", "nemo" or "char", see `hf_ngpulm.ngrams.units`.

    Raises:
        NGramFormatError: the file isn't an ARPA file, is cut short or damaged, or doesn't fit the vocabulary.
    """
    text = _Text(Path(path))
    sections = text.sections()
    unigrams = _Columns(text, sections[0])
    words = unigrams.words.to_pylist()
    special = {"bos": vocabulary.size, "eos": vocabulary.size + 1, "unk": vocabulary.size + 2}
    ordinary = [word for word in words if word not in _SPECIAL_WORDS]
    try:
        _, ordinary_ids = units_to_ids(ordinary, units, vocabulary)
    except NGramFormatError as error:
        raise NGramFormatError(f"{path}: {error}") from None
    ids = iter(ordinary_ids)
    id_of_word = np.array([special[_SPECIAL_WORDS[w]] if w in _SPECIAL_WORDS else next(ids) for w in words], dtype=np.int64)

    import pyarrow as pa

    known_words = pa.array(words, type=pa.string())
    rows = []
    for section in sections:
        columns = unigrams if section.n == 1 else _Columns(text, section, known_words)
        tokens = id_of_word[columns.word_rows].reshape(-1, section.n)
        kept = slice(None)
        if section.n > 1:
            tokens, kept = _without_unk(tokens, special["unk"], vocabulary.unk_id, text.path, section.n)
        rows.append(
            (
                torch.from_numpy(np.ascontiguousarray(tokens)),
                torch.from_numpy(columns.log_probs[kept] * LN10),
                torch.from_numpy(columns.backoffs[kept] * LN10),
            )
        )
        if section.n > 1:
            del columns
    while len(rows) > 1 and rows[-1][0].shape[0] == 0:
        rows.pop()
    try:
        return NGramTable.from_rows(vocabulary.size, rows)
    except NGramFormatError as error:
        raise NGramFormatError(f"{path}: {error}") from None


def _without_unk(tokens: np.ndarray, unk: int, unk_id: int | None, path: Path, n: int) -> tuple[np.ndarray, Any]:
    with_unk = (tokens == unk).any(axis=1)
    if not with_unk.any():
        return tokens, slice(None)
    if unk_id is not None:
        return np.where(tokens == unk, unk_id, tokens), slice(None)
    logger.warning("%s: %d %d-grams contain <unk>, which no token id stands for; they are left out", path, with_unk.sum(), n)
    return tokens[~with_unk], ~with_unk


class _Section:
    """A run of lines that holds the n-grams of one order."""

    def __init__(self, n: int, first: int, last: int) -> None:
        self.n, self.first, self.last = n, first, last


class _Text:
    """The bytes of a file, and where its lines begin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = _read_bytes(path)
        data = np.frombuffer(self.buffer, dtype=np.uint8)
        if data.size == 0:
            raise NGramFormatError(f"{path}: the file is empty; an ARPA file begins with a line \\data\\")
        if bytes(data[:8]) == b"mmap lm ":
            raise NGramFormatError(f"{path}: this is a KenLM binary, not an ARPA file; give the ARPA file it was built from")
        newlines = np.flatnonzero(data == ord("\n"))
        self.starts = np.concatenate([[0], newlines + 1])
        if self.starts[-1] == data.size:
            self.starts = self.starts[:-1]
        self.ends = np.append(newlines, data.size)[: len(self.starts)]
        self.data = data

    def line(self, number: int) -> str:
        raw = bytes(self.data[self.starts[number] : self.ends[number]])
        return raw.decode("utf-8", "replace").strip()

    def sections(self) -> list[_Section]:
        """Find the sections and hold their sizes against the counts in the header."""
        marked = np.flatnonzero(self.data[self.starts] == ord("\\"))
        headings = [(int(number), self.line(int(number))) for number in marked]
        if not headings or headings[0][1] != "\\data\\":
            shown = self.line(0)[:40]
            raise NGramFormatError(f"{self.path}: not an ARPA file: no line \\data\\ (it begins with {shown!r})")
        counts: dict[int, int] = {}
        first_section = headings[1][0] if len(headings) > 1 else len(self.starts)
        for number in range(headings[0][0] + 1, first_section):
            line = self.line(number)
            if match := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line):
                counts[int(match[1])] = int(match[2])
            elif line:
                raise NGramFormatError(
                    f"{self.path}, line {number + 1}: expected 'ngram N=COUNT' in the header, got {line[:60]!r}"
                )
        if not counts or sorted(counts) != list(range(1, len(counts) + 1)):
            raise NGramFormatError(f"{self.path}: the header should count orders 1, 2, ... but counts {sorted(counts)}")
        expected = [f"\\{n}-grams:" for n in range(1, len(counts) + 1)] + ["\\end\\"]
        found = [heading for _, heading in headings[1 : len(expected) + 1]]
        if found != expected:
            missing = next(want for want, have in zip(expected, [*found, *[None] * len(expected)], strict=False) if want != have)
            raise NGramFormatError(
                f"{self.path}: no line {missing} where it should stand (headings found: {found}); is the file cut short?"
            )
        return [
            _Section(n, *self._trim(headings[n][0] + 1, headings[n + 1][0], counts[n], n)) for n in range(1, len(counts) + 1)
        ]

    def _trim(self, first: int, last: int, count: int, n: int) -> tuple[int, int]:
        """Leave off blank lines at both ends, and compare what is left with the header's count."""
        while last > first and not self.line(last - 1):
            last -= 1
        while first < last and not self.line(first):
            first += 1
        if last - first != count:
            blank = sum(1 for number in range(first, last) if self.ends[number] - self.starts[number] <= 1)
            if last - first - blank != count:
                raise NGramFormatError(f"{self.path}: the header says {count} {n}-grams, the file has {last - first - blank}")
        return first, last

    def lines(self, first: int, last: int) -> pa.Array:
        """Lines as strings that share the file's memory."""
        import pyarrow as pa

        start = int(self.starts[first])
        offsets = np.append(self.starts[first:last], self.ends[last - 1]) - start
        try:
            array = pa.Array.from_buffers(
                pa.large_string(), last - first, [None, pa.py_buffer(offsets.astype(np.int64)), self.buffer.slice(start)]
            )
            array.validate(full=True)
        except pa.ArrowInvalid:
            for number in range(first, last):
                try:
                    bytes(self.data[self.starts[number] : self.ends[number]]).decode("utf-8")
                except UnicodeDecodeError as error:
                    raise NGramFormatError(f"{self.path}, line {number + 1}: not UTF-8 text: {error}") from None
            raise
        return array


def _read_bytes(path: Path) -> pa.Buffer:
    import pyarrow as pa

    with open(path, "rb") as file:
        magic = file.read(6)
    for mark, decompress in _DECOMPRESSORS.items():
        if magic.startswith(mark):
            try:
                with decompress(path, "rb") as file:
                    return pa.py_buffer(file.read())
            except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                raise NGramFormatError(f"{path}: the compressed file is cut short or damaged: {error}") from None
    if not magic:
        return pa.py_buffer(b"")
    return pa.memory_map(str(path)).read_buffer()


class _Columns:
    """The columns of one section: `word_rows` [N * n], `log_probs` [N] and `backoffs` [N] (log10).

    For unigrams `words` holds the words themselves; for higher orders words are looked up among those of the unigrams.
    """

    def __init__(self, text: _Text, section: _Section, known_words: pa.Array | None = None) -> None:
        import pyarrow as pa

        self.text, self.n, self.known_words = text, section.n, known_words
        blocks = [
            (first, min(first + LINES_PER_BLOCK, section.last)) for first in range(section.first, section.last, LINES_PER_BLOCK)
        ]
        if len(blocks) > 1:
            with ThreadPoolExecutor(max_workers=min(len(blocks), os.cpu_count() or 1, 8)) as pool:
                parts = list(pool.map(self._parse, blocks))
        else:
            parts = [self._parse(block) for block in blocks]
        if parts:
            self.log_probs, self.backoffs = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        else:
            self.log_probs, self.backoffs = np.zeros(0), np.zeros(0)
        if known_words is None:
            self.words = pa.chunked_array([part[2] for part in parts], type=pa.large_string())
            self.word_rows = np.arange(len(self.words))
        else:
            self.word_rows = np.concatenate([part[2] for part in parts]) if parts else np.zeros(0, dtype=np.int64)

    def _parse(self, block: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = np.arange(*block)
        lines = pc.ascii_trim_whitespace(self.text.lines(*block))
        empty = pc.equal(pc.binary_length(lines), 0).to_numpy(zero_copy_only=False)
        if empty.any():
            lines, numbers = lines.filter(pa.array(~empty)), numbers[~empty]
        fields = pc.ascii_split_whitespace(lines)
        begins = fields.offsets.to_numpy()[:-1]
        widths = np.diff(fields.offsets.to_numpy())
        wrong = (widths != self.n + 1) & (widths != self.n + 2)
        if wrong.any():
            number = int(numbers[wrong][0])
            raise NGramFormatError(
                f"{self.text.path}, line {number + 1}: expected a log-probability, {self.n} word(s) and possibly a backoff, got "
                f"{self.text.line(number)[:80]!r}"
            )
        flat = fields.values
        log_probs = self._numbers(flat.take(pa.array(begins)), numbers)
        log_probs = np.where((log_probs > 0) & (log_probs <= ROUNDING), 0.0, log_probs)
        backoffs = np.zeros(len(numbers))
        with_backoff = widths == self.n + 2
        if with_backoff.any():
            at = begins[with_backoff] + self.n + 1
            backoffs[with_backoff] = self._numbers(flat.take(pa.array(at)), numbers[with_backoff])
        self._check(log_probs, numbers, "log-probability")
        self._check(backoffs, numbers, "backoff")
        words = flat.take(pa.array((begins[:, None] + 1 + np.arange(self.n)).reshape(-1)))
        if self.known_words is None:
            return log_probs, backoffs, words
        rows = pc.index_in(words, value_set=self.known_words.cast(words.type))
        if rows.null_count:
            at = int(np.flatnonzero(rows.is_null().to_numpy(zero_copy_only=False))[0])
            raise NGramFormatError(
                f"{self.text.path}, line {numbers[at // self.n] + 1}: the word {words[at].as_py()!r} isn't among the 1-grams"
            )
        return log_probs, backoffs, rows.to_numpy(zero_copy_only=False).astype(np.int64)

    def _numbers(self, texts: pa.Array, numbers: np.ndarray) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            values = pc.cast(texts, pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            for text, number in zip(texts.to_pylist(), numbers, strict=True):
                try:
                    pc.cast(pa.scalar(text), pa.float64())
                except pa.ArrowInvalid:
                    message = f"{self.text.path}, line {number + 1}: {text!r} isn't a number"
                    raise NGramFormatError(message) from None
            raise
        return np.where(np.isneginf(values), LOG10_ZERO, values)

    def _check(self, values: np.ndarray, numbers: np.ndarray, what: str) -> None:
        bad = ~np.isfinite(values) if what == "backoff" else ~np.isfinite(values) | (values > 0)
        if bad.any():
            value, number = float(values[bad][0]), int(numbers[bad][0])
            limit = "" if what == "backoff" else " of at most 0"
            raise NGramFormatError(
                f"{self.text.path}, line {number + 1}: the {what} {value:g} should be a finite number{limit}"
            )


def write_arpa(
    table: NGramTable, path: str | os.PathLike[str], units: str = "id", pieces: Iterable[str | None] | None = None
) -> None:
    """Write a table as an ARPA file, compressed if the name ends in `.gz`. The file appears whole or not at all.

    Args:
        table: the n-grams.
        path: where to.
        units: "id", "nemo" or "piece".
        pieces: the piece of each token id, needed for "piece".

    Raises:
        ValueError: the units can't express the tokens (a piece that is missing or holds a blank; ids beyond what one
            character can encode).
    """
    words = unit_words(table.vocab_size, units, pieces)
    used = np.unique(np.concatenate([order.tokens.numpy() for order in table.orders]))
    unwritable = [int(i) for i in used if i < table.vocab_size and words[i] is None]
    if unwritable:
        raise ValueError(
            f"token id {unwritable[0]} can't be written in {units!r} units ({len(unwritable)} such ids); use units='id'"
        )
    opener = gzip.open if str(path).endswith(".gz") else open
    with write_beside(path) as beside, opener(beside, "wb") as file:
        for piece in _arpa_text(table, [*words, "<s>", "</s>", "<unk>"]):
            file.write(piece)


def unit_words(vocab_size: int, units: str, pieces: Iterable[str | None] | None = None) -> list[str | None]:
    """How each token id is written in an ARPA file; None where it can't be."""
    if units == "id":
        return [str(token_id) for token_id in range(vocab_size)]
    if units == "nemo":
        codes = range(NEMO_OFFSET, NEMO_OFFSET + vocab_size)
        return [None if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF else chr(code) for code in codes]
    if units == "piece":
        if pieces is None:
            raise ValueError("units='piece' need the tokenizer that names the pieces; pass it, or use units='id'")
        ambiguous = set(_SPECIAL_WORDS)
        return [p if p and not re.search(r"[\s\0]", p, re.ASCII) and p not in ambiguous else None for p in pieces]
    raise ValueError(f"units must be 'id', 'nemo' or 'piece', got {units!r}")


def _arpa_text(table: NGramTable, words: list[str | None]) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.compute as pc

    header = ["\\data\\", *(f"ngram {n}={count}" for n, count in enumerate(table.num_ngrams, start=1)), ""]
    yield ("\n".join(header) + "\n").encode()
    word_array = pa.array(words, type=pa.string())
    for n, order in enumerate(table.orders, start=1):
        yield f"\\{n}-grams:\n".encode()
        tokens = table.rows(n).numpy()
        log_probs = order.log_probs.numpy().astype(np.float64) / LN10
        backoffs = order.backoffs.numpy().astype(np.float64) / LN10
        for first in range(0, len(order), LINES_PER_BLOCK):
            block = slice(first, first + LINES_PER_BLOCK)
            columns = [word_array.take(pa.array(tokens[block, k])) for k in range(n)]
            fields = [_decimal(log_probs[block]), pc.binary_join_element_wise(*columns, " ") if n > 1 else columns[0]]
            if n < table.order:
                fields.append(_decimal(backoffs[block]))
            lines = pc.binary_join_element_wise(*fields, "\t")
            yield "\n".join(lines.to_pylist()).encode() + b"\n"
        yield b"\n"
    yield b"\\end\\\n"


def _decimal(values: np.ndarray) -> pa.Array:
    """Log10 values as text with nine significant digits, enough for the float32 natural logs to come back as they were."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with np.errstate(divide="ignore"):
        magnitude = np.where(values == 0, 0, np.floor(np.log10(np.abs(np.where(values == 0, 1, values)))))
    scale = 10.0 ** (8 - magnitude)
    return pc.cast(pa.array(np.rint(values * scale) / scale + 0.0), pa.string())


