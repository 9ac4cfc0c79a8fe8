"""ARPA files, read and written by column.

The text is split and parsed by pyarrow's vectorised kernels in blocks of lines, a few blocks at a time on several
threads; no Python code runs per line. What differs between KenLM's and SRILM's dialects (text before `\\data\\`, tabs
or blanks between fields, missing backoffs, `-99` for log 0, `<unk>` or `<UNK>`, Windows line ends, trailing blanks,
blank lines, a byte order mark) is accepted everywhere.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..errors import NGramFormatError
from ..files import write_beside
from ..vocabulary import Vocabulary
from .table import NGramTable
from .units import NEMO_OFFSET, units_to_ids

if TYPE_CHECKING:
    import pyarrow as pa

LN10 = math.log(10.0)
LOG10_ZERO = -99.0  # SRILM's and KenLM's way to write log 0
LINES_PER_BLOCK = 1 << 16
# Rounding in the writer of a file may leave a log-probability this far above 0 (log10).
ROUNDING = 1e-4
# Beyond this float32 natural logs overflow (log10).
LARGEST = 1e38
_DECOMPRESSORS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_SPECIAL_WORDS = {"<s>": "bos", "<S>": "bos", "</s>": "eos", "</S>": "eos", "<unk>": "unk", "<UNK>": "unk"}


def read_arpa(path: str | os.PathLike[str], vocabulary: Vocabulary, units: str = "auto") -> NGramTable:
    """Read an ARPA file (plain, .gz, .bz2 or .xz, told apart by content) into a table.

    A log-probability of `-inf` is read as -99, as both toolkits write log 0. A suffix that is missing is no fault
    (SRILM's pruned models lack some), a missing prefix is one: as for KenLM.

    Args:
        path: the file, or a pipe.
        vocabulary: the ids that its units stand for.
        units: "auto", "piece", "id", "nemo" or "char", see `hf_ngpulm.ngrams.units`.

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
        self._all_words = self._unigrams.words.to_pylist()
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
        import pyarrow as pa

        special = {"bos": vocab_size, "eos": vocab_size + 1, "unk": vocab_size + 2}
        ids = iter(ordinary_ids)
        id_of_word = np.array(
            [special[_SPECIAL_WORDS[word]] if word in _SPECIAL_WORDS else next(ids) for word in self._all_words],
            dtype=np.int32,
        )
        known_words = pa.array(self._all_words, type=pa.large_string())
        rows = []
        for section in self._sections:
            columns = self._unigrams if section.n == 1 else _Columns(self._text, section, known_words)
            rows.append(
                (
                    torch.from_numpy(id_of_word[columns.word_rows].reshape(-1, section.n)),
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
    """The lines that hold the n-grams of one order, and how many n-grams the header promises there."""

    n: int
    first: int
    last: int
    promised: int


class _Text:
    """The bytes of a file, and where its lines begin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = _read_bytes(path)
        data = np.frombuffer(self.buffer, dtype=np.uint8)
        if data.size == 0:
            raise NGramFormatError(f"{path}: the file is empty; an ARPA file begins with a line \\data\\")
        if bytes(data[:8]) == b"mmap lm ":
            raise NGramFormatError(
                f"{path}: a KenLM binary, not an ARPA file; hf_ngpulm.kenlm.read_binary reads it (not compressed), and "
                "hf-ngpulm convert lm.bin lm.arpa makes an ARPA file of it"
            )
        newlines = np.flatnonzero(data == ord("\n"))
        self.starts = np.concatenate([[0], newlines + 1])
        if self.starts[-1] == data.size:
            self.starts = self.starts[:-1]
        self.ends = np.append(newlines, data.size)[: len(self.starts)]
        if bytes(data[:3]) == b"\xef\xbb\xbf":  # a byte order mark
            self.starts[0] = min(3, self.ends[0])
        self.data = data

    def line(self, number: int) -> str:
        raw = bytes(self.data[self.starts[number] : self.ends[number]])
        return raw.strip().decode("utf-8", "replace")

    def sections(self) -> list[_Section]:
        """Read the header and find the section of each order."""
        marked = np.flatnonzero(self.data[np.minimum(self.starts, self.data.size - 1)] == ord("\\"))
        headings = [(int(number), self.line(int(number))) for number in marked]
        while headings and headings[0][1] != "\\data\\":
            del headings[0]
        if not headings:
            shown = self.line(0)[:40]
            raise NGramFormatError(f"{self.path}: not an ARPA file: no line \\data\\ (it begins with {shown!r})")
        counts: dict[int, int] = {}
        first_section = headings[1][0] if len(headings) > 1 else len(self.starts)
        for number in range(headings[0][0] + 1, first_section):
            line = self.line(number)
            if match := re.fullmatch(r"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})", line, re.ASCII):
                if int(match[1]) in counts:
                    raise NGramFormatError(f"{self.path}, line {number + 1}: the header counts {match[1]}-grams twice")
                counts[int(match[1])] = int(match[2])
            elif line:
                raise NGramFormatError(
                    f"{self.path}, line {number + 1}: expected 'ngram N=COUNT' in the header, got {line[:60]!r}"
                )
        if not counts or sorted(counts) != list(range(1, len(counts) + 1)):
            shown = ", ".join(map(str, sorted(counts)[:10])) or "none"
            raise NGramFormatError(f"{self.path}: the header should count the orders 1, 2, ..., but counts {shown}")
        expected = [f"\\{n}-grams:" for n in range(1, len(counts) + 1)] + ["\\end\\"]
        found = headings[1 : len(expected) + 1]
        for at, heading in enumerate(expected):
            if at == len(found):
                raise NGramFormatError(f"{self.path}: no line {heading}; is the file cut short?")
            if found[at][1] != heading:
                raise NGramFormatError(f"{self.path}, line {found[at][0] + 1}: expected {heading}, got {found[at][1][:60]!r}")
        return [_Section(n, found[n - 1][0] + 1, found[n][0], counts[n]) for n in range(1, len(counts) + 1)]

    def lines(self, first: int, last: int) -> pa.Array:
        """Lines as strings that share the file's memory."""
        import pyarrow as pa

        start = int(self.starts[first])
        offsets = np.append(self.starts[first:last], self.ends[last - 1]) - start
        try:
            array = pa.Array.from_buffers(
                pa.large_string(),
                last - first,
                [None, pa.py_buffer(offsets.astype(np.int64)), self.buffer.slice(start)],
            )
            array.validate(full=True)
        except pa.ArrowInvalid:
            for number in range(first, last):
                try:
                    bytes(self.data[self.starts[number] : self.ends[number]]).decode("utf-8")
                except UnicodeDecodeError as error:
                    raise NGramFormatError(f"{self.path}, line {number + 1}: not UTF-8 text: {error}") from None
            raise NGramFormatError(f"{self.path}, lines {first + 1} to {last}: not UTF-8 text") from None
        return array


def _read_bytes(path: Path) -> pa.Buffer:
    import pyarrow as pa

    if path.is_dir():
        raise NGramFormatError(f"{path}: a folder, not an ARPA file; a saved model is loaded with from_pretrained")
    with open(path, "rb") as file:
        data = file.read()
    for mark, decompress in _DECOMPRESSORS.items():
        if data.startswith(mark):
            try:
                return pa.py_buffer(decompress(io.BytesIO(data), "rb").read())
            except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                message = f"{path}: the compressed file is cut short or damaged: {error}"
                raise NGramFormatError(message) from None
    return pa.py_buffer(data)


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
            self.word_rows = np.concatenate([part[2] for part in parts]) if parts else np.zeros(0, dtype=np.int32)
        if len(self.log_probs) != section.promised:
            raise NGramFormatError(
                f"{text.path}: the header says {section.promised} {section.n}-grams, the file has {len(self.log_probs)}"
            )

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
                f"{self.text.path}, line {number + 1}: expected a log-probability, {self.n} word(s) and possibly a "
                f"backoff, got {self.text.line(number)[:80]!r}"
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
        rows = pc.index_in(words, value_set=self.known_words)
        if rows.null_count:
            at = int(np.flatnonzero(rows.is_null().to_numpy(zero_copy_only=False))[0])
            raise NGramFormatError(
                f"{self.text.path}, line {numbers[at // self.n] + 1}: the word {words[at].as_py()!r} isn't among the 1-grams"
            )
        return log_probs, backoffs, rows.to_numpy(zero_copy_only=False)

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
        bad = ~(np.abs(values) < LARGEST)
        if what != "backoff":
            bad |= values > 0
        if bad.any():
            value, number = float(values[bad][0]), int(numbers[bad][0])
            limit = "" if what == "backoff" else " of at most 0"
            raise NGramFormatError(
                f"{self.text.path}, line {number + 1}: the {what} {value:g} should be a finite number{limit}"
            )


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
    import pyarrow as pa
    import pyarrow.compute as pc

    header = ["\\data\\", *(f"ngram {n}={count}" for n, count in enumerate(table.num_ngrams, start=1)), ""]
    yield ("\n".join(header) + "\n").encode()
    word_array = pa.array(words, type=pa.string())
    for n, order in enumerate(table.orders, start=1):
        yield f"\\{n}-grams:\n".encode()
        tokens = table.rows(n).numpy()
        log_probs, backoffs = order.log_probs.numpy(), order.backoffs.numpy()
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
    """Natural logs as log10 text, in as many digits (7 to 9) as it takes for the same float32 to come back."""
    import pyarrow as pa
    import pyarrow.compute as pc

    exact = values.astype(np.float64) / LN10
    magnitude = np.floor(np.log10(np.abs(np.where(exact == 0, 1, exact))))
    texts = np.rint(exact * 10.0 ** (8 - magnitude)) / 10.0 ** (8 - magnitude)
    for digits in (8, 7):
        scale = 10.0 ** (digits - 1 - magnitude)
        shorter = np.rint(exact * scale) / scale
        texts = np.where((shorter * LN10).astype(np.float32) == values, shorter, texts)
    return pc.cast(pa.array(texts + 0.0), pa.string())
