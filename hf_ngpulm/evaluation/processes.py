"""Processes that share an evaluation: which one this is, and whether the others are still there.

They are started by `accelerate launch` (or `torchrun`, or whatever sets RANK and WORLD_SIZE) and never talk to each other but
by files in a folder that all of them see, so that none can hang in a call that another one never makes. Each tells twice a
second that it lives; the first one, which waits for the results of all, looks at these signs.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEAT = 0.5  # seconds between two signs of life
SETTLED = 10.0  # seconds after a process's end in which the last of its results should be seen
EARLY = 30.0  # seconds for a process to replace the sign that was there before this one looked: of an earlier run, maybe
PATIENCE = 120.0  # seconds without one after which a process is taken for dead; shared folders may show files late


class WorkerLostError(RuntimeError):
    """A process of an evaluation has died, or has failed."""


def rank_and_size() -> tuple[int, int]:
    """Return this process's number, and how many there are, as torchrun, accelerate or MPI says.

    Raises:
        ValueError: RANK and WORLD_SIZE that make no sense.
    """
    rank, size = _first_of("RANK", "0"), _first_of("WORLD_SIZE", "1")
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise ValueError(f"RANK should be a number below WORLD_SIZE, got RANK={rank!r} and WORLD_SIZE={size!r}")
    return int(rank), int(size)


def launched_alone() -> bool:
    """Return whether `accelerate launch --num_processes N` has started a single process: without a GPU it needs --multi_gpu,
    too."""
    return "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and rank_and_size() == (0, 1) and not any(
        name in os.environ for name in _NAMES["WORLD_SIZE"]
    )  # fmt: skip


def local_rank() -> int:
    """Return this process's number among those of its machine, which is that of its GPU."""
    rank = _first_of("LOCAL_RANK", "0")
    return int(rank) if rank.isdecimal() else 0


# What accelerate looks at for processes on CPUs, in its order.
_NAMES = {
    "RANK": ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
}


def _first_of(name: str, default: str) -> str:
    return next((os.environ[variable] for variable in _NAMES[name] if variable in os.environ), default)


class Signs:
    """Signs of life of this process. A context manager: within it they are given, and its end says how it ended.

    Args:
        folder: which all processes see.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = sign_path(folder, rank)
        self._about: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "state": "running"}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)

    def __enter__(self) -> Signs:
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._ended.set()
        self._thread.join()
        self._about |= {"state": "done"} if error is None else {"state": "failed", "message": f"{kind.__name__}: {error}"}
        self._write()

    def _run(self) -> None:
        beat = 0
        while True:
            self._about["beat"] = beat = beat + 1
            self._write()
            if self._ended.wait(BEAT):
                return

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the first process has taken the folder away: all is done
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(self._about))
            os.replace(beside, self.path)


def sign_path(folder: Path, rank: int) -> Path:
    return folder / f"{rank:05}.alive"


class Watch:
    """Looks at the signs of the others.

    Args:
        folder, size: as all processes have them. What is there already may be of an earlier run, or of a process of this one
            that was faster and is dead by now: it counts when nothing has replaced it for a while.
        patience: seconds without a sign after which a process is taken for dead.
    """

    def __init__(self, folder: Path, size: int, patience: float = PATIENCE) -> None:
        self.folder, self.patience = folder, patience
        self._made = time.monotonic()
        self._found = {rank: self._text(rank) for rank in range(1, size)}
        self._seen = {rank: (text or "", self._made) for rank, text in self._found.items()}

    def _text(self, rank: int) -> str | None:
        try:
            return sign_path(self.folder, rank).read_text()
        except (OSError, ValueError):
            return None

    def wait(self, complete: Callable[[], bool], remedy: str) -> None:
        """Wait until all is done.

        Raises:
            WorkerLostError: it never will be, as another process has died or failed.
        """
        since = time.monotonic()
        self._seen = {rank: (sign, since) for rank, (sign, _) in self._seen.items()}
        while not complete():
            lost = [(rank, why) for rank in self._seen if (why := self._lost(rank))]
            # Between the look at the results and that at the signs more may have come.
            if (lost or not self._seen) and not complete():
                told = "; ".join(f"process {rank} {why}" for rank, why in lost) or "results are missing"
                raise WorkerLostError(f"{told}. {remedy}")
            time.sleep(0.1)

    def _lost(self, rank: int) -> str | None:
        """Say why nothing more is to be expected of a process, None if something is."""
        last, when = self._seen[rank]
        now = time.monotonic()
        text = self._text(rank)
        sign: dict[str, Any] = {}
        if text is not None:
            with contextlib.suppress(ValueError):
                sign = json.loads(text)
            if text != last:
                self._seen[rank] = (text, now)
                when = now
            elif text == self._found[rank] and now - self._made < min(EARLY, self.patience):
                return None
        if sign.get("state") == "failed":
            return f"failed ({sign.get('message')})"
        if sign.get("state") == "done":
            return "has ended without the results of its share" if now - when > min(SETTLED, self.patience) else None
        if sign.get("host") == socket.gethostname() and not _runs(sign["pid"]):
            return "has died"
        return f"has given no sign of life for {self.patience:g} s" if now - when > self.patience else None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
