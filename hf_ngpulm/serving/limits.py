"""What the server lets its clients have."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Limits of a server and of each of its clients.

    Args:
        clients: at the same time, those that haven't said hello included; others are told to come later (1013).
        message_bytes: of a message, text or audio.
        phrases: in a context.
        phrase_characters: of each phrase.
        buffered_seconds: audio of a client that waits to be decoded. A client that sends more is read more slowly.
        utterance_seconds: an utterance without an end is ended.
        hello_seconds: until a client says hello.
        idle_seconds: in which a client says nothing at all.
        heartbeat_seconds: between pings; a client that doesn't answer within half of that is gone.
        send_seconds: in which a client takes what it is sent; one that doesn't read is dropped.
        unsent: utterances that may wait to be sent.
        shutdown_seconds: in which the server, when it is told to stop, finishes what it was sent.
    """

    clients: int = 64
    message_bytes: int = 256 * 1024
    phrases: int = 1000
    phrase_characters: int = 100
    buffered_seconds: float = 10.0
    utterance_seconds: float = 300.0
    hello_seconds: float = 10.0
    idle_seconds: float = 60.0
    heartbeat_seconds: float = 20.0
    send_seconds: float = 10.0
    unsent: int = 1000
    shutdown_seconds: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf or (field.type == "int" and int(value) != value):
                raise ValueError(f"{field.name} should be a {'whole ' * (field.type == 'int')}number above 0, got {value!r}")
