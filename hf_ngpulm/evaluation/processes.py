"""Divide an evaluation among processes. Their results are in files, which survive if processes are killed.

`accelerate launch` (or `torchrun`, or any launcher that sets RANK and WORLD_SIZE) starts the processes. They communicate only
through files in the folder `results.jsonl.parts/`, which all share. So no process can hang in a collective call that another
process never makes.

Each process has a file in that folder and locks it while it runs. The first line has the settings; each further line has the
result of a recording. A process appends the lines of a batch at once. If a process was killed and its last line is incomplete,
that line is dropped. All files together show which recordings are done, even if the number of processes has changed. The first
process waits for the others. A process whose file isn't locked has ended or was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ..common.launch import local_size

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Seconds without new results after which a process counts as lost, if its lock can't tell. It can't if the process hasn't
# opened its file yet (the file may be from an earlier run), or runs on another machine: not all shared folders show locks.
PATIENCE = 300.0


class WorkerLostError(RuntimeError):
    """Raised if a process of an evaluation has died or failed."""


class SettingsMismatchError(ValueError):
    """Raised if existing results have other settings."""


class Parts:
    """The files of an evaluation beside its `output`. All have the same `settings`."""

    def __init__(self, output: str | os.PathLike[str], settings: dict[str, Any], rank: int = 0) -> None:
        self.output, self.settings = Path(output), settings
        self.folder = self.output.with_name(self.output.name + ".parts")
        self.path = self.path_of(rank)
        self._file: IO[bytes] | None = None
        self._read: dict[Path, int] = {}  # number of bytes that were read of each file

    def path_of(self, rank: int) -> Path:
        """Return the file of a process."""
        return self.folder / f"{rank:05}.jsonl"

    def found(self) -> Iterator[dict[str, Any]]:
        """Yield the records that were added to any file since the last call. Raises SettingsMismatchError if a file has other
        settings, ValueError if a file isn't part of an evaluation, or is damaged.
        """
        for path in sorted(self.folder.glob("[0-9]*.jsonl")) if self.folder.is_dir() else ():
            begin = self._read.get(path, 0)
            with open(path, "rb") as file:
                file.seek(begin)
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read[path] = begin + len(whole)
            for number, line in enumerate(whole.splitlines()):
                try:
                    record = json.loads(line)
                    if begin == 0 and number == 0:
                        self.check(record["settings"], path)
                        continue
                except SettingsMismatchError:
                    raise
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(
                        f"{path}: not a part of an evaluation, or damaged ({error}); remove the folder to begin anew"
                    ) from None
                yield record

    def check(self, settings: dict[str, Any], path: Path) -> None:
        """Refuse results with other settings. Raises SettingsMismatchError if `settings` differ from the settings of this
        evaluation.
        """
        ours, theirs = json.loads(json.dumps(self.settings)), settings
        if ours == theirs:
            return
        names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        told = "; ".join(f"{name} is {_short(theirs.get(name))} there and {_short(ours.get(name))} here" for name in names)
        remedy = f"the folder {self.folder}" if path.parent == self.folder else f"the file {path}"
        raise SettingsMismatchError(
            f"{path}: holds results of other settings ({told}); name another output, or remove {remedy} to begin anew"
        )

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Append the records of a batch in one write."""
        self.open()
        assert self._file is not None
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        self._file.write(lines.encode())
        self._file.flush()

    def open(self) -> None:
        """Open and lock this process's file. Drop its last line if that is incomplete. Raises ValueError if another process has
        locked the file.
        """
        if self._file is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self._file = open(self.path, "a+b")  # noqa: SIM115
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ValueError(f"{self.path}: another process is writing to it; let it end, or name another output") from None
        file.seek(0)
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
        if b"\n" not in content:
            file.write((json.dumps({"settings": self.settings}, ensure_ascii=False) + "\n").encode())
            file.flush()
        os.utime(self.path)  # shows other processes that this one has begun

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the folder after all results are in the output."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def leave(self) -> None:
        """Remove this process's file, provided that the output had all results when the file was opened."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.folder.rmdir()


class Watch:
    """Lets the first process watch the other processes. `patience` is a number of seconds; see `PATIENCE`."""

    def __init__(self, parts: Parts, size: int, patience: float = PATIENCE) -> None:
        self.patience, self.local = patience, local_size(size) if fcntl is not None else 0
        self._paths = {rank: parts.path_of(rank) for rank in range(1, size)}
        self._before = {rank: _changed(path) for rank, path in self._paths.items()}
        self._seen = {rank: (changed, time.monotonic()) for rank, changed in self._before.items()}

    def wait(self, complete: Callable[[], bool], remedy: str) -> None:
        """Wait until `complete` returns True. Raises WorkerLostError if another process died or failed; the message ends with
        `remedy`.
        """
        while not complete():
            lost = [(rank, why) for rank in self._paths if (why := self._lost(rank))]
            # More results may have arrived since the last check.
            if (lost or not self._paths) and not complete():
                told = "; ".join(f"process {rank} {why}" for rank, why in lost) or "results are missing"
                raise WorkerLostError(f"{told}. {remedy}")
            time.sleep(0.1)

    def _lost(self, rank: int) -> str | None:
        """Return the reason why a process counts as lost; None if it is running or done."""
        changed, now = _changed(self._paths[rank]), time.monotonic()
        if changed != self._seen[rank][0]:
            self._seen[rank] = changed, now
        is_quiet = now - self._seen[rank][1] > self.patience
        has_begun = rank < self.local and changed not in (None, self._before[rank])
        # The lock isn't tried before a process has begun, because the process may be about to take it.
        if not (is_quiet or has_begun) or (changed is not None and _is_locked(self._paths[rank])):
            return None
        return "has died, or failed" if has_begun else f"has died, or not begun: nothing is new from it for {self.patience:g} s"


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _is_locked(path: Path) -> bool:
    if fcntl is None:
        return False
    with open(path, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def fingerprint_of(settings: Any) -> str:
    """Return a fingerprint of JSON settings, 32 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
