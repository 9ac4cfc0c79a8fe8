"""What pyproject.toml says of Pythons, held to what there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)


def oldest_numba(python: str) -> str:
    """The oldest release that is allowed with a Python."""
    requirements = [Requirement(line) for line in re.findall(r'"(numba[^"]*)"', PROJECT)]
    (one,) = [found for found in requirements if found.marker is None or found.marker.evaluate({"python_version": python})]
    (lowest,) = [part.version for part in one.specifier if part.operator == ">="]
    return lowest


def test_pythons_are_named():
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in PYTHONS
    assert f'requires-python = ">={PYTHONS[0]}"' in PROJECT
    assert [oldest_numba(python) for python in PYTHONS] == sorted(map(oldest_numba, PYTHONS))


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_the_oldest_numba_has_wheels_for(python, tmp_path):
    """Else pip takes its sources where something else asks for that release, and they need another Python."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_27_x86_64"]
    command += ["--dest", str(tmp_path), f"numba=={oldest_numba(python)}.0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
