"""Write files so that they appear complete or not at all, and read files from untrusted sources."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import NGramFormatError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]


# Name of the folder that holds complete files until they are moved to their places; see `write_together`.
COMPLETE = ".hf_ngpulm.complete"


@contextmanager
def write_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`. If the block ends without an error, move the file to `path`.

    After a crash, an interrupt or a full disk, the old file at `path` is unchanged. If the process is killed, its temporary
    folder stays until the next write to the same path. On Windows the folder stays for ever, because folders can't be locked.
    """
    path = Path(path)
    with _temporary_folder(path.parent, f".{path.name[:32]}.tmp-") as folder:
        beside = folder / path.name  # in a folder of its own, as libraries may write further files beside it
        beside.touch()
        yield beside
        beside.chmod(0o666 & ~_umask())
        os.replace(beside, path)


@contextmanager
def write_together(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder. If the block ends without an error, move its files to `folder`.

    Readers see either all new files or none, even if the process is killed or the power fails. First the files are written to
    the disk. Then the temporary folder is renamed to `COMPLETE`, and readers prefer `COMPLETE` to `folder` (see `standing_at`).
    Last, the files are moved to `folder`. If the moves are interrupted, the next writer finishes the moves.

    Raises:
        OSError: the files can't be written, or the first file can't be moved; the old files are then unchanged.
    """
    folder = Path(folder)
    complete = folder / COMPLETE
    with _temporary_folder(folder, ".hf_ngpulm.tmp-") as beside:
        yield beside
        beside.chmod(0o777 & ~_umask())
        files = list(beside.iterdir())
        for file in files:
            file.chmod(0o666 & ~_umask())
            _sync(file)
        _sync(beside)
        _take_places(folder)
        while True:
            try:
                os.rename(beside, complete)
                break
            except OSError:  # another process has meanwhile made such a folder
                if not complete.is_dir():
                    raise
                _take_places(folder)
        _sync(folder)
        try:
            _take_places(folder)
        except OSError:
            if len(list(complete.iterdir())) == len(files):
                os.rename(complete, beside)
            raise


def standing_at(path: Path) -> Path:
    """Return the current path of a file from `write_together`. The file is in `COMPLETE` until it is moved to `path`."""
    complete = path.parent / COMPLETE / path.name
    return complete if complete.is_file() else path


def _take_places(folder: Path) -> None:
    """Move the files in `COMPLETE` to `folder`.

    The files may be from a process that was killed. Several processes may call this function at the same time.
    """
    complete = folder / COMPLETE
    if not complete.is_dir():
        return
    for name in sorted(os.listdir(complete), reverse=True):
        with suppress(FileNotFoundError):  # another process has moved it
            os.replace(complete / name, folder / name)
    _sync(folder)
    with suppress(OSError):  # another process has removed the folder, or made a new one
        complete.rmdir()


def _sync(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, are on the disk."""
    is_folder = path.is_dir()
    with suppress(*[OSError] * is_folder):  # Windows and some file systems can't sync folders
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder with a name that begins with `prefix`, and remove the folder when the block ends. Also remove the
    folders with this prefix that killed processes made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(parent, prefix)
    folder, lock = _locked_folder(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Return a new folder and its lock. The lock ends with the process. If folders can't be locked, the lock is None."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if fcntl is None:
            return folder, None
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process took the folder for a leftover and removed it
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
    """Remove the folders with names that begin with `prefix`, if no running process has locked them."""
    if fcntl is None:
        return
    for entry in list(os.scandir(parent)):
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            lock = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # the folder is gone, or belongs to another user
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:  # the folder is in use, or the file system has no locks
            pass
        finally:
            os.close(lock)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the name of the file or repo to the message of an `NGramFormatError`."""
    try:
        yield
    except NGramFormatError as error:
        if str(error).startswith(os.fspath(path)):
            raise
        raise NGramFormatError(f"{os.fspath(path)}: {error}") from None


def read_unpacked(file: io.BufferedIOBase, limit: int) -> bytes:
    """Read a compressed file. Raises NGramFormatError if it unpacks to more than `limit` bytes."""
    unpacked = io.BytesIO()
    while chunk := file.read(1 << 20):
        unpacked.write(chunk)
        if unpacked.tell() > limit:
            raise NGramFormatError(f"it unpacks to over {limit} bytes, out of proportion to its size; decompress it first")
    return unpacked.getvalue()
