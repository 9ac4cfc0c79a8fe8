"""Read the header of KenLM's binary files.

The header begins with 88 bytes that are equal in all files: the name of the format, and numbers that show the byte order and
the sizes of types. Then come 20 bytes of parameters and a 64-bit count per order, padded to a multiple of 8 bytes.
The layout follows KenLM's `lm/binary_format.cc` (Heafield, "KenLM: Faster and Smaller Language Model Queries", WMT 2011).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from ...errors import NGramFormatError
from ...ngrams.table import MAX_ORDER

MAGIC = b"mmap lm http://kheafield.com/code format version"
VERSION = 5
_INCOMPLETE = b"mmap lm http://kheafield.com/code incomplete\n"
_MAGIC_BYTES = 56  # KenLM's string and its terminating zero, padded to a multiple of 8
# 0, 1 and -1/2 as float32; 1, the largest word id and padding in 32 bits each; 1 in 64 bits.
_TEST_VALUES = (0.0, 1.0, -0.5, 1, 2**32 - 1, 0, 1)
_TEST_FORMAT = "fffIIIQ"
_SANITY = (MAGIC + b" 5\n\0\0").ljust(_MAGIC_BYTES, b"\0") + struct.pack("<" + _TEST_FORMAT, *_TEST_VALUES)
_PARAMETERS = struct.Struct("<B3xfIB3xI")
# The version of each model type's data structure that this reader supports.
MODEL_TYPES = {"probing": 0, "rest_probing": 0, "trie": 1, "quant_trie": 1, "array_trie": 1, "quant_array_trie": 1}
_MOST_BUCKETS_PER_ENTRY = 1000000
_ANEW = "Build the binary anew from the ARPA file"


class Header(NamedTuple):
    """Hold the fields of the header."""

    model_type: str  # one of `MODEL_TYPES`, as KenLM names it
    counts: tuple[int, ...]  # number of n-grams of each order
    probing_multiplier: float  # buckets per entry of hash tables
    has_words: bool  # whether the file ends with the word strings
    size: int  # bytes of the header


def read_header(data: np.ndarray) -> Header:
    """Read the header from a file's bytes (uint8). Raises NGramFormatError if the file isn't a KenLM binary, is incomplete, or
    was made by another version of KenLM or on another kind of machine.
    """
    start, begin, end = bytes(data[: len(_SANITY)]), len(_SANITY), len(_SANITY) + _PARAMETERS.size
    if start != _SANITY:
        raise NGramFormatError(_complaint(start, data.size))
    _check_size(data, end)
    order, multiplier, number, has_words, version = _PARAMETERS.unpack(bytes(data[begin:end]))
    if number >= len(MODEL_TYPES):
        raise NGramFormatError(
            f"the model type is number {number}, which this reader doesn't know (0 to {len(MODEL_TYPES) - 1}: "
            f"{', '.join(MODEL_TYPES)}). {_ANEW}"
        )
    model_type, known_version = list(MODEL_TYPES.items())[number]
    if model_type == "rest_probing":
        raise NGramFormatError(
            "a model of the type rest_probing (probing hash tables with rest costs, build_binary -r), which isn't "
            "supported. Build the binary without -r from the ARPA file"
        )
    if version != known_version:
        raise NGramFormatError(
            f"the data structure {model_type} has version {version}, this reader knows version {known_version}. {_ANEW}"
        )
    if not 2 <= order <= MAX_ORDER:
        raise NGramFormatError(f"the order should be from 2 to {MAX_ORDER}, the header says {order}")
    if has_words > 1:
        raise NGramFormatError(f"whether there are word strings should be 0 or 1 in the header, it is {has_words}")
    if model_type == "probing" and not 1 <= multiplier <= _MOST_BUCKETS_PER_ENTRY:
        raise NGramFormatError(
            f"the probing multiplier should be from 1 to {_MOST_BUCKETS_PER_ENTRY}, the header says {multiplier:g}"
        )
    _check_size(data, end + 8 * order)
    counts = struct.unpack(f"<{order}Q", bytes(data[end : end + 8 * order]))
    for n, count in enumerate(counts, start=1):
        # Every n-gram takes more than one bit, so counts that pass this check can neither overflow nor exhaust memory.
        if count > 8 * data.size:
            raise NGramFormatError(f"the header says {count} {n}-grams, in a file of {data.size} bytes")
    if not 1 <= counts[0] < 2**31 - 8:  # word ids are int32 here
        raise NGramFormatError(f"the header says {counts[0]} 1-grams")
    return Header(model_type, counts, multiplier, bool(has_words), -(-(end + 8 * order) // 8) * 8)


def _check_size(data: np.ndarray, end: int) -> None:
    if data.size < end:
        raise NGramFormatError(f"the file is cut short: {data.size} bytes end within its header")


def _complaint(start: bytes, size: int) -> str:
    """Explain in a message why the first bytes of a file aren't a valid header. `size`: size of the file in bytes."""
    if start.startswith(_INCOMPLETE):
        return "KenLM didn't finish building this file (it was interrupted, or the disk was full). Build it anew"
    if not start.startswith(MAGIC):
        return f"not a KenLM binary file: it begins with {start[:20]!r}. (An ARPA file is read by read_arpa)"
    version = start[len(MAGIC) : _MAGIC_BYTES].split(b"\n")[0].strip()
    if version != str(VERSION).encode() and len(start) >= _MAGIC_BYTES:
        return (
            f"a KenLM binary of format version {version.decode('ascii', 'replace')[:8]!r}, this reader knows version "
            f"{VERSION}. {_ANEW} with a current build_binary"
        )
    if len(start) < len(_SANITY):
        return f"the file is cut short: {size} bytes end within its header"
    if start[_MAGIC_BYTES:] == struct.pack(">" + _TEST_FORMAT, *_TEST_VALUES):
        return f"a KenLM binary of a machine with big-endian byte order. {_ANEW} on this kind of machine"
    if start[_MAGIC_BYTES:].startswith(struct.pack("<fffIIQ", *_TEST_VALUES[:5], 1)):  # without padding before the last
        return f"a KenLM binary of a 32-bit machine, in a format of its own. {_ANEW}"
    return (
        "a KenLM binary whose test values aren't those of this format: a damaged file, or one of a machine with other "
        f"sizes of numbers. {_ANEW}"
    )
