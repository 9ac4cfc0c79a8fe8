"""The examples run as they are written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("transcribe_with_lm.py", "with LM:"),
        ("query_lm.py", "after 'call the'"),
        ("train_lm.py", "pruned to "),
        ("boost_phrases.py", "green buoy"),
        ("stream.py", "final: "),
    ],
)
def test_example_runs(script, expected):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
