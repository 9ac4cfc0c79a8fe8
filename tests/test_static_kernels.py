"""What `make gpu-static` tells of the GPU kernels' machine code, and that they meet its goals."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

if platform.system() != "Linux":
    pytest.skip("there is no Triton but on Linux", allow_module_level=True)
pytest.importorskip("triton")

ROOT = Path(__file__).parents[1]
ROW = {"kernel": "_search_kernel", "stack": 0, "spills": 0, "registers": 255, "constants": {"PLACES": 8}}


def static_kernels(folder: Path, *options: str) -> list[dict]:
    """Run the command with an empty cache; return its results."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "benchmarks/static_kernels.py", "--out", str(folder), *options]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, f"{result.stdout[-3000:]}{result.stderr[-3000:]}"
    return json.loads((folder / "static_kernels.json").read_text())["kernels"]


@pytest.mark.slow
def test_resources_are_read_off_machine_code(tmp_path):
    rows = static_kernels(tmp_path, "--only", "_best_kernel", "--capabilities", "90")
    assert {row["kernel"] for row in rows} == {"_best_kernel"} and {row["target"] for row in rows} == {"sm_90"}
    for row in rows:
        assert 16 <= row["registers"] <= 128 and row["spills"] == row["stack"] == row["shared"] == 0
        assert row["warps"] == 1 and row["programs"] == 65536 // (32 * row["warps"] * -(-row["registers"] // 8) * 8)


SPECIALIZED = """
import importlib
for search in ("ctc_beam", "ctc_greedy"):
    for kernel, _, _ in importlib.import_module(f"hf_ngpulm.search.{search}.gpu").aot_signatures():
        print(kernel.fn.__name__, *(p.name for p in kernel.params if not p.do_not_specialize and not p.is_constexpr))
"""


def test_sizes_of_batches_compile_nothing_anew():
    """Triton compiles a kernel anew for an integer that is 1, or that 16 divides, unless it is told not to."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-c", SPECIALIZED]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    kernels = {name: set(specialized) for name, *specialized in map(str.split, result.stdout.splitlines())}
    assert kernels.keys() == {"_best_kernel", "_label_kernel", "_peaks_kernel", "_search_kernel"}
    for specialized in kernels.values():
        assert "lengths" in specialized
        assert not specialized & {"row_stride", "frame_stride", "frames", "classes", "num_beams"}


@pytest.mark.parametrize(
    "changed, goal",
    [
        ({}, []),
        ({"spills": 3, "stack": 24}, ["24 bytes of registers are spilled"]),
        ({"spills": 3, "stack": 24, "constants": {"PLACES": 32}}, []),
        ({"kernel": "_add_kernel", "constants": {}}, ["255 registers in place of at most 128"]),
    ],
)
def test_goals(changed, goal, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import static_kernels

    assert static_kernels.missed_goals(ROW | changed) == goal


@pytest.mark.slow
def test_all_kernels_meet_the_goals(tmp_path):
    assert len(static_kernels(tmp_path)) > 50
