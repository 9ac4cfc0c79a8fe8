"""Room for large arrays: memory, or files on disk that are mapped into memory piece by piece.

Estimation and building read and write long arrays. `Room` says where these arrays are, and in which blocks of rows to process
them. In memory a block is as long as a thread's share. On disk a block is short, and the pages of all files are given back to
the system after each block. So the resident memory stays bounded for arrays of any size. The results are the same.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from ..engines.threads import block_bounds, in_blocks

logger = logging.getLogger(__name__)

# Bytes that estimation and building need for an n-gram, at most, with all arrays that exist at the same time.
BYTES_PER_NGRAM = 64
SMALLEST_BLOCK = 1 << 8  # rows
SEARCHES = 1 << 8  # in a column, between two looks at the resident memory

_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class Columns(Protocol):
    """The n-grams of one order, sorted by (prefix, token); see `NGramOrder`."""

    @property
    def prefixes(self) -> Tensor: ...
    @property
    def tokens(self) -> Tensor: ...


def give_back_pages() -> None:
    """Give the pages of all mapped files back to the system. Their contents stay on disk, and usually in the system's cache."""
    for mapped in list(_mapped):
        if hasattr(mapped, "madvise"):  # not on Windows, which gives pages back itself
            mapped.madvise(mmap.MADV_DONTNEED)


