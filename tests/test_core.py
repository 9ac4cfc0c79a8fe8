"""What the package does with nothing but its core dependencies."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Not those of transformers and numba themselves.
EXTRAS = (
    "accelerate", "aiohttp", "datasets", "evaluate", "jiwer", "matplotlib", "pyarrow", "rich", "sounddevice", "soundfile",
    "soxr", "typer",
)  # fmt: skip

HIDE = f"""
from importlib.machinery import PathFinder

found = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {EXTRAS} else found(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""

USE = """
import sys
from pathlib import Path
from hf_ngpulm import NGramLM
from hf_ngpulm.text import read_texts

folder = Path(sys.argv[1])
(folder / "a.csv").write_text('text\\n"a, b"\\n')
assert list(read_texts([folder / "a.csv"])) == ["a, b"]
lm = NGramLM.train([[0, 1, 2], [0, 1], [2, 2, 0]], vocab_size=3, order=3)
for name in ("lm.arpa", "lm.arpa.gz"):
    lm.to_arpa(folder / name)
    assert NGramLM.from_arpa(folder / name, vocab_size=3).num_ngrams == lm.num_ngrams
lm.save_pretrained(folder / "lm")
assert NGramLM.from_pretrained(folder / "lm").num_ngrams == lm.num_ngrams
"""


def test_models_are_trained_read_and_written_without_extras(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HIDE + USE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


LOOPS = """
import numpy as np
import hf_ngpulm.search.attention_step.cpu
from hf_ngpulm.automaton.compiled import find_arc

assert find_arc(np.array([1, 5, 9], dtype=np.int32), 0, 3, 5) == 1
assert hf_ngpulm.__file__.startswith(str({folder!r}))
"""


def test_loops_are_compiled_where_nothing_can_be_written(tmp_path):
    package = shutil.copytree(ROOT / "hf_ngpulm", tmp_path / "hf_ngpulm", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()  # no folder can be made here, not even by root
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOPS.format(folder=str(tmp_path))],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
