"""Files that appear whole or not at all, and files that may be hostile."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import NGramFormatError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def write_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the name of a file in a temporary folder beside `path`; rename it to that when the block ends without an error.

    A crash, an interrupt or a full disk leaves what stood at `path` untouched. What a process that was killed has left beside
    it goes when the same file is written again (but on Windows, which has no locks of folders).
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name[:32]}.tmp-"
    _remove_left_over(path.parent, prefix)
    folder, lock = _locked_folder(path.parent, prefix)
    beside = folder / path.name  # libraries may put files of their own beside this one
    try:
        beside.touch()
        yield beside
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o666 & ~mask)
        os.replace(beside, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Return a new folder, and a lock on it that goes with the process; None where there are no locks."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if fcntl is None:
            return folder, None
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process has taken it for one that was left over
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            os.close(lock)
            return folder, None
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_left_over(parent: Path, prefix: str) -> None:
    """Remove the folders that nobody holds a lock on any more."""
    if fcntl is None:
        return
    for entry in list(os.scandir(parent)):
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            lock = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # gone, or somebody else's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:  # in use, or a file system without locks
            pass
        finally:
            os.close(lock)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say which file it is, or repo, that an `NGramFormatError` is about."""
    try:
        yield
    except NGramFormatError as error:
        if str(error).startswith(os.fspath(path)):
            raise
        raise NGramFormatError(f"{os.fspath(path)}: {error}") from None


def read_unpacked(file: io.BufferedIOBase, limit: int) -> bytes:
    """Read all of a file that is decompressed as it is read: a small one may unpack to any size.

    Raises:
        NGramFormatError: it has more than `limit` bytes.
    """
    unpacked = io.BytesIO()
    while chunk := file.read(1 << 20):
        unpacked.write(chunk)
        if unpacked.tell() > limit:
            raise NGramFormatError(f"it unpacks to over {limit} bytes, out of proportion to its size; decompress it first")
    return unpacked.getvalue()
