"""What pyproject.toml says of Pythons, held to what there is."""

import re
import sys
from pathlib import Path

PROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)


def test_pythons_are_named():
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in PYTHONS
    assert f'requires-python = ">={PYTHONS[0]}"' in PROJECT
