"""The help of commands, which is there at once: what they work with is imported when they work."""

import subprocess
import sys

from hf_ngpulm.cli.app import COMMANDS

PROGRAM = """
import sys
from hf_ngpulm.cli.app import run

class Refused:
    def find_spec(self, name, path=None, target=None):
        assert name not in ("torch", "transformers"), f"the help of {command} imports {name}"

sys.meta_path.insert(0, Refused())
for command in sys.argv[1:]:
    assert run([command, "--help"]) == 0
"""


def test_help_imports_neither_torch_nor_transformers():
    done = subprocess.run([sys.executable, "-c", PROGRAM, *COMMANDS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f" {name} [OPTIONS]" in done.stdout for name in COMMANDS)