def give_back_freed() -> None:
    """Give freed memory back to the system. Otherwise the C library keeps much of it, above all the memory of other threads."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)


def map_file(file: BinaryIO, nbytes: int) -> mmap.mmap:
    """Map a file, so that `give_back_pages` includes it."""
    mapped = mmap.mmap(file.fileno(), nbytes)
    _mapped.add(mapped)
    return mapped


class Room:
    """A place for large arrays, in memory or on disk.

    Args:
        memory: limit in bytes beyond which arrays are on disk; None for no limit.
        folder: folder for the files; by default the system's folder for temporary files. The files have no names, so they
            disappear when the process ends.
    """

    def __init__(self, memory: int | None = None, folder: str | Path | None = None) -> None:
        self.memory = memory
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self.is_on_disk = False
        self._before = min(_resident_of_files(), 1 << 40)  # of the program

    def plan(self, num_ngrams: int) -> None:
        """Decide where the arrays for `num_ngrams` n-grams will be, before they are made. Log how much disk space they need.

        Raises:
            OSError: the disk has too little space.
        """
        needed = num_ngrams * BYTES_PER_NGRAM
        if self.memory is None or needed <= self.memory:
            return
        self.is_on_disk = True
        free = shutil.disk_usage(self.folder).free
        message = f"{num_ngrams:,} n-grams are estimated on disk: up to {needed / 1e9:.1f} GB in {self.folder}"
        if free < needed:
            raise OSError(
                28, f"{message}, which has {free / 1e9:.1f} GB. Name a folder on a larger disk, allow more memory, or prune "
                "rare n-grams of a shorter order"
            )  # fmt: skip
        logger.info("%s, which has %.1f GB", message, free / 1e9)

    def zeros(self, size: int, dtype: torch.dtype) -> Tensor:
        """Return an array of zeros `[size]`.

        Raises:
            OSError: the disk is full.
        """
        nbytes = size * dtype.itemsize
        if not self.is_on_disk or nbytes == 0:
            return torch.zeros(size, dtype=dtype)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                _reserve(file, nbytes)
                return torch.frombuffer(map_file(file, nbytes), dtype=dtype)
        except OSError as error:
            raise no_room(error, self.folder, nbytes) from None

    @property
    def block(self) -> int:
        """The number of rows in a block on disk."""
        return max(SMALLEST_BLOCK, (self.memory or 0) // (32 * BYTES_PER_NGRAM))

    def spans(self, rows: int) -> Iterator[slice]:
        """Yield slices that cover all rows. In memory, yield one slice for all rows. On disk, yield one slice per block. Yield
        nothing if there are no rows.
        """
        step = self.block if self.is_on_disk else max(rows, 1)
        for first in range(0, rows, step):
            yield slice(first, min(rows, first + step))
            if self.is_on_disk:
                self._bound_pages()

    def blocks(self, rows: int, least: int) -> np.ndarray:
        """Return the bounds of blocks of rows. In memory, a block has at least `least` rows."""
        return np.array([*range(0, rows, self.block), rows]) if self.is_on_disk and rows else block_bounds(rows, least)

    def blocks_by_suffix(self, orders: Sequence[Columns], n: int, least: int) -> np.ndarray:
        """Cut the n-grams of order `n` into blocks of rows, `[B, 2]`, so that the suffixes of a block are near each other.

        `orders` are the n-grams of each order. The suffix of an n-gram is the n-gram without its first token, a row of order
        n - 1. The suffixes of neighbouring rows may be far apart. So on disk, the order n - 1 is cut into parts by first
        tokens. Each part takes about an eighth of the memory, and all suffixes of a block are in one part. Blocks with suffixes
        in the first part come first. In memory, a block has at least `least` rows.
        """
        rows = orders[n - 1].tokens.numel()
        if not self.is_on_disk or n < 3:
            return pairs_of(self.blocks(rows, least))
        below = orders[n - 2].tokens.numel()
        at = torch.arange(0, below, max(1, min(below, (self.memory or 0) // (2 * BYTES_PER_NGRAM))))
        for order in reversed(orders[1 : n - 1]):
            at = order.prefixes[at]
        cuts: np.ndarray = np.unique(orders[0].tokens[at].numpy())[1:]
        starts = np.searchsorted(orders[1].prefixes.numpy(), np.arange(orders[0].tokens.numel() + 1))
        tokens = orders[1].tokens.numpy()
        bounds = np.array([[i, *(i + np.searchsorted(tokens[i:j], cuts)), j] for i, j in pairwise(starts.tolist())])
        for order in orders[2:n]:
            bounds = self._places(order.prefixes.numpy(), bounds)
        pairs = np.stack([bounds[:, :-1], bounds[:, 1:]], axis=2).swapaxes(0, 1).reshape(-1, 2)
        return np.array(
            [(i, min(j, i + self.block)) for first, j in pairs.tolist() for i in range(first, j, self.block)], dtype=np.int64
        ).reshape(-1, 2)

    def _places(self, column: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Find values in a sorted column on disk, and return their rows. The search touches many pages, so pages are given
        back.
        """
        found = np.empty(values.size, dtype=np.int64)
        for first in range(0, values.size, SEARCHES):
            rows = slice(first, first + SEARCHES)
            found[rows] = np.searchsorted(column, values.ravel()[rows])
            self._bound_pages()
        return found.reshape(values.shape)

    def in_blocks(
        self, run: Callable[..., Any], bounds: np.ndarray, arguments: tuple[Any, ...] = (), *each: Iterable[Any]
    ) -> list[Any]:
        """Call `run` as `hf_ngpulm.engines.threads.in_blocks` does. On disk, give pages back when there are many."""
        if not self.is_on_disk:
            return in_blocks(run, bounds, arguments, *each)

        def then_give_back(*of_block: Any) -> Any:
            result = run(*of_block)
            self._bound_pages()
            return result

        return in_blocks(then_give_back, bounds, arguments, *each)

    def _bound_pages(self) -> None:
        """Give the pages of mapped files back to the system if they take a quarter of the memory limit."""
        if _resident_of_files() - self._before >= (self.memory or 0) / 4:
            give_back_pages()


def _resident_of_files() -> float:
    """Return how many bytes of mapped files, including the program's files, are in memory; infinity if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE
    except OSError:  # another system than Linux
        return math.inf


def pairs_of(bounds: np.ndarray) -> np.ndarray:
    """Convert the bounds of adjacent blocks, `[B + 1]`, to pairs of first row and end, `[B, 2]`."""
    return np.stack([bounds[:-1], bounds[1:]], axis=1)


def no_room(error: OSError, folder: Path, nbytes: int) -> OSError:
    """Return the error to raise if the disk of `folder` has no room for `nbytes` bytes. The message says what to do."""
    return OSError(
        error.errno,
        f"no room for n-grams in {folder} ({nbytes >> 20} MiB): {error.strerror}. Allow more memory, or name a folder on a "
        "larger disk (TMPDIR)",
    )


def _reserve(file: BinaryIO, nbytes: int) -> None:
    """Take the disk space of a file now. Otherwise a full disk would kill the process at a write to the mapped memory."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, nbytes)
        return
    for first in range(0, nbytes, 1 << 20):
        file.write(bytes(min(1 << 20, nbytes - first)))
    file.flush()


IN_MEMORY = Room()
