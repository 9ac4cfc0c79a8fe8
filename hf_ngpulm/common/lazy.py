"""Import the names that a package exports on first access."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attributes_of(package: str, path: str) -> Callable[[str], Any]:
    """Return a `__getattr__` that imports a module's names on first access.

    The function finds the names in the module's block `if TYPE_CHECKING:`, so each name is written only once.

    Args:
        package: full name of the module.
        path: source file of the module.
    """

    @functools.cache
    def modules() -> dict[str, str]:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
        blocks = [node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
        return {alias.name: f"{'.' * node.level}{node.module}" for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        anchor = package if Path(path).name == "__init__.py" else package.rpartition(".")[0]
        value = getattr(importlib.import_module(modules()[name], anchor), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
