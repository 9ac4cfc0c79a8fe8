"""Limits of a server and its clients, and the counters that hold them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Limits of a server and of each of its clients.

    Args:
        clients: clients with live audio at the same time; others must try again later (1013).
        clients_per_address: clients from one IPv4 address, or one IPv6 network of 64 bits. The server's own machine has no
            such limit; for clients of a reverse proxy see `Access`.
        message_bytes: size of a message.
        phrases: phrases of a context.
        phrase_characters: length of a phrase.
        phrase_bytes: size of all phrases of a context, in UTF-8.
        phrase_seconds: time in which a client may change as many phrases as a context may have, and all clients of an address
            `clients_per_address` times as many. A client that is faster is read more slowly.
        buffered_seconds: undecoded audio of a client; at least a chunk. A client that sends more is read more slowly.
        utterance_seconds: length at which an utterance is ended.
        hello_seconds: time until a client's first message, or a connection's first request.
        idle_seconds: time between a client's messages.
        heartbeat_seconds: time between pings; a client that doesn't answer within half of it is disconnected.
        send_seconds: time in which a client must read what it is sent.
        close_seconds: time in which a client must answer a close; its place is free before.
        unsent: events that may wait to be sent to a client.
        shutdown_seconds: time in which a server that stops finishes what was sent.
        uploads: recordings at the same time, Wyoming's included, `clients_per_address` of them from one address; others must
            try again later (503, 429).
        upload_bytes: size of a recording.
        spool_bytes: size of all current recordings; one that would be too much must try again later (503).
        upload_memory: size above which a recording is kept in a temporary file.
        upload_seconds: time in which a recording must arrive; without a byte for `send_seconds` it is refused sooner.
        audio_seconds: length of a recording.
        work_seconds: time that decoding a recording may take.
        connections_per_address: HTTP connections, whatever they ask for; see `hf_ngpulm.serving.process.listen`.
        beams: the largest `num_beams` that clients may ask for.
    """

    clients: int = 64
    clients_per_address: int = 16
    message_bytes: int = 256 * 1024
    phrases: int = 1000
    phrase_characters: int = 100
    phrase_bytes: int = 32 * 1024
    phrase_seconds: float = 5.0
    buffered_seconds: float = 10.0
    utterance_seconds: float = 300.0
    hello_seconds: float = 10.0
    idle_seconds: float = 60.0
    heartbeat_seconds: float = 20.0
    send_seconds: float = 10.0
    close_seconds: float = 2.0
    unsent: int = 1000
    shutdown_seconds: float = 5.0
    uploads: int = 64
    upload_bytes: int = 512 * 1024 * 1024
    spool_bytes: int = 4 * 1024 * 1024 * 1024
    upload_memory: int = 1024 * 1024
    upload_seconds: float = 300.0
    audio_seconds: float = 4 * 3600.0
    work_seconds: float = 1800.0
    connections_per_address: int = 256
    beams: int = 32

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf or (field.type == "int" and int(value) != value):
                raise ValueError(f"{field.name} should be a {'whole ' * (field.type == 'int')}number above 0, got {value!r}")
        if self.spool_bytes < self.upload_bytes:
            raise ValueError(
                f"spool_bytes (--max-spool), {self.spool_bytes:,}, should leave room for a recording of upload_bytes "
                f"(--max-upload), {self.upload_bytes:,}"
            )


class Full(Exception):
    """The server has no place for a client; the message and the HTTP status are for the client."""

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


class PhraseBudget:
    """Phrases that a client may still have compiled: a token bucket of one full context, refilled in `Limits.phrase_seconds`.

    Args:
        contexts: the number of full contexts that it holds instead, for several clients.
        within: a budget that is charged, too.
    """

    def __init__(
        self, limits: Limits, contexts: int = 1, within: PhraseBudget | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits, self.contexts, self.within = limits, contexts, within
        self._clock = clock
        self._left, self._at = float(contexts), clock()

    @property
    def is_full(self) -> bool:
        """Return whether nothing has been taken, or all has come back."""
        return self._now() >= self.contexts

    def cost(self, count: int, size: int) -> float:
        """Return the share of a full context that `count` phrases of `size` bytes take; never 0."""
        return max(max(1, count) / self.limits.phrases, size / self.limits.phrase_bytes)

    def take(self, cost: float) -> float:
        """Take a share; return the seconds that the client must wait for it, at most `Limits.phrase_seconds`."""
        # The debt is bounded, or a client that comes again without waiting would lock out others of its address.
        self._left = max(self._now() - cost, -float(self.contexts))
        self._at = self._clock()
        wait = max(0.0, -self._left / self.contexts * self.limits.phrase_seconds)
        return wait if self.within is None else max(wait, self.within.take(cost))

    def _now(self) -> float:
        come_back = (self._clock() - self._at) / self.limits.phrase_seconds * self.contexts
        return min(float(self.contexts), self._left + come_back)


class Places:
    """The places of clients, in all and by address, and their budgets of phrases."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, most: int | None = None) -> None:
        self.limits, self.most = limits, limits.clients if most is None else most
        self._clock = clock
        self._taken: Counter[str | None] = Counter()  # by address
        self._budgets: dict[str, PhraseBudget] = {}  # of addresses: a client that comes again has no new one

    def __len__(self) -> int:
        """Return clients that have a place."""
        return self._taken.total()

    @contextmanager
    def taken(self, address: str | None) -> Iterator[PhraseBudget]:
        """Take a place for the `with` block, or raise `Full`; None is an address that doesn't count.

        Returns:
            The client's budget, within that of its address.
        """
        most, of_address = self.limits.clients_per_address, None
        if len(self) >= self.most:
            raise Full("the server is full; try again later")
        if address is not None:
            if self._taken[address] >= most:
                raise Full(f"{most} clients of {address} are connected, as many as may be; try again later", 429)
            self._budgets = {name: left for name, left in self._budgets.items() if self._taken[name] or not left.is_full}
            of_address = self._budgets.setdefault(address, PhraseBudget(self.limits, most, clock=self._clock))
        self._taken[address] += 1
        try:
            yield PhraseBudget(self.limits, within=of_address, clock=self._clock)
        finally:
            self._taken -= Counter([address])  # which keeps no zeros
