"""Read this process's rank and the number of processes from environment variables that the launcher sets."""

from __future__ import annotations

import os

# The variables that accelerate reads for processes on CPUs, in its order.
_NAMES = {
    "RANK": ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
    "LOCAL_WORLD_SIZE": ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    "LOCAL_RANK": ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
}


def rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the number of processes, as torchrun, accelerate or MPI has set them. Raises ValueError if
    the rank isn't a number below the number of processes.
    """
    rank, size = _first_of("RANK", "0"), _first_of("WORLD_SIZE", "1")
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise ValueError(f"RANK should be a number below WORLD_SIZE, got RANK={rank!r} and WORLD_SIZE={size!r}")
    return int(rank), int(size)


def local_rank() -> int:
    """Return this process's rank on its machine, which is also the index of its GPU."""
    rank = _first_of("LOCAL_RANK", "0")
    return int(rank) if rank.isdecimal() else 0


def local_size(size: int) -> int:
    """Return the number of processes on this machine; if no variable has it, return `size`, the total number."""
    local = _first_of("LOCAL_WORLD_SIZE", str(size))
    return int(local) if local.isdecimal() else size


def launched_alone() -> bool:
    """Return whether `accelerate launch` has started a single process. (It does so on CPUs, unless --multi_gpu is passed.)"""
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    return by_accelerate and rank_and_size() == (0, 1) and not any(name in os.environ for name in _NAMES["WORLD_SIZE"])


def _first_of(name: str, default: str) -> str:
    return next((os.environ[variable] for variable in _NAMES[name] if variable in os.environ), default)
