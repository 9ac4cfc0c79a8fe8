"""Compile clients' phrases into contexts for streams. A separate thread compiles, so that decoding doesn't wait."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from itertools import count
from queue import PriorityQueue
from typing import Any

from ..grammar.grammar import Grammar
from .limits import PhraseBudget
from .messages import texts_of
from .problems import Problem


class ContextMaker:
    """Makes contexts one at a time, in a fair order.

    The order is self-clocked fair queueing (Golestani 1994). The key of a request is its cost plus the key of the request that
    was served last. The request with the lowest key is served next. So a short list doesn't wait for the long list of another
    client. A long list waits for other lists only up to its own cost.

    Args:
        make: function that makes a context. Only this thread calls it. The keyword arguments are a request's settings.
        read: function that reads a grammar from a client's text.
    """

    def __init__(self, make: Callable[..., Any], read: Callable[[str, PhraseBudget], Awaitable[Grammar]] | None = None) -> None:
        self.make, self.read = make, read
        self._asked: PriorityQueue[tuple[float, int, dict[str, Any] | None, Future[Any]]] = PriorityQueue()
        self._turn = 0.0
        self._numbers = count()
        self._thread = threading.Thread(target=self._run, name="hf-ngpulm-contexts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and cancel the waiting requests."""
        self._asked.put((-math.inf, 0, None, Future()))
        self._thread.join()
        while not self._asked.empty():
            self._asked.get()[-1].cancel()

    async def of(self, settings: dict[str, Any], cost: float) -> Any:
        """Return the result of `make`, or raise the error of `make`. If the task is cancelled while the request waits, `make`
        isn't called.

        Args:
            settings: the keyword arguments of `make`.
            cost: an estimate of the time for `make`, in the same unit for all requests.
        """
        future: Future[Any] = Future()
        self._asked.put((self._turn + cost, next(self._numbers), settings, future))
        return await asyncio.wrap_future(future)

    async def compiled(self, settings: dict[str, Any], budget: PhraseBudget) -> dict[str, Any]:
        """Compile the phrases and the grammar in a client's settings as soon as the client's budget allows it, and return the
        settings. If the grammar is a text, it is parsed first. Raises Problem if the phrases or the grammar are invalid.
        """
        if isinstance(settings.get("grammar"), str):
            assert self.read is not None
            settings = {**settings, "grammar": await self.read(settings["grammar"], budget)}
        texts = texts_of(settings.get("phrases"))
        cost = budget.cost(len(texts), sum(len(text.encode()) for text in texts))
        await asyncio.sleep(budget.take(cost))
        grammar = settings.get("grammar")
        if grammar is not None:
            sentences = getattr(grammar.intents.get(None), "options", ())  # of a grammar that the client has sent
            size = budget.cost(len(sentences), 0)
            await asyncio.sleep(budget.take(size))
            try:
                await self.of({"phrases": None, "grammar": grammar}, size)  # the grammar caches its compiled form
            except ValueError as error:
                raise Problem(str(error), "grammar") from None
        try:
            of_phrases = {name: value for name, value in settings.items() if name != "grammar"}
            return {**settings, "phrases": await self.of(of_phrases, cost)} if texts else settings
        except ValueError as error:
            raise Problem(str(error), "keywords") from None

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
