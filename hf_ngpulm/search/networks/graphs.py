"""Work that is done again and again in the same buffers, as a CUDA graph where there is CUDA."""

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

MOST_KEPT = 8  # searches, with their buffers and graphs
Work = Callable[[], None]
Kept = dict[Hashable, Any]


def grown(size: int, least: int) -> int:
    """Return the room for so much: powers of two, so that few different sizes need work of their own."""
    return max(least, 1 << (max(size, 1) - 1).bit_length())


@contextmanager
def recalled(kept: Kept | None, key: tuple[Hashable, ...], tensors: Iterable[Tensor], make: Callable[[], Any]) -> Iterator[Any]:
    """Lend what was kept under a key, or else is made now; those that were not used for longest make room.

    As long as it is lent, other threads have another one made.

    Args:
        tensors: whose addresses are part of the key: a model's weights may be replaced by others.
    """
    if kept is None:
        yield make()
        return
    tensors = list(tensors)
    gpu = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    # A graph does its work in the precision in which it was recorded.
    precision = torch.get_autocast_dtype("cuda") if gpu and torch.is_autocast_enabled("cuda") else None
    key = (*key, *addresses(tensors), precision)
    found, read = kept.pop(key, None) or (make(), None)
    if read is not None:
        torch.cuda.current_stream(gpu).wait_event(read)  # what another thread still reads of its buffers
    yield found
    kept[key] = found, torch.cuda.current_stream(gpu).record_event() if gpu else None
    while len(kept) > MOST_KEPT:
        kept.pop(next(iter(kept.copy())), None)


class Repeated:
    """Work that reads and writes the same tensors each time.

    A search launches more than a dozen kernels in each step, and on a GPU the launches take longer than the kernels. As a graph
    they are launched at once. To record one takes as long as some batches do, so this is done when the work is needed for a
    second batch. What can't be recorded (a model that waits for the device) runs as it is.

    Args:
        work: without arguments or result; shapes and addresses of what it uses must stay the same.
        carries: returns the tensors that the work changes: recording leaves them as they are.
        capture: makes a function that does the same from the work (for tests).
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
        """Prepare for one more batch."""
        self._uses += 1
        if self._uses == 2:
            self.record(device)

    def record(self, device: torch.device) -> None:
        """Make a graph, if that can be done."""
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


# To begin a recording synchronises the device, which breaks one that another thread has under way.
_RECORDING = threading.Lock()


def _cuda_graph(device: torch.device, work: Work) -> Work:
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    # Without a cache: weights that autocast has converted before wouldn't be converted in the graph, and are freed.
    with _RECORDING, current(device), torch.autocast("cuda", dtype, enabled, cache_enabled=False):
        callers, side, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        try:
            side.wait_stream(callers)
            with torch.cuda.stream(side):  # libraries and kernels load at their first use, which can't be recorded
                work()
            callers.wait_stream(side)
            # Other threads may go on with what they do.
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(callers)  # a recording that fails leaves its own
    return graph.replay


def addresses(tensors: Iterable[Tensor]) -> tuple[Hashable, ...]:
    """Return what a graph knows tensors by."""
    return tuple((tensor.data_ptr(), tensor.dtype, tensor.shape) for tensor in tensors)


def overwrite(buffers: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> None:
    """Copy values into buffers of the same shapes."""
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


def replace_where(
    condition: Tensor, buffers: tuple[Tensor, ...], values: tuple[Tensor, ...], others: tuple[Tensor, ...] | None = None
) -> None:
    """Copy values into buffers of the same shapes in the rows of which a condition holds, bool `[R]`, and others elsewhere.

    Args:
        others: what stands there already, if left out.
    """
    for buffer, value, other in zip(buffers, values, others or buffers, strict=True):
        holds = condition.view(-1, *[1] * (buffer.dim() - 1))
        torch.where(holds, value.to(buffer.dtype), other, out=buffer)
