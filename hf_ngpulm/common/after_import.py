"""Call a function as soon as a module has been imported, without importing the module."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call a function once a module has been imported, or now if the module has been imported already.

    The call waits until this thread isn't importing any module of the same package. So the function may import any module of
    the package.

    Args:
        name: full name of the module.
        call: a function without arguments. Its errors propagate to the code that imports the module.
    """
    package = name.partition(".")[0]
    finder = next((known for known in sys.meta_path if isinstance(known, _Finder) and known.package == package), None)
    if name in sys.modules and (finder is None or not finder.depth()):
        call()
        return
    if finder is None:
        finder = _Finder(package)
        sys.meta_path.insert(0, finder)
    finder.waiting.append((name, call))


class _Finder(MetaPathFinder):
    """Find the modules of a package with the other finders of Python, and run callbacks when the modules' imports end."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.waiting: list[tuple[str, Callable[[], None]]] = []
        self._thread = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.package:
            return None
        for finder in list(sys.meta_path):
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def depth(self) -> int:
        """Return the nesting depth of this thread's imports from the package."""
        return getattr(self._thread, "depth", 0)

    def load(self, module: ModuleType, loader: Loader) -> None:
        """Run a module's code with its own `loader`. Nested imports don't run callbacks. When the outermost import ends, the
        callbacks of all imported modules run.
        """
        self._thread.depth = self.depth() + 1
        try:
            loader.exec_module(module)
        finally:
            self._thread.depth -= 1
        if self.depth():
            return
        ready = [pair for pair in self.waiting if pair[0] in sys.modules]
        self.waiting = [pair for pair in self.waiting if pair[0] not in sys.modules]
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        for _, call in ready:
            call()


class _Loader(Loader):
    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.finder.load(module, self.loader)
