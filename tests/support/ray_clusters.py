"""Ray clusters of several nodes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ray_nodes(*cpus: int) -> Iterator[list[Callable[[], Any]]]:
    """Start a cluster with a node for each number of CPUs, and connect to the first. Yield functions that kill the nodes."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        nodes = [
            cluster.add_node(num_cpus=count, num_gpus=0, object_store_memory=100 << 20, include_dashboard=False)
            for count in cpus
        ]
        ray.init(address=cluster.address, log_to_driver=False)
        yield [lambda node=node: cluster.remove_node(node, allow_graceful=False) for node in nodes]
    finally:
        ray.shutdown()
        cluster.shutdown()
