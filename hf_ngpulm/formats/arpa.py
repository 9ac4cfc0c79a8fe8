"""ARPA files, read by the native core (`csrc/arpa.cpp`) and written by column.

What differs between KenLM's and SRILM's dialects (text before `\\data\\`, tabs or blanks between fields,
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
import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..common.files import read_unpacked, write_beside
from ..engines.native import Function, Struct
from ..errors import NGramFormatError
from ..ngrams.table import MAX_ORDER, NGramTable
from ..text.vocabulary import Vocabulary
from .units import NEMO_OFFSET, units_to_ids

LN10 = math.log(10.0)
LOG10_ZERO = -99.0  # SRILM's and KenLM's way to write log 0
LINES_PER_BLOCK = 1 << 16  # written at a time
NUMBERS_LEFT = 1 << 12  # that the core leaves to Python at a time
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


class NgpulmArpaSection(Struct):
    """A section as the core reads it."""


class NgpulmArpaWords(Struct):
    """The words of the unigrams, in a hash table."""


_COMPLETE, _MORE, _UNKNOWN_WORD = 0, 1, 3  # what the functions below return; else a line is too short or long
_headings = Function("ngpulm_arpa_headings")
_read_unigrams = Function("ngpulm_arpa_unigrams")
_index = Function("ngpulm_arpa_index")
_read_ngrams = Function("ngpulm_arpa_ngrams")


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
        self._unigrams = _Unigrams(self._text, self._sections[0])
        self._all_words = self._unigrams.words
        self.words = [word for word in self._all_words if word not in _SPECIAL_WORDS]

    def table(self, vocabulary: Vocabulary, units: str) -> NGramTable:
        """Return the n-grams, of tokens. Arguments as for `read_arpa`."""
        try:
            _, ids = units_to_ids(self.words, units, vocabulary)
        except NGramFormatError as error:
            raise NGramFormatError(f"{self.path}: {error}") from None
        return self._table(ids, vocabulary.size)

    def word_table(self) -> NGramTable:
        """Return the n-grams, of words: id `i` is `words[i]`."""
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
        tokens = np.array(id_of_word, dtype=np.int32)
        words = self._unigrams.index(tokens)
        rows = [(torch.from_numpy(tokens[:, None]), *self._unigrams.columns)]
        for section in self._sections[1:]:
            ngrams = _NGrams(self._text, section, words)
            rows.append((torch.from_numpy(ngrams.tokens), *ngrams.columns))
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
        self.bytes = np.frombuffer(self.buffer, dtype=np.uint8)

    def where(self, at: int) -> str:
        """Return the file and the line that a byte is in, for a message."""
        return f"{self.path}, line {self.line_number(at)}"

    def line_number(self, at: int) -> int:
        """Return the line that a byte is in, from 1 up."""
        return self.buffer.count(b"\n", 0, at) + 1

    def line(self, at: int) -> bytes:
        """Return the line that a byte is in."""
        end = self.buffer.find(b"\n", at)
        return self.buffer[self.buffer.rfind(b"\n", 0, at) + 1 : None if end < 0 else end]

    def sections(self) -> list[_Section]:
        """Read the header and find the section of each order."""
        data = re.compile(rb"^\\data\\[ \t\r\v\f]*$", re.MULTILINE).search(self.buffer, 0, MAX_HEADER_BYTES)
        if data is None:
            shown = _shown(self.buffer[:1000].partition(b"\n")[0], 40)
            where = f" within its first {MAX_HEADER_BYTES:,} bytes" if len(self.buffer) > MAX_HEADER_BYTES else ""
            raise NGramFormatError(f"{self.path}: not an ARPA file: no line \\data\\{where} (it begins with {shown!r})")
        first = self._headings(data.end(), 1)
        counts = self._counts(data.end(), first[0][0] if first else len(self.buffer))
        expected = [f"\\{n}-grams:" for n in range(1, len(counts) + 1)] + ["\\end\\"]
        found = self._headings(data.end(), len(expected))
        for at, heading in enumerate(expected):
            if at == len(found):
                raise NGramFormatError(f"{self.path}: no line {heading}; is the file cut short?")
            line = self.buffer[slice(*found[at])].strip()
            if line != heading.encode():
                raise NGramFormatError(f"{self.where(found[at][0])}: expected {heading}, got {_shown(line, 60)!r}")
        if len(counts) > MAX_ORDER:
            raise NGramFormatError(f"{self.path}: the file has n-grams of {len(counts)} orders; at most {MAX_ORDER} are read")
        return [_Section(n, found[n - 1][1], found[n][0], counts[n - 1]) for n in range(1, len(counts) + 1)]

    def _headings(self, first: int, most: int) -> list[tuple[int, int]]:
        """Return where the first lines after some byte begin and end that begin with a backslash."""
        places = np.empty(most, dtype=np.int64)
        found = _headings(self.bytes, first, len(self.buffer), places, most)
        ends = [self.buffer.find(b"\n", place) for place in places[:found].tolist()]
        return [(place, len(self.buffer) if end < 0 else end) for place, end in zip(places[:found].tolist(), ends)]

    def _counts(self, first: int, end: int) -> list[int]:
        """Return how many n-grams of each order the header promises, in the bytes between `\\data\\` and the first section."""
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


def _shown(line: bytes, size: int) -> str:
    """Return the beginning of a line, for a message."""
    return line.strip()[: 4 * size].decode("utf-8", "replace")[:size]


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return b"_" not in field  # 1_0 is a number to Python alone


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
    """The `columns` of one section, natural logs: log-probabilities and backoffs, float32 `[N]` each.

    The native core reads the lines. It comes back with numbers that it leaves to Python, and with faults.
    """

    def __init__(self, text: _Text, section: _Section) -> None:
        self.text, self.section = text, section
        shortest = 2 * (section.n + 1)  # bytes of a line
        self.capacity = min(section.promised, (section.end - section.first) // shortest)
        self._values = np.zeros((2, self.capacity), dtype=np.float32)
        self._left = np.empty((NUMBERS_LEFT, 4), dtype=np.int64)
        self._progress = np.array([section.first, 0, 0, 0, 0])
        self._given = NgpulmArpaSection(
            text=text.bytes, end=section.end, order=section.n, capacity=self.capacity, log_probs=self._values[0],
            backoffs=self._values[1], left=self._left, room=NUMBERS_LEFT, progress=self._progress,
        )  # fmt: skip

    @property
    def columns(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self._values[0]), torch.from_numpy(self._values[1])

    def _read(self, read: Function, *arguments: Any) -> None:
        result = _MORE
        while result == _MORE:
            result = read(self._given, *arguments)
            for row, is_backoff, begin, end in self._left[: self._progress[2]].tolist():
                value = self._number(begin, end, "backoff" if is_backoff else "log-probability")
                if row < self.capacity:
                    self._values[is_backoff, row] = value * LN10
        if result != _COMPLETE:
            self._raise(result, *self._progress[3:].tolist())
        if (found := int(self._progress[1])) != self.section.promised:
            raise NGramFormatError(
                f"{self.text.path}: the header says {self.section.promised} {self.section.n}-grams, the file has {found}"
            )

    def _number(self, begin: int, end: int, what: str) -> float:
        """Return a number that the core doesn't read, such as log 0 as the toolkits write it."""
        field = self.text.buffer[begin:end]
        if not _is_number(field):
            self._check_text(begin)
            raise NGramFormatError(f"{self.text.where(begin)}: {_shown(field, 80)!r} isn't a number")
        value = LOG10_ZERO if float(field) == -math.inf else float(field)
        if what != "backoff" and 0 < value <= ROUNDING:
            return 0.0
        if not abs(value) < LARGEST or (what != "backoff" and value > 0):
            limit = "" if what == "backoff" else " of at most 0"
            raise NGramFormatError(f"{self.text.where(begin)}: the {what} {value:g} should be a finite number{limit}")
        return value

    def _raise(self, fault: int, begin: int, end: int) -> NoReturn:
        self._check_text(begin)
        shown, where = self.text.buffer[begin:end], self.text.where(begin)
        if fault == _UNKNOWN_WORD:
            raise NGramFormatError(f"{where}: the word {shown.decode()!r} isn't among the 1-grams")
        raise NGramFormatError(
            f"{where}: expected a log-probability, {self.section.n} word(s) and possibly a backoff, got {_shown(shown, 80)!r}"
        )

    def _check_text(self, at: int) -> None:
        try:
            self.text.line(at).decode()
        except UnicodeDecodeError as error:
            raise NGramFormatError(f"{self.text.where(at)}: not UTF-8 text: {error}") from None


