"""Run functions as tasks of a Ray cluster, or one after the other in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .extras import needed

logger = logging.getLogger(__name__)


class InProcess:
    """Runs each task at once, in this process. This defines what a cluster does."""

    cpus = 1

    def submit(self, function: Callable[..., Any], *arguments: Any, returns: int | None = None) -> Any:
        """Run a task and return a handle of its result; or, if it returns so many results, a list of their handles. Handles
        among the arguments are replaced by the results."""
        found = function(*arguments)
        assert returns in (None, len(found) if returns else None), f"{function.__name__} returned {len(found)} results"
        return found

    def shared(self, value: Any) -> Any:
        """Return a handle of a value that many tasks get."""
        return value

    def get(self, handle: Any) -> Any:
        """Return a result. Raises the task's error."""
        return handle


class OnRay:
    """Runs tasks on a Ray cluster. Ray repeats tasks that were lost with their process or machine, and moves results that don't
    fit into memory to disk.

    Args:
        address: address of the cluster; None for the cluster that this process is part of (`RAY_ADDRESS`, `ray start`), or else
            a new one on this machine.

    Raises:
        ImportError: Ray isn't installed.
        ConnectionError: no cluster has this address.
    """

    def __init__(self, address: str | None = None) -> None:
        with needed("cluster", "clusters"):
            import ray

        self._ray = ray
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        self.cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, function: Callable[..., Any], *arguments: Any, returns: int | None = None) -> Any:
        """Start a task; as `InProcess.submit`."""
        options = {"num_returns": returns or 1, "name": function.__name__}
        if returns == 1:  # Ray would return the list
            return [self._ray.remote(_only).options(**options).remote(function, *arguments)]
        return self._ray.remote(function).options(**options).remote(*arguments)

    def shared(self, value: Any) -> Any:
        return self._ray.put(value)

    def get(self, handle: Any) -> Any:
        """Wait for a result."""
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None


def _only(function: Callable[..., Any], *arguments: Any) -> Any:
    (found,) = function(*arguments)
    return found


Cluster = InProcess | OnRay


def cluster_of(cluster: Any) -> Cluster:
    """Return a cluster, given one or an address ("" or "auto": see `OnRay`)."""
    if isinstance(cluster, str):
        return OnRay(None if cluster in ("", "auto") else cluster)
    if not isinstance(cluster, InProcess | OnRay):
        raise ValueError(f"cluster should be the address of a Ray cluster or 'auto', got {cluster!r}")
    return cluster
