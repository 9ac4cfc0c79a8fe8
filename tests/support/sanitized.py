"""The native core built with sanitizers, and processes that have it loaded."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from hf_ngpulm.engines import native

ROOT = Path(__file__).parents[2]


def run(arguments: list[str], folder: Path, seconds: float) -> tuple[int, str, str]:
    """Run Python with the sanitized core: its exit status, what it printed, and what the sanitizers reported.

    Args:
        arguments: of the interpreter.
        folder: where reports may be put.
    """
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "triton.py").write_text('raise ModuleNotFoundError("its kernels are not for these tests", name="triton")\n')
    command, environment = [sys.executable, *arguments], environment_with(library(), folder / "report", hidden)
    result = subprocess.run(
        command, env=environment, cwd=ROOT, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    reports = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("report.*"))]
    return result.returncode, result.stdout, "\n".join(reports)


def environment_with(core: Path, log: Path, *folders: Path) -> dict[str, str]:
    # A runtime of the sanitizers must be there before any other library, and so must what throws exceptions.
    preloaded = " ".join(str(_runtime(name)) for name in ("libasan.so", "libstdc++.so"))
    options = f"log_path={log}:print_stacktrace=1"
    return {
        **os.environ, "LD_PRELOAD": preloaded, native.LIBRARY_VARIABLE: str(core),
        "ASAN_OPTIONS": f"detect_leaks=0:{options}",  # CPython never gives all of its memory back
        "UBSAN_OPTIONS": options, "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(map(str, (*folders, ROOT, Path(__file__).parent))), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def why_not() -> str | None:
    """What is missing for a build with sanitizers; None if nothing is."""
    if not sys.platform.startswith("linux") or native._digest() is None:
        return "needs Linux and a source tree"
    compiler = _build_script().find_compiler()
    if compiler is None or _runtime("libasan.so") is None:
        return "needs GCC with the address sanitizer"
    return None


@functools.cache
def library() -> Path:
    """The sanitized core for this processor, built if it is out of date."""
    build = _build_script()
    name = Path(native.library()._name).stem.removeprefix("ngpulm-").removesuffix("-sanitized")
    with _one_at_a_time(build.OBJECTS):
        (path,) = build.build(build.SANITIZED, sanitize=True, only=name)
    return path


@functools.cache
def _build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ngpulm_build", native.SOURCES / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _runtime(name: str) -> Path | None:
    compiler = _build_script().find_compiler()
    found = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    return Path(found) if os.path.isabs(found) and Path(found).exists() else None


@contextmanager
def _one_at_a_time(folder: Path):
    """Tests run in several processes."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "sanitized.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
