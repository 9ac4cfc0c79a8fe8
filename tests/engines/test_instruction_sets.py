"""The native core as it is compiled for each instruction set: the same bits, and what the reference finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_ngpulm.engines import native

pytestmark = pytest.mark.slow

LEVELS = {"x86-64": 1, "x86-64-v3": 3, "x86-64-v4": 4}
FIXED = Path(__file__).parents[1] / "support" / "fixed_searches.py"


def sets_of_this_machine() -> list[str]:
    names = [path.stem.removeprefix("ngpulm-") for path in native.LIBRARIES.glob("ngpulm-*")]
    return [name for name in sorted(names) if LEVELS.get(name, 1) <= native.library().ngpulm_level()]


def found_by(folder: Path, instruction_set: str, *engines: str) -> list[dict[str, torch.Tensor]]:
    """What engines find, in a process of its own: an instruction set is chosen once."""
    files = {engine: folder / f"{instruction_set}-{engine}.pt" for engine in engines}
    paths = [native.SOURCES.parent, FIXED.parent]
    environment = os.environ | {"HF_NGPULM_NATIVE": instruction_set, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, FIXED, *(str(part) for engine, path in files.items() for part in (path, engine))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [torch.load(path, weights_only=True) for path in files.values()]


@pytest.fixture(scope="module")
def searches(tmp_path_factory):
    """What each set finds; and the reference, in the process of the first one."""
    folder, (first, *others) = tmp_path_factory.mktemp("sets"), sets_of_this_machine()
    found, reference = found_by(folder, first, "cpu", "reference")
    return {first: found} | {name: found_by(folder, name, "cpu")[0] for name in others}, reference


@pytest.fixture(scope="module")
def of_sets(searches):
    return searches[0]


@pytest.fixture(scope="module")
def reference(searches):
    return searches[1]


def test_each_instruction_set_gives_the_same_bits(of_sets):
    first, *others = of_sets.values()
    for found in others:
        assert found.keys() == first.keys() == {*found}
        for name, tensor in found.items():
            assert tensor.numel() and tensor.numpy().tobytes() == first[name].numpy().tobytes(), name


def test_it_is_what_the_reference_finds(of_sets, reference):
    found = next(iter(of_sets.values()))
    for name, expected in reference.items():
        torch.testing.assert_close(
            found[name], expected, rtol=1e-5, atol=2e-5, msg=lambda message, name=name: f"{name}: {message}"
        )


def test_scores_of_searches_are_good_to_1e_7_a_frame(of_sets):
    """Of one prefix without language models, the sum over all alignments, in double precision."""
    found = next(iter(of_sets.values()))
    assert float((found["certain scores"] - found["certain expected"]).abs().max()) < 1e-7 * found["certain frames"]
