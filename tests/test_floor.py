"""The lowest release of every range in pyproject.toml, all together, runs the demo: each bundled model."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
EXTRAS = ("cli", "audio", "microphone", "serve", "eval", "text", "plots")
# That of Transformers: before 5.23 it wants librosa for Parakeet's and Canary's features.
BESIDES = ["librosa"]


def lowest() -> dict[str, str]:
    """The lowest releases, by name."""
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(line for name in EXTRAS for line in project["optional-dependencies"][name])]
    found = [one for one in map(Requirement, listed) if one.marker is None or one.marker.evaluate()]
    return {one.name: part.version for one in found for part in one.specifier if part.operator == ">="}


def link_torch(environment: Path) -> None:
    """Have an environment use this one's PyTorch: there is a build of its own for each kind of machine."""
    site = next(environment.glob("lib/python*/site-packages"))
    for found in importlib.metadata.distributions():
        if re.match(r"(torch|triton|nvidia.*|cuda.*)$", found.name):
            for name in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
                if not (site / name).exists():
                    (site / name).symlink_to(found.locate_file(name))


def test_the_lowest_transformers_is_named_where_it_is_told():
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert f"Transformers {lowest()['transformers']} " in page


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 13) or sys.platform == "win32", reason="lowest releases know no Python 3.13")
def test_the_demo_runs_with_the_lowest_releases(tmp_path):
    venv.create(tmp_path, with_pip=True)
    link_torch(tmp_path)
    python, wanted = tmp_path / "bin/python", [f"{name}=={version}" for name, version in lowest().items() if name != "torch"]
    install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "torch", *BESIDES, *wanted]
    done = subprocess.run(install, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run([python, "-m", "hf_ngpulm.cli", "demo", "--json"], **options, timeout=1800)
    assert done.returncode == 0, done.stderr
    rates = {(line["set"], line["model"], line["search"]): line["wer"] for line in map(json.loads, done.stdout.splitlines())}
    models = {model for _, model, _ in rates}
    assert models == {"ctc", "rnnt", "tdt", "hat", "stateless", "canary"}
    assert all(rates["harbour", model, "LM, beam"] < 10 < rates["harbour", model, "alone"] for model in models)
    done = subprocess.run([python, "-m", "hf_ngpulm.cli", "info"], **options, timeout=600)  # Click has changed under Typer
    assert done.returncode == 2 and "Missing argument" in done.stderr, done.stderr
