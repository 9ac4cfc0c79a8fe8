"""What the package does with nothing but its core dependencies."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Not those of transformers itself.
EXTRAS = (
    "accelerate", "aiohttp", "datasets", "evaluate", "jiwer", "matplotlib", "pyarrow", "rich", "sounddevice", "soundfile",
    "soxr", "triton", "typer",
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
