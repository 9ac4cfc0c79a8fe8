"""Read and write ARPA files. The native core (`csrc/arpa.cpp`) parses the files.

The reader accepts the dialects of KenLM and SRILM. So a file may have text before `\\data\\`, tabs or spaces between fields,
missing backoffs, `-99` for log 0, `<unk>` or `<UNK>`, Windows line ends, trailing spaces, blank lines, and a byte order mark.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..common.files import naming, read_unpacked, write_beside
from ..engines.native import Function, Struct
from ..errors import NGramFormatError
from ..ngrams.table import MAX_ORDER, NGramTable
from ..text.vocabulary import Vocabulary
from .units import LN10, LOG10_ZERO, NEMO_OFFSET, SPECIAL_WORDS, NGramFile

LINES_PER_BLOCK = 1 << 16  # lines that are written in one call
NUMBERS_LEFT = 1 << 12  # numbers that the core leaves to Python per call
# The program that wrote the file may have rounded log-probabilities up to this far above 0 (log10).
ROUNDING = 1e-4
# Values of this size or more (log10) overflow float32 as natural logs.
LARGEST = 1e38
# Limits that stop small hostile files: bytes before the first n-gram, and unpacked bytes (ARPA files compress four- to
# eightfold).
MAX_HEADER_BYTES = 1 << 22
MAX_RATIO, MIN_UNPACKED_LIMIT = 64, 1 << 24
_DECOMPRESSORS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


class NgpulmArpaSection(Struct):
    """Describe the n-grams of one order in the file, for the core."""


class NgpulmArpaWords(Struct):
    """Hold the words of the unigrams, and a hash table that finds the words."""


_COMPLETE, _MORE, _UNKNOWN_WORD = 0, 1, 3  # results of the functions below; any other result means a malformed line
_read_unigrams = Function("ngpulm_arpa_unigrams")
_index = Function("ngpulm_arpa_index")
_read_ngrams = Function("ngpulm_arpa_ngrams")


def read_arpa(path: str | os.PathLike[str], vocabulary: Vocabulary, units: str = "auto") -> NGramTable:
    """Read an ARPA file into a table. The file may be compressed by gzip, bzip2 or xz; the content shows the compression.

    A log-probability of `-inf` is read as -99 (log10), the value that KenLM and SRILM write for log 0. As in KenLM, the suffix
    of an n-gram may be missing from the file, for example after pruning by SRILM. The prefix of an n-gram must be in the file.

    Args:
        path: the file, or a pipe.
        vocabulary: the vocabulary that the words are mapped to, see `ArpaFile.table`.
        units: notation of the tokens: "auto", "piece", "id", "nemo" or "char".

    Raises:
        NGramFormatError: the file isn't an ARPA file, is cut short or damaged, or has words that aren't tokens.
        OSError: the file can't be opened or read.
    """
    return ArpaFile(path).table(vocabulary, units)


class ArpaFile(NGramFile):
    """Read an ARPA file. The constructor reads the header and the unigrams. For the errors see `read_arpa`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        with naming(path):
            unigrams, *self._sections = _sections(_Text(Path(path)))
            self._starts = np.zeros(unigrams.capacity + 1, dtype=np.int64)
            written = np.empty(unigrams.end - unigrams.first, dtype=np.uint8)
            self._columns = unigrams.read(_read_unigrams, written, self._starts)
            self._written = written[: self._starts[-1]].copy()
            unigrams.check_text()

    @cached_property
    def vocabulary(self) -> list[str]:
        return self._written.tobytes().decode().split("\n")[:-1]

    def rows(self, ids: np.ndarray) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        slots = np.zeros(1 << (2 * len(ids)).bit_length(), dtype=np.int64)
        words = NgpulmArpaWords(
            text=self._written, starts=self._starts, ids=ids, num_words=len(ids), slots=slots, num_slots=len(slots),
            seed=secrets.randbits(63),
        )  # fmt: skip
        _index(words)
        yield torch.from_numpy(ids[:, None]), *self._columns
        for section in self._sections:
            tokens = np.empty((section.capacity, section.n), dtype=np.int32)
            columns = section.read(_read_ngrams, words, tokens)
            yield torch.from_numpy(tokens), *columns


