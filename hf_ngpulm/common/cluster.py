"""Run functions as tasks of a Ray cluster, or one after the other in this process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .extras import needed

REACHED_IN = 10.0  # seconds
MAX_BLOCKS = 4096  # of items of work; Ray plans each block


@dataclass(frozen=True)
class Actors:
    """Describe the actors of a cluster. Actors are processes that share work.

    Args:
        count: number of actors. By default one actor per GPU. If there are no GPUs, the default is one actor per four CPUs.
        num_gpus: number of GPUs per actor (a fraction is possible); by default 1 if there are GPUs.
    """

    count: int | None = None
    num_gpus: float | None = None


class InProcess:
    """Runs each task immediately, in this process. The methods also define the interface of clusters."""

    cpus = 1

    def submit(self, function: Callable[..., Any], *arguments: Any, returns: int | None = None) -> Any:
        """Run a task, and return a handle of its result. If `returns`, which is the number of results, isn't None, return
        a list with a handle of each result. A handle among the arguments is replaced by its result.
        """
        found = function(*arguments)
        assert returns in (None, len(found) if returns else None), f"{function.__name__} returned {len(found)} results"
        return found

    def shared(self, value: Any) -> Any:
        """Return a handle of a value that many tasks take as an argument."""
        return value

    def get(self, handle: Any) -> Any:
        """Return a result. Raises the task's error."""
        return handle

    def each(self, worker: Callable[[Any], Any], work: Sequence[Any], actors: Actors) -> Iterator[Any]:
        """Yield `worker(item)` for each item of work, in the order in which the items finish. Items and results are JSON.

        Each actor has a copy of `worker` for all its items. If the first call loads a model, each actor loads the model once.
        """
        return (json.loads(json.dumps(worker(item))) for item in work)


class OnRay:
    """Runs tasks on a Ray cluster. If a process or machine fails, Ray repeats its tasks. If results don't fit into memory, Ray
    moves them to disk.

    If a machine has this process's working folder, tasks and actors work in that folder, so relative paths mean the same files.

    Args:
        address: address of the cluster. None selects the running cluster (`RAY_ADDRESS`, `ray start`). If no cluster runs, None
            starts a cluster on this machine. If this process is connected to a cluster already, the address is ignored.

    Raises:
        ImportError: Ray isn't installed.
        ConnectionError: no cluster has this address.
    """

    def __init__(self, address: str | None = None) -> None:
        with needed("cluster", "clusters"):
            import ray

        self._ray = ray
        self._folder = os.getcwd()
        self._remote: dict[Callable[..., Any], Any] = {}  # Ray sends a function to the cluster once for each of these
        if not ray.is_initialized():
            _refuse_unreachable(address or os.environ.get("RAY_ADDRESS"))
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        self.cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, function: Callable[..., Any], *arguments: Any, returns: int | None = None) -> Any:
        """Start a task; see `InProcess.submit`."""
        options = {"num_returns": returns or 1, "name": function.__name__}
        if function not in self._remote:
            self._remote[function] = self._ray.remote(_task(function, self._folder))
        found = self._remote[function].options(**options).remote(returns == 1, *arguments)
        return [found] if returns == 1 else found

    def shared(self, value: Any) -> Any:
        return self._ray.put(value)

    def get(self, handle: Any) -> Any:
        """Wait for a result."""
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None

    def each(self, worker: Callable[[Any], Any], work: Sequence[Any], actors: Actors) -> Iterator[Any]:
        """Yield the results of Ray Data's actors; see `InProcess.each`. If an actor fails, Ray repeats its items.

        Raises:
            ValueError: the worker refused an item, or an actor needs more GPUs than a machine has.
        """
        with needed("cluster", "clusters"):
            import pyarrow  # noqa: F401  # Ray Data needs it
            from ray import data

        if not work:
            return
        count, num_gpus, num_cpus = self.placed(actors)
        data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        items = data.from_items(list(map(json.dumps, work)), override_num_blocks=min(len(work), MAX_BLOCKS))
        placed: Any = {"concurrency": min(count, len(work)), "num_gpus": num_gpus, "num_cpus": num_cpus}
        found = items.map_batches(_Actor, fn_constructor_args=(worker, self._folder), batch_size=1, **placed)
        for row in found.iter_rows():
            one = json.loads(row["found"])
            if "problem" in one:
                raise ValueError(one["problem"])
            yield one["result"]

    def placed(self, actors: Actors) -> tuple[int, float, int]:
        """Call the function `placed` with this cluster's machines, and return its result."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return placed(
            actors, [one.get("CPU", 0.0) for one in machines], [gpus for one in machines if (gpus := one.get("GPU", 0.0))]
        )


def placed(actors: Actors, cpus: Sequence[float], gpus: Sequence[float]) -> tuple[int, float, int]:
    """Return the number of actors to start, the GPUs per actor, and the CPUs per actor.

    Args:
        actors: the wanted number of actors and of GPUs per actor. If a number is None, this function chooses it.
        cpus: number of CPUs of each machine.
        gpus: number of GPUs of each machine that has GPUs.

    Raises:
        ValueError: no machine has enough GPUs for one actor.
    """
    num_gpus = float(bool(gpus)) if actors.num_gpus is None else actors.num_gpus
    if num_gpus > max(gpus, default=0.0):
        raise ValueError(
            f"each actor should get {num_gpus:g} GPUs, and no machine has more than {max(gpus, default=0.0):g}; leave num_gpus "
            "out, or give less"
        )
    if num_gpus:
        return actors.count or int(sum(of_one // num_gpus for of_one in gpus)), num_gpus, 1
    count = actors.count or max(1, int(sum(max(of_one // 4, of_one >= 1) for of_one in cpus)))
    fitting = (size for size in (4, 3, 2) if sum(of_one // size for of_one in cpus) >= count)
    return count, 0.0, next(fitting, 1)


def _refuse_unreachable(address: str | None) -> None:
    """Raise ConnectionError if nothing listens at an address. (Ray would try for minutes.)"""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_IN).close()
    except OSError as error:
        raise ConnectionError(f"no Ray cluster can be reached at {address}: {error.strerror or error}") from None


def _task(function: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """Return a function as a Ray task. If the machine has the folder `folder`, the task works in it."""

    def task(is_one: bool, *arguments: Any) -> Any:
        before = os.getcwd()
        with contextlib.suppress(OSError):
            os.chdir(folder)
        try:
            found = function(*arguments)
        finally:
            os.chdir(before)  # the process may have tasks of others, too
        return found[0] if is_one else found  # of a list of one result Ray would return the list

    return task


class _Actor:
    """Apply a worker to batches of one item. Ray Data calls its actors with batches."""

    def __init__(self, worker: Callable[[Any], Any], folder: str) -> None:
        self.worker = worker
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"found": [json.dumps(self._found(json.loads(item))) for item in batch["item"]]}

    def _found(self, item: Any) -> dict[str, Any]:
        try:
            return {"result": self.worker(item)}
        except (ValueError, OSError, ImportError) as error:  # Ray Data would show its own error, and the traceback
            return {"problem": str(error)}


Cluster = InProcess | OnRay


def cluster_of(cluster: Any) -> Cluster:
    """Convert an argument to a cluster. None becomes `InProcess`, an address becomes `OnRay`. "" and "auto" mean no address."""
    if cluster is None:
        return InProcess()
    if isinstance(cluster, str):
        return OnRay(None if cluster in ("", "auto") else cluster)
    if not isinstance(cluster, InProcess | OnRay):
        raise ValueError(f"cluster should be the address of a Ray cluster or 'auto', got {cluster!r}")
    return cluster
