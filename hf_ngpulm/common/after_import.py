"""Call a function as soon as a module has been imported, without importing the module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call a function as soon as a module has been imported, or now if it has been imported already.

    Args:
        name: full name of the module.
        call: a function without arguments; its errors propagate to the code that imports the module.
    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(MetaPathFinder):
    """Find one module with the other finders. Return a loader that loads the module and then calls a function."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name, self.call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)  # it is needed once
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.call)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, call: Callable[[], None]) -> None:
        self.loader, self.call = loader, call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.call()