def _read_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise NGramFormatError("a folder, not an ARPA file; a saved model is loaded with from_pretrained")
    data = path.read_bytes()
    for mark, decompress in _DECOMPRESSORS.items():
        if data.startswith(mark):
            try:
                data = read_unpacked(decompress(io.BytesIO(data), "rb"), max(MAX_RATIO * len(data), MIN_UNPACKED_LIMIT))
            except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                raise NGramFormatError(f"the compressed file is cut short or damaged: {error}") from None
            break
    if not data:
        raise NGramFormatError("the file is empty; an ARPA file begins with a line \\data\\")
    if data.startswith(b"mmap lm "):
        raise NGramFormatError(
            "a KenLM binary, not an ARPA file; hf_ngpulm.formats.kenlm.KenLMFile reads it (not compressed), and hf-ngpulm "
            "convert lm.bin lm.arpa makes an ARPA file of it"
        )
    return data.removeprefix(b"\xef\xbb\xbf")  # a byte order mark


class _Text:
    """Hold the bytes of an ARPA file, and find lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = buffer = _read_bytes(path)
        self.bytes = np.frombuffer(buffer, dtype=np.uint8)

    def fault(self, at: int, what: str) -> NGramFormatError:
        """Return the error for a fault at byte `at`; its message names the line."""
        line = self.buffer.count(b"\n", 0, at) + 1
        return NGramFormatError(f"{self.path}, line {line}: {what}")

    def line_end(self, at: int) -> int:
        """Return the offset of the end of the line that contains byte `at`."""
        end = self.buffer.find(b"\n", at)
        return len(self.buffer) if end < 0 else end

    def headings(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each line that begins with a backslash, in the text after the line with byte `at`."""
        while (at := self.buffer.find(b"\n\\", at)) >= 0:
            yield at + 1, (at := self.line_end(at + 1))


def _sections(text: _Text) -> list[_Section]:
    """Read the header and return the section of each order."""
    buffer = text.buffer
    data = re.compile(rb"^\\data\\[ \t\r\v\f]*$", re.MULTILINE).search(buffer, 0, MAX_HEADER_BYTES)
    if data is None:
        shown = _shown(buffer[:1000].partition(b"\n")[0], 40)
        where = f" within its first {MAX_HEADER_BYTES:,} bytes" if len(buffer) > MAX_HEADER_BYTES else ""
        raise NGramFormatError(f"not an ARPA file: no line \\data\\{where} (it begins with {shown!r})")
    first, _ = next(text.headings(data.end()), (len(buffer), 0))
    counts = _counts(text, data.end(), first)
    bounds = [data.end()]
    headings = text.headings(data.end())
    for expected in (*(f"\\{n}-grams:" for n in range(1, len(counts) + 1)), "\\end\\"):
        begin, end = next(headings, (-1, -1))
        if begin < 0:
            raise NGramFormatError(f"no line {expected}; is the file cut short?")
        if buffer[begin:end].strip() != expected.encode():
            raise text.fault(begin, f"expected {expected}, got {_shown(buffer[begin:end], 60)!r}")
        bounds += [begin, end]
    if len(counts) > MAX_ORDER:
        raise NGramFormatError(f"the file has n-grams of {len(counts)} orders; at most {MAX_ORDER} are read")
    return [_Section(text, n, bounds[2 * n], bounds[2 * n + 1], count) for n, count in enumerate(counts, start=1)]


def _counts(text: _Text, first: int, end: int) -> list[int]:
    """Return the header's number of n-grams of each order.

    The bytes `first` to `end` are the lines of the header with these numbers.
    """
    if end > MAX_HEADER_BYTES:
        raise NGramFormatError(
            f"no line \\1-grams: within the first {MAX_HEADER_BYTES:,} bytes; a header has one line per order"
        )
    counts: dict[int, int] = {}
    at = first
    for line in text.buffer[first:end].split(b"\n"):
        if match := re.fullmatch(rb"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})", line.strip()):
            if int(match[1]) in counts:
                raise text.fault(at, f"the header counts {int(match[1])}-grams twice")
            counts[int(match[1])] = int(match[2])
        elif line.strip():
            raise text.fault(at, f"expected 'ngram N=COUNT' in the header, got {_shown(line, 60)!r}")
        at += len(line) + 1
    if not counts or sorted(counts) != list(range(1, len(counts) + 1)):
        shown = ", ".join(map(str, sorted(counts)[:10])) or "none"
        raise NGramFormatError(f"the header should count the orders 1, 2, ..., but counts {shown}")
    return [counts[n] for n in range(1, len(counts) + 1)]


