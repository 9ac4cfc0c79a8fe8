"""The thread that makes what streams follow of clients' phrases, so that nobody's decoding waits for it."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any


class ContextMaker:
    """Makes contexts one at a time, in an order that is fair to clients of which each asks for one at a time.

    The cost of each is added to the turn that was last served, and the lowest sum is served next (self-clocked fair queueing,
    Golestani 1994): short lists don't wait for the long ones of others, long ones wait for no more than their own cost in
    others.

    Args:
        make: makes a context of settings; called by this thread alone.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self._asked: list[tuple[float, int, dict[str, Any], Future[Any]]] = []
        self._turn = 0.0
        self._numbers = count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hf-ngpulm-contexts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what hasn't been made is cancelled."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        for *_, future in self._asked:
            future.cancel()

    async def of(self, settings: dict[str, Any], cost: float) -> Any:
        """Return what streams follow; nobody waits for it but who awaits this, and where they are cancelled it isn't made.

        Args:
            settings: for `make`.
            cost: about how long it takes, in any unit.

        Raises:
            ValueError: what `make` raises for bad settings.
        """
        future: Future[Any] = Future()
        with self._changed:
            heapq.heappush(self._asked, (self._turn + cost, next(self._numbers), settings, future))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._asked or self._stopping):
                    self._changed.wait()
                if self._stopping:
                    return
                self._turn, _, settings, future = heapq.heappop(self._asked)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self.make(**settings))
            except Exception as error:
                future.set_exception(error)
