"""Where the files that come with the project lie: inside an installed package, or in the source tree."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def bundled(name: str) -> Path:
    """Path of a bundled file or folder, given as in the source tree (`examples/models`, `model_cards/ngram_lm.md`)."""
    for root in (_PACKAGE / "_bundled", _PACKAGE.parent):
        if (root / name).exists():
            return root / name
    raise FileNotFoundError(f"{name} isn't part of this installation of hf_ngpulm; install it again from its wheel or source")