def _shown(line: bytes, size: int) -> str:
    """Return the first `size` characters of a line, for an error message."""
    return line.strip()[: 4 * size].decode("utf-8", "replace")[:size]


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return b"_" not in field  # only Python reads 1_0 as a number


class _Section:
    """Read the n-grams of order n from the bytes `first` to `end` (exclusive). `promised`: the header's number of n-grams."""

    def __init__(self, text: _Text, n: int, first: int, end: int, promised: int) -> None:
        self.text, self.n, self.first, self.end, self.promised = text, n, first, end, promised
        shortest = 2 * (n + 1)  # bytes of the shortest possible line
        self.capacity = min(promised, (end - first) // shortest)

    def read(self, function: Function, *arguments: Any) -> tuple[Tensor, Tensor]:
        """Read the section. Return log-probabilities and backoffs, each float32 `[N]`, as natural logs.

        `function`: the core's function that reads n-grams. `arguments`: further arguments of this function. Python reads the
        numbers that the core can't read. At a fault, the core stops.
        """
        log_probs, backoffs = values = np.zeros((2, self.capacity), dtype=np.float32)
        left, progress = np.empty((NUMBERS_LEFT, 4), dtype=np.int64), np.array([self.first, 0, 0, 0, 0])
        section = NgpulmArpaSection(
            text=self.text.bytes, end=self.end, order=self.n, capacity=self.capacity, log_probs=log_probs, backoffs=backoffs,
            left=left, room=NUMBERS_LEFT, progress=progress,
        )  # fmt: skip
        result = _MORE
        while result == _MORE:
            result = function(section, *arguments)
            for row, is_backoff, begin, end in left[: progress[2]].tolist():
                value = self._number(begin, end, bool(is_backoff))
                if row < self.capacity:
                    values[is_backoff, row] = value * LN10
        if result != _COMPLETE:
            self._raise(result, *progress[3:].tolist())
        if int(progress[1]) != self.promised:
            raise NGramFormatError(f"the header says {self.promised} {self.n}-grams, the file has {progress[1]}")
        return torch.from_numpy(log_probs), torch.from_numpy(backoffs)

    def _number(self, begin: int, end: int, is_backoff: bool) -> float:
        """Return the number (log10) in the bytes `begin` to `end`. The core can't read this number, such as `-inf`."""
        field = self.text.buffer[begin:end]
        if not _is_number(field):
            self.check_text(begin)
            raise self.text.fault(begin, f"{_shown(field, 80)!r} isn't a number")
        value = LOG10_ZERO if float(field) == -math.inf else float(field)
        if not is_backoff and 0 < value <= ROUNDING:
            return 0.0
        if not abs(value) < LARGEST or (not is_backoff and value > 0):
            what, limit = ("backoff", "") if is_backoff else ("log-probability", " of at most 0")
            raise self.text.fault(begin, f"the {what} {value:g} should be a finite number{limit}")
        return value

    def _raise(self, fault: int, begin: int, end: int) -> NoReturn:
        self.check_text(begin)
        shown = self.text.buffer[begin:end]
        if fault == _UNKNOWN_WORD:
            raise self.text.fault(begin, f"the word {shown.decode()!r} isn't among the 1-grams")
        raise self.text.fault(
            begin, f"expected a log-probability, {self.n} word(s) and possibly a backoff, got {_shown(shown, 80)!r}"
        )

    def check_text(self, at: int | None = None) -> None:
        """Raise an error if the line with byte `at` isn't UTF-8 text. If `at` is None, check all lines of the section."""
        first, end = self.first, self.end
        if at is not None:
            first, end = self.text.buffer.rfind(b"\n", 0, at) + 1, self.text.line_end(at)
        try:
            self.text.buffer[first:end].decode()
        except UnicodeDecodeError as error:
            raise self.text.fault(first + error.start, f"not UTF-8 text: {error}") from None


def write_arpa(
    table: NGramTable, path: str | os.PathLike[str], units: str = "id", pieces: Iterable[str | None] | None = None
) -> None:
    """Write a table as an ARPA file. If the name ends in `.gz`, `.bz2` or `.xz`, the file is compressed.

    The file appears only when it is complete; an error leaves no partial file.

    Args:
        table: the n-grams.
        path: the file to write.
        units: notation of the tokens: "id", "nemo" or "piece".
        pieces: the piece of each token id, required for "piece".

    Raises:
        ValueError: the units can't express a token, because its piece is missing or contains a space, or its id is too large
            for a character in NeMo's encoding.
    """
    words = unit_words(table.vocab_size, units, pieces)
    used = np.unique(np.concatenate([order.tokens.numpy() for order in table.orders]))
    unwritable = [int(i) for i in used if i < table.vocab_size and words[i] is None]
    if unwritable:
        raise ValueError(
            f"token id {unwritable[0]} can't be written in {units!r} units ({len(unwritable)} such ids); use units='id'"
        )
    with write_beside(path) as beside, _open_to_write(beside) as file:
        for piece in _arpa_text(table, [*words, "<s>", "</s>", "<unk>"]):
            file.write(piece)


@contextmanager
def _open_to_write(path: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        if path.suffix == ".bz2":
            yield stack.enter_context(bz2.open(path, "wb"))
        elif path.suffix == ".xz":
            yield stack.enter_context(lzma.open(path, "wb"))
        else:
            file = stack.enter_context(open(path, "wb"))
            # A .gz without file name and time, so that the same table gives the same bytes.
            yield stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0)) if path.suffix == ".gz" else file


