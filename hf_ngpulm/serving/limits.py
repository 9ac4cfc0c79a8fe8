"""Define the limits of a server and its clients, and the counters that enforce the limits."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Hold the limits of a server and of each client.

    Args:
        clients: number of clients with live audio at the same time. Further clients must try again later (close code 1013).
        clients_per_address: number of clients from one IPv4 address or one IPv6 /64 network. Clients on the server's own
            machine have no such limit. For clients of a reverse proxy see `Access`.
        message_bytes: size of a message.
        phrases: number of phrases in a context.
        phrase_characters: length of a phrase.
        phrase_bytes: size of all phrases of a context, in UTF-8.
        phrase_seconds: time in which a client may replace one full context (the largest allowed set of phrases). In the same
            time, all clients of an address together may replace `clients_per_address` full contexts. The server waits before it
            accepts more phrases.
        grammar_bytes: size of a client's own grammar, in UTF-8.
        grammar_seconds: CPU time to compile a client's grammar.
        grammar_parts: number of arcs and spellings of the compiled grammar.
        buffered_seconds: seconds of undecoded audio of a client, at least one chunk. At this limit, the server pauses reading.
        utterance_seconds: length of an utterance. At this length, the server ends the utterance.
        hello_seconds: time until a client's first message, or a connection's first request.
        idle_seconds: time between two messages of a client.
        heartbeat_seconds: time between pings. A client that doesn't answer within half of this time is disconnected.
        send_seconds: time in which a client must read a message from the server.
        close_seconds: time in which a client must answer a close frame. The client's place is already free before the answer.
        unsent: number of events that may wait to be sent to a client.
        shutdown_seconds: time in which a stopping server decodes the audio that it has received.
        uploads: number of recordings at the same time, including recordings by Wyoming. At most `clients_per_address` of these
            recordings may come from one address. Further clients must try again later (HTTP status 503 or 429).
        upload_bytes: size of a recording.
        spool_bytes: size of all current recordings together. If a new recording would exceed this limit, the recording's client
            must try again later (HTTP status 503).
        upload_memory: size above which a recording is stored in a temporary file.
        upload_seconds: time in which a recording must arrive. If no byte arrives for `send_seconds`, a recording is refused
            sooner.
        audio_seconds: length of a recording.
        work_seconds: time to decode a recording.
        connections_per_address: number of HTTP connections of any kind; see `hf_ngpulm.serving.process.listen`.
        beams: the largest `num_beams` that clients may request.
        corrections: number of corrections that the server stores for an access key.

    Raises:
        ValueError: a limit isn't a positive number, or `spool_bytes` is less than `upload_bytes`.
    """

    clients: int = 64
    clients_per_address: int = 16
    message_bytes: int = 256 * 1024
    phrases: int = 1000
    phrase_characters: int = 100
    phrase_bytes: int = 32 * 1024
    phrase_seconds: float = 5.0
    grammar_bytes: int = 64 * 1024
    grammar_seconds: float = 2.0
    grammar_parts: int = 200_000
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
    corrections: int = 1000

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
    """The server has no place for a client. The client gets the message and the HTTP status."""

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


class PhraseBudget:
    """Limits the number of phrases that are compiled for a client.

    The budget is a token bucket. The bucket holds one full context (the largest allowed set of phrases), and refills within
    `Limits.phrase_seconds`.

    Args:
        contexts: the number of full contexts in the bucket. A budget that several clients share has more than one full context.
        within: another budget. Each cost is taken from this budget, too.
    """

    def __init__(
        self, limits: Limits, contexts: int = 1, within: PhraseBudget | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits, self.contexts, self.within = limits, contexts, within
        self._clock = clock
        self._left, self._at = float(contexts), clock()

    @property
    def is_full(self) -> bool:
        """Return whether the bucket is full."""
        return self._now() >= self.contexts

    def cost(self, count: int, size: int) -> float:
        """Return the cost of `count` phrases with `size` bytes in total. The cost is the share of a full context, above 0."""
        return max(max(1, count) / self.limits.phrases, size / self.limits.phrase_bytes)

    def take(self, cost: float) -> float:
        """Take the cost of phrases from the bucket. Return the seconds that the client must wait, at most
        `Limits.phrase_seconds`.
        """
        # The debt is limited. Otherwise a client that reconnects instead of waiting would lock out others of its address.
        self._left = max(self._now() - cost, -float(self.contexts))
        self._at = self._clock()
        wait = max(0.0, -self._left / self.contexts * self.limits.phrase_seconds)
        return wait if self.within is None else max(wait, self.within.take(cost))

    def _now(self) -> float:
        refilled = (self._clock() - self._at) / self.limits.phrase_seconds * self.contexts
        return min(float(self.contexts), self._left + refilled)


class Places:
    """Counts clients in total and for each address, and holds the clients' phrase budgets."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, most: int | None = None) -> None:
        self.limits, self.most = limits, limits.clients if most is None else most
        self._clock = clock
        self._taken: Counter[str | None] = Counter()  # by address
        self._budgets: dict[str, PhraseBudget] = {}  # by address, so that a client that reconnects gets no new budget

    def __len__(self) -> int:
        """Return the number of clients that have a place."""
        return self._taken.total()

    @contextmanager
    def taken(self, address: str | None) -> Iterator[PhraseBudget]:
        """Reserve a place for a client during the `with` block.

        Args:
            address: the client's address, a result of `counted_address`; None exempts the client from the limit per address.

        Yields:
            The client's phrase budget. Each cost is also taken from the budget of the client's address.

        Raises:
            Full: the server, or this address, already has the maximum number of clients.
        """
        most, of_address = self.limits.clients_per_address, None
        if len(self) >= self.most:
            raise Full("the server is full; try again later")
        if address is not None:
            if self._taken[address] >= most:
                raise Full(f"{most} clients of {address} are connected, the most from one address; try again later", 429)
            self._budgets = {name: left for name, left in self._budgets.items() if self._taken[name] or not left.is_full}
            of_address = self._budgets.setdefault(address, PhraseBudget(self.limits, most, clock=self._clock))
        self._taken[address] += 1
        try:
            yield PhraseBudget(self.limits, within=of_address, clock=self._clock)
        finally:
            self._taken -= Counter([address])  # this subtraction drops zero counts
