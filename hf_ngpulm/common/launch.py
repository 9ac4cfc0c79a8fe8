"""Exchange objects between processes that a launcher has started. A launcher (`accelerate launch`, torchrun or MPI) sets
environment variables, which tell each process its rank.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from .extras import needed

# The variables that accelerate reads for processes on CPUs, in its order.
_NAMES = {
    "RANK": ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
}


def rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the number of processes, as the launcher's environment variables say. Raises ValueError if
    the rank isn't a number below the number of processes.
    """
    rank, size = _first_of("RANK", "0"), _first_of("WORLD_SIZE", "1")
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise ValueError(f"RANK should be a number below WORLD_SIZE, got RANK={rank!r} and WORLD_SIZE={size!r}")
    return int(rank), int(size)


def local_rank() -> int:
    """Return this process's rank on its machine. The rank is also the index of the process's GPU."""
    rank = _first_of("LOCAL_RANK", "0")
    return int(rank) if rank.isdecimal() else 0


class Processes:
    """Exchange objects between the processes of a launcher with `accelerate`. Without a launcher there is one process.

    If a process fails, the launcher stops the other processes.

    Raises:
        ImportError: there are several processes, and accelerate isn't installed.
    """

    def __init__(self) -> None:
        self.rank, self.size = rank_and_size()
        if self.size > 1:
            with needed("eval", "several processes"):
                from accelerate import PartialState
            # Through the memory of CPUs, so that processes may share a GPU. One may wait for another for hours.
            PartialState(cpu=True, timeout=timedelta(days=7))

    def of_first(self, value: Any) -> Any:
        """Return the first process's value in every process. Raises ConnectionError if another process has ended."""
        if self.size == 1:
            return value
        from accelerate.utils import broadcast_object_list

        return _exchanged(broadcast_object_list, [value])[0]

    def of_all(self, values: list[Any]) -> list[Any]:
        """Join the lists `values` of all processes, and return the joined list in every process. Raises ConnectionError if
        another process has ended.
        """
        if self.size == 1:
            return values
        from accelerate.utils import gather_object

        return _exchanged(gather_object, values)


def _exchanged(how: Any, values: list[Any]) -> list[Any]:
    try:
        return how(values)
    except RuntimeError as error:
        raise ConnectionError(f"another process has ended: {error}") from None


def launched_alone() -> bool:
    """Return whether `accelerate launch` has started only this process. Without --multi_gpu, it starts one process on CPUs."""
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    return by_accelerate and rank_and_size() == (0, 1) and not any(name in os.environ for name in _NAMES["WORLD_SIZE"])


def _first_of(name: str, default: str) -> str:
    return next((os.environ[variable] for variable in _NAMES[name] if variable in os.environ), default)
