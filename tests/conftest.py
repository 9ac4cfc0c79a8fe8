"""What holds for all tests; helpers that several share are in `support`.

Without a GPU the Triton kernels run in Triton's interpreter, which has to be chosen before they are imported.

Property tests try the same examples in every run, so that a change fails its own tests and nobody else's;
`make test-all` looks for new ones (`--hypothesis-profile=new`).
"""

import os
from pathlib import Path

import torch
from hypothesis import settings

PACKAGE = Path(__file__).parents[1] / "hf_ngpulm"

settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False)
settings.load_profile("same")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure(config):
    """Forget compiled loops that are older than the source of any: numba looks at a loop's own file only, not at those of the
    others that it calls.
    """
    if hasattr(config, "workerinput"):
        return
    newest = max(path.stat().st_mtime for path in PACKAGE.rglob("*.py") if "compiled" in path.read_text(encoding="utf-8"))
    for index in PACKAGE.rglob("*.nbi"):
        if index.stat().st_mtime < newest:
            index.unlink()
