"""Process-wide locks that stay usable in forked processes."""

from __future__ import annotations

import os
from threading import RLock
from typing import Any


def lock_across_forks() -> Any:
    """Return a reentrant lock that a fork acquires first, so that what it guards is consistent in the child, where it is free.

    A fork acquires the newest lock first: a thread that holds one may wait for older locks only.
    """
    lock = RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
