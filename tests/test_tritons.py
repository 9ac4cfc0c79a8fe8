"""All GPU kernels compile under each Triton that the supported releases of PyTorch bring, not just under the newest.

The others are unpacked by pip into folders inside the virtual environment (`.venv/tritons/3.6.0`) when they are first needed;
they stay there.
"""

import importlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compile_ahead import compile_ahead

import hf_ngpulm

if platform.system() != "Linux":
    pytest.skip("there is no Triton but on Linux", allow_module_level=True)

# What PyTorch 2.7, 2.8, 2.9, 2.10 and 2.11, and 2.12 bring.
TRITONS = ("3.3.1", "3.4.0", "3.5.1", "3.6.0", "3.7.0")
if sys.version_info >= (3, 14):
    TRITONS = TRITONS[2:]  # those before know no Python 3.14, nor do their PyTorches
# 2.13 and later bring newer ones: one of those is the environment's, see automaton/test_gpu_kernels.py.

PACKAGE = Path(hf_ngpulm.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("gpu.py"))
    if "def aot_signatures" in path.read_text(encoding="utf-8")
]


def unpacked(version: str) -> Path:
    """The folder of another Triton, which pip fills if there is none yet."""
    folder = Path(sys.prefix) / "tritons" / version
    if not folder.is_dir():
        unfinished = folder.with_name(f"{version}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--target", str(unfinished), f"triton=={version}"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert result.returncode == 0, f"pip can't fetch triton {version}, which this test needs once: {result.stderr}"
        unfinished.rename(folder)
    return folder


def kernels_compiled(version: str, cache: Path) -> set[str]:
    printed = compile_ahead(MODULES, cache, "--triton", str(unpacked(version)), seconds=1500)
    return {line.split()[0] for line in printed.splitlines()}


def every_kernel() -> set[str]:
    return {kernel.fn.__name__ for module in MODULES for kernel, _, _ in importlib.import_module(module).aot_signatures()}


@pytest.mark.slow
@pytest.mark.parametrize("version", TRITONS)
def test_all_signatures_compile_under(version, tmp_path):
    assert kernels_compiled(version, tmp_path) == every_kernel() >= {"_search_kernel", "_walk_kernel"}
