"""Repeat work on the same buffers. On CUDA the work is recorded as a CUDA graph."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...engines.devices import current

logger = logging.getLogger(__name__)

MOST_KEPT = 8  # maximum number of kept searches, with their buffers and graphs
Work = Callable[[], None]
Kept = dict[Hashable, Any]


def grown(size: int, least: int) -> int:
    """Return the size of a buffer for `size` elements: a power of two that is at least `least`. So there are few sizes that
    need a graph.
    """
    return max(least, 1 << (max(size, 1) - 1).bit_length())


@contextmanager
def recalled(kept: Kept | None, key: tuple[Hashable, ...], tensors: Iterable[Tensor], make: Callable[[], Any]) -> Iterator[Any]:
    """Return a context manager that lends the object stored under a key, or a new object. While an object is lent, another
    thread gets another object. The least recently used objects are dropped.

    Args:
        kept: the stored objects by key; None makes a new object each time.
        key: the key, without the tensors' addresses.
        tensors: tensors whose addresses become part of the key, because a model's weights may be replaced.
        make: function that makes a new object.
    """
    if kept is None:
        yield make()
        return
    tensors = list(tensors)
    gpu = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    # A graph keeps the precision with which it was recorded.
    precision = torch.get_autocast_dtype("cuda") if gpu and torch.is_autocast_enabled("cuda") else None
    key = (*key, *addresses(tensors), precision)
    lent, read = kept.pop(key, None) or (make(), None)
    if read is not None:
        torch.cuda.current_stream(gpu).wait_event(read)  # another thread's stream may still read its buffers
    yield lent
    kept[key] = lent, torch.cuda.current_stream(gpu).record_event() if gpu else None
    while len(kept) > MOST_KEPT:
        kept.pop(next(iter(kept.copy())), None)


class Repeated:
    """Work that reads and writes the same tensors each time.

    A search launches more than a dozen kernels in each step, and on a GPU the launches take longer than the kernels. A graph
    launches all kernels at once. Recording a graph takes as long as several batches, so only the second batch records it. Work
    that can't be recorded, such as a model that waits for the device, runs without a graph.

    Args:
        work: a function without arguments or result. The shapes and addresses of its tensors must stay the same.
        carries: function that returns the tensors that the work changes. The values of these tensors are restored after
            recording.
        capture: function that turns the work into its graph (for tests).
    """

    def __init__(
        self, work: Work, carries: Callable[[], Iterable[Tensor]] = tuple, capture: Callable[[Work], Work] | None = None
    ) -> None:
        self._work = work
        self._carries = carries
        self._capture = capture
        self._uses = 0
        self._run = work

    def prepare(self, device: torch.device) -> None:
        """Count a batch. Before the second batch, record the graph."""
        self._uses += 1
        if self._uses == 2:
            self.record(device)

    def record(self, device: torch.device) -> None:
        """Record a graph of the work. If that isn't possible, warn and continue without a graph."""
        capture = self._capture or (functools.partial(_cuda_graph, device) if device.type == "cuda" else None)
        if capture is None:
            return
        carried = [(part, part.clone()) for part in self._carries()]
        try:
            self._run = capture(self._work)
        except RuntimeError as error:
            _warn_once(f"no CUDA graph could be made of a decoding step, which will be slower: {error}")
        for part, value in carried:
            part.copy_(value)

    @property
    def is_recorded(self) -> bool:
        return self._run is not self._work

    def __call__(self) -> None:
        self._run()


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)


# The beginning of a recording synchronises the device, which would break another thread's recording.
_RECORDING = threading.Lock()


def _cuda_graph(device: torch.device, work: Work) -> Work:
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    # Without autocast's cache: the graph must convert the weights itself, as cached conversions are freed later.
    with _RECORDING, current(device), torch.autocast("cuda", dtype, enabled, cache_enabled=False):
        callers, side, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        try:
            side.wait_stream(callers)
            with torch.cuda.stream(side):  # a first run loads libraries and kernels, which can't be recorded
                work()
            callers.wait_stream(side)
            # Thread-local, so that other threads may use CUDA meanwhile.
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(callers)  # a failed recording leaves its own stream set
    return graph.replay


def addresses(tensors: Iterable[Tensor]) -> tuple[Hashable, ...]:
    """Return the addresses, dtypes and shapes of tensors. A graph works only while all of them stay the same."""
    return tuple((tensor.data_ptr(), tensor.dtype, tensor.shape) for tensor in tensors)


def overwrite(buffers: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> None:
    """Copy values into buffers of the same shapes."""
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


def replace_where(
    condition: Tensor, buffers: tuple[Tensor, ...], values: tuple[Tensor, ...], others: tuple[Tensor, ...] | None = None
) -> None:
    """Copy `values` to the rows of `buffers` for which `condition`, bool `[R]`, is true. Copy `others` to the other rows.

    `buffers`, `values`, `others`: tuples of tensors `[R, ...]` of equal shapes. If `others` is None, the other rows stay
    unchanged.
    """
    for buffer, value, other in zip(buffers, values, others or buffers, strict=True):
        holds = condition.view(-1, *[1] * (buffer.dim() - 1))
        torch.where(holds, value.to(buffer.dtype), other, out=buffer)
