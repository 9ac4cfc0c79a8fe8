"""Make process-wide locks that stay usable in forked processes."""

from __future__ import annotations

import os
from threading import RLock
from typing import Any


def lock_across_forks() -> Any:
    """Return a reentrant lock that a process acquires before it forks. So the data under the lock is consistent in the child
    process.

    The lock is free in the child. Before a fork, the newest lock is acquired first, so a thread that holds a lock may wait only
    for older locks.
    """
    lock = RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
