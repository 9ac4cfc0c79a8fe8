"""Kernels are launched on the GPU that their tensors are on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import hf_ngpulm
from hf_ngpulm.engines import choice, devices

PACKAGE = Path(hf_ngpulm.__file__).parent
# Transducers' kernels are launched by searches that make the device the current one for a whole batch.
BY_BATCH = {"search/networks/gpu.py", "search/transducer_beam/gpu.py", "search/transducer_greedy/gpu.py"}
LAUNCHING = sorted(path for path in PACKAGE.rglob("*.py") if "_kernel[" in path.read_text(encoding="utf-8"))
MODULES = [path for path in LAUNCHING if path.relative_to(PACKAGE).as_posix() not in BY_BATCH]


def test_another_gpu_is_made_the_current_one(monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda device: made.append(device) or devices._NOTHING)
    for name in ("cpu", "cuda:1", "cuda:0", "cuda:2"):
        with devices.current(torch.device(name)):
            pass
    assert made == [torch.device("cuda:0"), torch.device("cuda:2")]


def test_transducers_are_searched_on_it():
    source = (PACKAGE / "search" / "networks" / "buffers.py").read_text(encoding="utf-8")
    assert (
        "        with current(self.device):\n            self.block.prepare(self.device)\n            self.run_blocks("
        in source
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_launch_is_on_it(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    is_launch = lambda node: (  # noqa: E731
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id.endswith("_kernel")
    )
    inside = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.With) and any("current(" in ast.unparse(item) for item in block.items)
        for node in ast.walk(block)
    }
    launches = [node for node in ast.walk(tree) if is_launch(node)]
    assert launches
    assert not [node.lineno for node in launches if id(node) not in inside]


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    found = [devices.numbered(name) for name in ("cpu", "cuda", "cuda:0", torch.device("cuda"))]
    assert found == [torch.device(name) for name in ("cpu", "cuda:1", "cuda:0", "cuda:1")]


@pytest.mark.parametrize(("device", "engines"), [("cpu", ("cpu", "cpu")), ("mps", ("reference", "cpu"))])
def test_devices_without_an_engine_of_their_own(device, engines, monkeypatch):
    monkeypatch.delenv(choice.ENGINE_VARIABLE, raising=False)
    device = torch.device(device)
    assert (choice.engine_name("auto", device), choice.engine_name("auto", device, "cpu")) == engines
    assert choice.engine_name("reference", device, "cpu") == "reference"
