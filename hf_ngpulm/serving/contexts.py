"""The thread that makes what streams follow of clients' phrases, so that nobody's decoding waits for it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from queue import PriorityQueue
from typing import Any


class ContextMaker:
    """Makes contexts one at a time, in an order that is fair to clients of which each asks for one at a time.

    The cost of each is added to the turn that was last served, and the lowest sum is served next (self-clocked fair queueing,
    Golestani 1994): short lists don't wait for the long ones of others, long ones wait for no more than their own cost in
    others.
    `make` is called with settings by this thread alone.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self._asked: PriorityQueue[tuple[float, int, dict[str, Any] | None, Future[Any]]] = PriorityQueue()
        self._turn = 0.0
        self._numbers = count()
        self._thread = threading.Thread(target=self._run, name="hf-ngpulm-contexts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what hasn't been made is cancelled."""
        self._asked.put((-math.inf, 0, None, Future()))
        self._thread.join()
        while not self._asked.empty():
            self._asked.get()[-1].cancel()

    async def of(self, settings: dict[str, Any], cost: float) -> Any:
        """Return, or raise, what `make` does with settings; `cost` is about how long that takes, in any unit.

        Nobody waits for it but who awaits this, and where they are cancelled it isn't made.
        """
        future: Future[Any] = Future()
        self._asked.put((self._turn + cost, next(self._numbers), settings, future))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            turn, _, settings, future = self._asked.get()
            if settings is None:
                return
            self._turn = turn
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self.make(**settings))
                except Exception as error:
                    future.set_exception(error)
