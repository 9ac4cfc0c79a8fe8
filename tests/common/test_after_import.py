"""Functions that are called as soon as a module has been imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from hf_ngpulm.common.after_import import after_import

MODULES = {
    "__init__.py": "",
    "inner.py": "",
    "outer.py": "from . import inner\nVALUE = 1\n",
    "broken.py": "from . import inner\nraise RuntimeError('broken on purpose')\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the name of a new package with the modules above."""
    name = f"toy_{tmp_path.name}"
    folder = tmp_path / name
    folder.mkdir()
    for file, text in MODULES.items():
        (folder / file).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield name
    sys.meta_path[:] = before
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_waits_for_the_outermost_import(package):
    calls = []
    before = list(sys.meta_path)
    after_import(f"{package}.inner", lambda: calls.append(importlib.import_module(f"{package}.outer").VALUE))
    after_import(f"{package}.broken", lambda: calls.append("broken"))
    importlib.import_module(package)
    assert calls == []
    outer = importlib.import_module(f"{package}.outer")  # imports `inner` when VALUE isn't there yet
    assert calls == [1]
    assert type(outer.__spec__.loader).__name__ == type(outer.__loader__).__name__ == "SourceFileLoader"
    after_import(f"{package}.inner", lambda: calls.append("at once"))
    assert calls == [1, "at once"]
    assert len(sys.meta_path) == len(before) + 1  # one function still waits
    after_import(f"{package}.outer", lambda: calls.append("at once, too"))
    assert calls == [1, "at once", "at once, too"]


def test_a_module_that_fails(package):
    calls = []
    before = list(sys.meta_path)
    after_import(f"{package}.inner", lambda: calls.append("inner"))
    after_import(f"{package}.broken", lambda: calls.append("broken"))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        importlib.import_module(f"{package}.broken")
    assert calls == []
    importlib.import_module(f"{package}.outer")
    assert calls == ["inner"]
    assert len(sys.meta_path) == len(before) + 1
