"""Import the names that a package exports on first access."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attributes_of(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, which imports each name from its module on first access.

    Args:
        package: full name of the package.
        modules: for each name, the module that defines it, relative to the package.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{modules[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