class _Unigrams(_Columns):
    """Those of the unigrams, and their `words`."""

    def __init__(self, text: _Text, section: _Section) -> None:
        super().__init__(text, section)
        self._starts = np.zeros(self.capacity + 1, dtype=np.int64)
        written = np.empty(section.end - section.first, dtype=np.uint8)
        self._read(_read_unigrams, written, self._starts)
        self._written = written[: self._starts[-1]].copy()
        try:
            self.words = self._written.tobytes().decode().split("\n")[:-1]
        except UnicodeDecodeError:
            self._find_no_text()
            raise

    def _find_no_text(self) -> None:
        """Complain about the first line that isn't text."""
        try:
            self.text.buffer[self.section.first : self.section.end].decode()
        except UnicodeDecodeError as error:
            self._check_text(self.section.first + error.start)

    def index(self, ids: np.ndarray) -> Any:
        """Return the words as n-grams find them; `ids` int32 are what they stand for."""
        slots = np.zeros(1 << (2 * len(ids)).bit_length(), dtype=np.int64)
        words = NgpulmArpaWords(
            text=self._written, starts=self._starts, ids=ids, num_words=len(ids), slots=slots, num_slots=len(slots),
            seed=secrets.randbits(63),
        )  # fmt: skip
        _index(words)
        return words


class _NGrams(_Columns):
    """Those of a higher order, and their `tokens` int32 [N, n]; words are looked up among those of the unigrams."""

    def __init__(self, text: _Text, section: _Section, words: Any) -> None:
        super().__init__(text, section)
        self.tokens = np.empty((self.capacity, section.n), dtype=np.int32)
        self._read(_read_ngrams, words, self.tokens)


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
    """Return how each token id is written in an ARPA file; None where it can't be."""
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
    """Return natural logs as log10, in as many decimal digits (7 to 9) as it takes for the same float32 to come back."""
    exact = values.astype(np.float64) / LN10
    magnitude = np.floor(np.log10(np.abs(np.where(exact == 0, 1, exact))))
    rounded = np.rint(exact * 10.0 ** (8 - magnitude)) / 10.0 ** (8 - magnitude)
    for digits in (8, 7):
        scale = 10.0 ** (digits - 1 - magnitude)
        shorter = np.rint(exact * scale) / scale
        rounded = np.where((shorter * LN10).astype(np.float32) == values, shorter, rounded)
    return rounded + 0.0
