"""Locks of what a process has once, which stay usable in its forks."""

from __future__ import annotations

import os
from threading import RLock
from typing import Any


def lock_across_forks() -> Any:
    """Return a reentrant lock that forks wait for: what it guards is whole in the child, where nobody holds it.

    A fork takes the one that was made last first: whoever holds one may wait for those that were made before it, for no other.
    """
    lock = RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