def unit_words(vocab_size: int, units: str, pieces: Iterable[str | None] | None = None) -> list[str | None]:
    """Return the word for each token id in an ARPA file; None for an id that the units can't express."""
    if units == "id":
        return [str(token_id) for token_id in range(vocab_size)]
    if units == "nemo":
        codes = range(NEMO_OFFSET, NEMO_OFFSET + vocab_size)
        return [None if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF else chr(code) for code in codes]
    if units == "piece":
        if pieces is None:
            raise ValueError("units='piece' need the tokenizer that names the pieces; pass it, or use units='id'")
        pieces = list(pieces)
        if len(pieces) != vocab_size:
            raise ValueError(f"{len(pieces)} pieces for a vocabulary of {vocab_size} ids")
        return [p if p and not re.search(r"[\s\0]", p, re.ASCII) and p not in SPECIAL_WORDS else None for p in pieces]
    raise ValueError(f"units must be 'id', 'nemo' or 'piece', got {units!r}")


def _arpa_text(table: NGramTable, words: list[str | None]) -> Iterator[bytes]:
    header = ["\\data\\", *(f"ngram {n}={count}" for n, count in enumerate(table.num_ngrams, start=1)), ""]
    yield ("\n".join(header) + "\n").encode()
    for n, order in enumerate(table.orders, start=1):
        yield f"\\{n}-grams:\n".encode()
        tokens = table.rows(n).numpy()
        log_probs, backoffs = order.log_probs.numpy(), order.backoffs.numpy()
        line = "%.9g\t" + " ".join(["%s"] * n) + ("\t%.9g\n" if n < table.order else "\n")
        for first in range(0, len(order), LINES_PER_BLOCK):
            block = slice(first, first + LINES_PER_BLOCK)
            columns: list[Iterable[Any]] = [_decimal(log_probs[block]).tolist()]
            columns += [map(words.__getitem__, tokens[block, k].tolist()) for k in range(n)]
            columns += [_decimal(backoffs[block]).tolist()] if n < table.order else []
            yield "".join(map(line.__mod__, zip(*columns, strict=True))).encode()
        yield b"\n"
    yield b"\\end\\\n"


def _decimal(values: np.ndarray) -> np.ndarray:
    """Convert natural logs to log10. Round to the fewest decimal digits (7 to 9) from which the same float32 is read back."""
    exact = values.astype(np.float64) / LN10
    magnitude = np.floor(np.log10(np.abs(np.where(exact == 0, 1, exact))))
    rounded = np.rint(exact * 10.0 ** (8 - magnitude)) / 10.0 ** (8 - magnitude)
    for digits in (8, 7):
        scale = 10.0 ** (digits - 1 - magnitude)
        shorter = np.rint(exact * scale) / scale
        rounded = np.where((shorter * LN10).astype(np.float32) == values, shorter, rounded)
    return rounded + 0.0
