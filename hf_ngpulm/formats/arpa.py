"""ARPA files, read and written by column.

The text is split and parsed in blocks of lines, by functions of Python and numpy that take a block at once; no Python code
runs per line. What differs between KenLM's and SRILM's dialects (text before `\\data\\`, tabs or blanks between fields,
missing backoffs, `-99` for log 0, `<unk>` or `<UNK>`, Windows line ends, trailing blanks, blank lines, a byte order mark) is
accepted everywhere.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..common.files import read_unpacked, write_beside
from ..errors import NGramFormatError
from ..ngrams.table import MAX_ORDER, NGramTable
from ..text.vocabulary import Vocabulary
from .units import NEMO_OFFSET, units_to_ids

LN10 = math.log(10.0)
LOG10_ZERO = -99.0  # SRILM's and KenLM's way to write log 0
# Read and written at a time.
LINES_PER_BLOCK, BYTES_PER_BLOCK = 1 << 16, 1 << 20
# Rounding in the writer of a file may leave a log-probability this far above 0 (log10).
ROUNDING = 1e-4
# Beyond this float32 natural logs overflow (log10).
LARGEST = 1e38
# What a small file may make us read: bytes up to the first n-gram, and bytes that it unpacks to (ARPA files shrink to a quarter
# or an eighth).
MAX_HEADER_BYTES = 1 << 22
MAX_RATIO, MIN_UNPACKED_LIMIT = 64, 1 << 24
_DECOMPRESSORS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_SPECIAL_WORDS = {"<s>": "bos", "<S>": "bos", "</s>": "eos", "</S>": "eos", "<unk>": "unk", "<UNK>": "unk"}
_IS_BLANK = np.isin(np.arange(256), np.frombuffer(b" \t\n\r\v\f", dtype=np.uint8))  # as `bytes.split` has it


def read_arpa(path: str | os.PathLike[str], vocabulary: Vocabulary, units: str = "auto") -> NGramTable:
    """Read an ARPA file (plain, .gz, .bz2 or .xz, told apart by content) into a table.

    A log-probability of `-inf` is read as -99, as both toolkits write log 0. A suffix that is missing is no fault
    (SRILM's pruned models lack some), a missing prefix is one: as for KenLM.

    Args:
        path: the file, or a pipe.
        vocabulary: the ids that its units stand for.
        units: "auto", "piece", "id", "nemo" or "char", see `hf_ngpulm.formats.units`.

    Raises:
        NGramFormatError: the file isn't an ARPA file, is cut short or damaged, or doesn't fit the vocabulary.
        OSError: the file can't be opened or read.
    """
    return ArpaFile(path).table(vocabulary, units)


class ArpaFile:
    """An ARPA file of which the header and the unigrams have been read, so that it may still be decided what its words are.

    Args:
        path: as for `read_arpa`, whose errors it raises.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._text = _Text(Path(path))
        self._sections = self._text.sections()
        self._unigrams = _Columns(self._text, self._sections[0])
        self._all_words = self._unigrams.words
        self.words = [word for word in self._all_words if word not in _SPECIAL_WORDS]

    def table(self, vocabulary: Vocabulary, units: str) -> NGramTable:
        """The n-grams, of tokens. Arguments as for `read_arpa`."""
        try:
            _, ids = units_to_ids(self.words, units, vocabulary)
        except NGramFormatError as error:
            raise NGramFormatError(f"{self.path}: {error}") from None
        return self._table(ids, vocabulary.size)

    def word_table(self) -> NGramTable:
        """The n-grams, of words: id `i` is `words[i]`."""
        if len(set(self.words)) < len(self.words):
            double = Counter(self.words).most_common(1)[0][0]
            raise NGramFormatError(f"{self.path}: {double!r} occurs more than once among the 1-grams")
        if not self.words:
            raise NGramFormatError(f"{self.path}: the file has no words among its 1-grams")
        return self._table(list(range(len(self.words))), len(self.words))

    def _table(self, ordinary_ids: list[int], vocab_size: int) -> NGramTable:
        special = {"bos": vocab_size, "eos": vocab_size + 1, "unk": vocab_size + 2}
        ids = iter(ordinary_ids)
        id_of_word = [special[_SPECIAL_WORDS[word]] if word in _SPECIAL_WORDS else next(ids) for word in self._all_words]
        known_ids = dict(zip((word.encode() for word in self._all_words), id_of_word))
        rows = []
        for section in self._sections:
            columns = self._unigrams if section.n == 1 else _Columns(self._text, section, known_ids)
            tokens = np.array(id_of_word, dtype=np.int32) if section.n == 1 else columns.tokens
            rows.append(
                (
                    torch.from_numpy(tokens.reshape(-1, section.n)),
                    torch.from_numpy((columns.log_probs * LN10).astype(np.float32)),
                    torch.from_numpy((columns.backoffs * LN10).astype(np.float32)),
                )
            )
            del columns
        while len(rows) > 1 and rows[-1][0].shape[0] == 0 and not rows[-2][2].any():
            rows.pop()  # an empty highest order counts only where backing off from it costs something
        try:
            return NGramTable.from_rows(vocab_size, rows)
        except NGramFormatError as error:
            raise NGramFormatError(f"{self.path}: {error}") from None


class _Section(NamedTuple):
    """Which bytes of the file hold the n-grams of one order, and how many n-grams the header promises there."""

    n: int
    first: int
    end: int
    promised: int


class _Text:
    """The bytes of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = _read_bytes(path)
        if not self.buffer:
            raise NGramFormatError(f"{path}: the file is empty; an ARPA file begins with a line \\data\\")
        if self.buffer.startswith(b"mmap lm "):
            raise NGramFormatError(
                f"{path}: a KenLM binary, not an ARPA file; hf_ngpulm.formats.kenlm.read_binary reads it (not compressed), and "
                "hf-ngpulm convert lm.bin lm.arpa makes an ARPA file of it"
            )
        self.buffer = self.buffer.removeprefix(b"\xef\xbb\xbf")  # a byte order mark

    def line_number(self, at: int) -> int:
        """The line that a byte is in, from 1 up."""
        return self.buffer.count(b"\n", 0, at) + 1

    def sections(self) -> list[_Section]:
        """Read the header and find the section of each order."""
        data = re.compile(rb"^\\data\\[ \t\r\v\f]*$", re.MULTILINE).search(self.buffer, 0, MAX_HEADER_BYTES)
        if data is None:
            shown = _shown(self.buffer[:1000].partition(b"\n")[0], 40)
            where = f" within its first {MAX_HEADER_BYTES:,} bytes" if len(self.buffer) > MAX_HEADER_BYTES else ""
            raise NGramFormatError(f"{self.path}: not an ARPA file: no line \\data\\{where} (it begins with {shown!r})")
        headings = self._headings(data.end())
        first = next(headings, None)
        counts = self._counts(data.end(), len(self.buffer) if first is None else first[0])
        expected = [f"\\{n}-grams:" for n in range(1, len(counts) + 1)] + ["\\end\\"]
        found = [] if first is None else [first, *islice(headings, len(expected) - 1)]
        for at, heading in enumerate(expected):
            if at == len(found):
                raise NGramFormatError(f"{self.path}: no line {heading}; is the file cut short?")
            line = self.buffer[slice(*found[at])].strip()
            if line != heading.encode():
                number = self.line_number(found[at][0])
                raise NGramFormatError(f"{self.path}, line {number}: expected {heading}, got {_shown(line, 60)!r}")
        if len(counts) > MAX_ORDER:
            raise NGramFormatError(f"{self.path}: the file has n-grams of {len(counts)} orders; at most {MAX_ORDER} are read")
        return [_Section(n, found[n - 1][1], found[n][0], counts[n - 1]) for n in range(1, len(counts) + 1)]

    def _headings(self, at: int) -> Iterator[tuple[int, int]]:
        """Where lines that begin with a backslash begin and end, behind some byte."""
        while (newline := self.buffer.find(b"\n\\", at)) >= 0:
            at = self.buffer.find(b"\n", newline + 1)
            at = len(self.buffer) if at < 0 else at
            yield newline + 1, at

    def _counts(self, first: int, end: int) -> list[int]:
        """How many n-grams of each order the header promises, in the bytes between `\\data\\` and the first section."""
        if end > MAX_HEADER_BYTES:
            raise NGramFormatError(
                f"{self.path}: no line \\1-grams: within the first {MAX_HEADER_BYTES:,} bytes; a header has one line per order"
            )
        counts: dict[int, int] = {}
        for number, line in enumerate(self.buffer[first:end].split(b"\n"), start=self.line_number(first)):
            line = line.strip()
            if match := re.fullmatch(rb"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})", line):
                if int(match[1]) in counts:
                    raise NGramFormatError(f"{self.path}, line {number}: the header counts {int(match[1])}-grams twice")
                counts[int(match[1])] = int(match[2])
            elif line:
                raise NGramFormatError(
                    f"{self.path}, line {number}: expected 'ngram N=COUNT' in the header, got {_shown(line, 60)!r}"
                )
        if not counts or sorted(counts) != list(range(1, len(counts) + 1)):
            shown = ", ".join(map(str, sorted(counts)[:10])) or "none"
            raise NGramFormatError(f"{self.path}: the header should count the orders 1, 2, ..., but counts {shown}")
        return [counts[n] for n in range(1, len(counts) + 1)]

    def blocks(self, section: _Section) -> Iterator[tuple[int, int]]:
        """Where the blocks of whole lines begin and end that a section is read in."""
        first = section.first
        while first < section.end:
            end = self.buffer.find(b"\n", first + BYTES_PER_BLOCK, section.end) + 1 or section.end
            newlines = first + np.flatnonzero(np.frombuffer(self.buffer, np.uint8, end - first, first) == ord("\n"))
            for cut in [*(newlines[LINES_PER_BLOCK - 1 : -1 : LINES_PER_BLOCK] + 1).tolist(), end]:
                yield first, cut
                first = cut


def _shown(line: bytes, size: int) -> str:
    """The beginning of a line, for a message."""
    return line.strip()[: 4 * size].decode("utf-8", "replace")[:size]


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return b"_" not in field


def _read_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise NGramFormatError(f"{path}: a folder, not an ARPA file; a saved model is loaded with from_pretrained")
    data = path.read_bytes()
    for mark, decompress in _DECOMPRESSORS.items():
        if data.startswith(mark):
            try:
                return read_unpacked(decompress(io.BytesIO(data), "rb"), max(MAX_RATIO * len(data), MIN_UNPACKED_LIMIT))
            except NGramFormatError as error:
                raise NGramFormatError(f"{path}: {error}") from None
            except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                message = f"{path}: the compressed file is cut short or damaged: {error}"
                raise NGramFormatError(message) from None
    return data


class _Columns:
    """The columns of one section: `log_probs` [N] and `backoffs` [N] (log10), and for orders above the first `tokens` [N * n].

    For unigrams `words` holds the words themselves; for higher orders words are looked up among those of the unigrams.
    """

    def __init__(self, text: _Text, section: _Section, known_ids: dict[bytes, int] | None = None) -> None:
        self.text, self.n, self.known_ids = text, section.n, known_ids
        parts = [self._parse(*block) for block in text.blocks(section)]
        self.log_probs, self.backoffs = (np.concatenate([np.zeros(0), *(part[i] for part in parts)]) for i in (0, 1))
        if known_ids is None:
            self.words = [word for part in parts for word in part[2]]
        else:
            self.tokens = np.concatenate([np.zeros(0, dtype=np.int32), *(part[2] for part in parts)])
        if len(self.log_probs) != section.promised:
            raise NGramFormatError(
                f"{text.path}: the header says {section.promised} {section.n}-grams, the file has {len(self.log_probs)}"
            )

    def _parse(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray, Any]:
        block = _Block(self.text, first, self.text.buffer[first:end])
        widths = block.widths()
        lines = np.flatnonzero(widths)  # those that aren't blank
        widths = widths[lines]
        wrong = (widths != self.n + 1) & (widths != self.n + 2)
        if wrong.any():
            line = int(lines[wrong][0])
            raise NGramFormatError(
                f"{block.where(line)}: expected a log-probability, {self.n} word(s) and possibly a backoff, got "
                f"{_shown(block.line(line), 80)!r}"
            )
        fields = block.content.split()
        place = np.arange(len(fields)) - np.repeat(np.cumsum(widths) - widths, widths)  # of each field in its line

        def chosen(are_meant: np.ndarray) -> list[bytes]:
            return list(compress(fields, are_meant.tobytes()))

        log_probs = block.numbers(chosen(place == 0), lines)
        log_probs = np.where((log_probs > 0) & (log_probs <= ROUNDING), 0.0, log_probs)
        backoffs, has_backoff = np.zeros(len(lines)), widths == self.n + 2
        backoffs[has_backoff] = block.numbers(chosen(place == self.n + 1), lines[has_backoff])
        block.check(log_probs, lines, "log-probability")
        block.check(backoffs, lines, "backoff")
        words = chosen((place > 0) & (place <= self.n))
        if self.known_ids is None:
            return log_probs, backoffs, [word.decode() for word in words]
        try:
            return log_probs, backoffs, np.fromiter(map(self.known_ids.__getitem__, words), np.int32, len(words))
        except KeyError:
            at = next(at for at, word in enumerate(words) if word not in self.known_ids)
            where = block.where(int(lines[at // self.n]))
            raise NGramFormatError(f"{where}: the word {words[at].decode()!r} isn't among the 1-grams") from None


class _Block:
    """Some whole lines of a section with their ends, from byte `first` of the file on."""

    def __init__(self, text: _Text, first: int, content: bytes) -> None:
        self.text, self.first, self.content = text, first, content
        try:
            content.decode()
        except UnicodeDecodeError as found:
            number = content.count(b"\n", 0, found.start)
            first = content.rfind(b"\n", 0, found.start) + 1  # where the line begins
            error = UnicodeDecodeError("utf-8", self.line(number), found.start - first, found.end - first, found.reason)
            raise NGramFormatError(f"{self.where(number)}: not UTF-8 text: {error}") from None

    def line(self, number: int) -> bytes:
        return self.content.split(b"\n", number + 1)[number]

    def where(self, line: int) -> str:
        return f"{self.text.path}, line {self.text.line_number(self.first) + line}"

    def widths(self) -> np.ndarray:
        """How many fields each line has."""
        data = np.frombuffer(self.content, dtype=np.uint8)
        is_blank = _IS_BLANK[data]
        begins = ~is_blank
        begins[1:] &= is_blank[:-1]
        return np.diff(np.searchsorted(np.flatnonzero(begins), np.flatnonzero(data == ord("\n"))), prepend=0)

    def numbers(self, fields: list[bytes], lines: np.ndarray) -> np.ndarray:
        """What fields in some lines say; log 0 as the toolkits write it."""
        try:
            if b"_" in self.content and b"_" in b"".join(fields):
                raise ValueError("1_0 is a number to Python alone")
            values = np.fromiter(map(float, fields), np.float64, len(fields))
        except ValueError:
            line, field = next((line, field) for line, field in zip(lines.tolist(), fields) if not _is_number(field))
            raise NGramFormatError(f"{self.where(line)}: {_shown(field, 80)!r} isn't a number") from None
        return np.where(np.isneginf(values), LOG10_ZERO, values)

    def check(self, values: np.ndarray, lines: np.ndarray, what: str) -> None:
        bad = ~(np.abs(values) < LARGEST)
        if what != "backoff":
            bad |= values > 0
        if bad.any():
            value, line = float(values[bad][0]), int(lines[bad][0])
            limit = "" if what == "backoff" else " of at most 0"
            raise NGramFormatError(f"{self.where(line)}: the {what} {value:g} should be a finite number{limit}")


def write_arpa(
    table: NGramTable, path: str | os.PathLike[str], units: str = "id", pieces: Iterable[str | None] | None = None
) -> None:
    """Write a table as an ARPA file, compressed if its name ends in `.gz`, `.bz2` or `.xz`.

    The file appears whole or not at all.

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
            # No file name and no time in a .gz, so that the same table gives the same bytes.
            yield stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0)) if path.suffix == ".gz" else file


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
        pieces = list(pieces)
        if len(pieces) != vocab_size:
            raise ValueError(f"{len(pieces)} pieces for a vocabulary of {vocab_size} ids")
        return [p if p and not re.search(r"[\s\0]", p, re.ASCII) and p not in _SPECIAL_WORDS else None for p in pieces]
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
    """Natural logs as log10, in as many decimal digits (7 to 9) as it takes for the same float32 to come back."""
    exact = values.astype(np.float64) / LN10
    magnitude = np.floor(np.log10(np.abs(np.where(exact == 0, 1, exact))))
    rounded = np.rint(exact * 10.0 ** (8 - magnitude)) / 10.0 ** (8 - magnitude)
    for digits in (8, 7):
        scale = 10.0 ** (digits - 1 - magnitude)
        shorter = np.rint(exact * scale) / scale
        rounded = np.where((shorter * LN10).astype(np.float32) == values, shorter, rounded)
    return rounded + 0.0
