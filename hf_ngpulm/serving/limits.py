"""Keep to what the server lets its clients have: limits, and who keeps count."""

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
        clients: at the same time, those that haven't said hello included; others are told to come later (1013).
        clients_per_address: of these, from one IPv4 address or one IPv6 network of 64 bits. The server's own machine may have
            all; for clients of a reverse proxy see `make_app`.
        message_bytes: of a message, text or audio.
        phrases: in a context.
        phrase_characters: of each phrase.
        phrase_bytes: of all phrases of a context, in UTF-8.
        phrase_seconds: in which a client may be given as many phrases, or bytes of them, as a context may have, and all clients
            of an address as many as `clients_per_address` clients may. One that changes them faster is read more slowly.
        buffered_seconds: audio of a client that waits to be decoded; at least what a chunk takes. A client that sends more is
            read more slowly.
        utterance_seconds: an utterance without an end is ended.
        hello_seconds: until a client says hello.
        idle_seconds: in which a client says nothing at all.
        heartbeat_seconds: between pings; a client that doesn't answer within half of that is gone.
        send_seconds: in which a client takes what it is sent; one that doesn't read is dropped.
        close_seconds: in which a client that is told to go says goodbye. It has lost its place by then.
        unsent: utterances that may wait to be sent.
        shutdown_seconds: in which the server, when it is told to stop, finishes what it was sent.
        uploads: recordings that are received and transcribed at the same time, `clients_per_address` of them from an address;
            others are told to come later (503, 429). Those that come by Wyoming count among them.
        upload_bytes: of a recording.
        spool_bytes: of all recordings under way together; one for which they leave no room is told to come later (503).
        upload_memory: bytes of a recording that are kept in memory; larger ones lie in a temporary file.
        upload_seconds: in which a recording has to arrive; without a byte for `send_seconds` it is given up sooner.
        audio_seconds: how long a recording may last.
        work_seconds: of decoding that a recording may take.
        connections_per_address: of HTTP, whatever they ask for; see `hf_ngpulm.serving.process.listen`.
        beams: the largest `num_beams` that may be asked for.
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
    """There is no place for a client; the message is for it, and the status of HTTP."""

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


class PhraseBudget:
    """Count what a client may still be given of phrases: a token bucket.

    It holds a context as large as may be, and fills again in `Limits.phrase_seconds`.

    Args:
        contexts: how many contexts it holds instead, for several clients.
        within: a budget that all is taken from, too.
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
        """Return the part of a context that `count` phrases of `size` bytes are, whichever is more; never nothing."""
        return max(max(1, count) / self.limits.phrases, size / self.limits.phrase_bytes)

    def take(self, cost: float) -> float:
        """Take something; the seconds that the client has to wait for it, no more than `Limits.phrase_seconds`."""
        # No more is owed than a budget, or who comes again and again without waiting would lock others out.
        self._left = max(self._now() - cost, -float(self.contexts))
        self._at = self._clock()
        wait = max(0.0, -self._left / self.contexts * self.limits.phrase_seconds)
        return wait if self.within is None else max(wait, self.within.take(cost))

    def _now(self) -> float:
        come_back = (self._clock() - self._at) / self.limits.phrase_seconds * self.contexts
        return min(float(self.contexts), self._left + come_back)


class Places:
    """The places that clients have, in all and by address, and their budgets of phrases; see `PhraseBudget`."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, most: int | None = None) -> None:
        self.limits, self.most = limits, limits.clients if most is None else most
        self._clock = clock
        self._taken: Counter[str | None] = Counter()  # by address
        self._budgets: dict[str, PhraseBudget] = {}  # of addresses: who leaves and comes again has no new one

    def __len__(self) -> int:
        """Return clients that have a place."""
        return self._taken.total()

    @contextmanager
    def taken(self, address: str | None) -> Iterator[PhraseBudget]:
        """Take a place from entry to exit of the `with` block, or raise `Full`; None is an address that doesn't count.

        Returns:
            The client's budget, within that of its address, which is as large as that of all clients that the address may have.
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
