"""Find the files that come with the project: inside an installed package, or in the source tree."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_PACKAGE = Path(__file__).parents[1]
_ROOTS = (_PACKAGE / "_bundled", _PACKAGE.parent)


def is_bundled(name: str) -> bool:
    """Return whether this installation has a file or folder of the repository. A wheel contains only some of the files."""
    return any((root / name).exists() for root in _ROOTS)


def bundled(name: str) -> Path:
    """Return the path of a bundled file or folder. `name`: the path in the source tree, such as `model_cards/ngram_lm.md`.
    Raises FileNotFoundError if this installation lacks the file or folder.
    """
    for root in _ROOTS:
        if (root / name).exists():
            return root / name
    models = sorted(path.name for path in (_ROOTS[0] / "examples/models").glob("*") if path.is_dir())
    if models:  # installed from a wheel
        raise FileNotFoundError(
            f"{name} doesn't come with wheels of hf_ngpulm (of the bundled models they have {' and '.join(models)}), but with"
            " its source: run this in a clone of the repository"
        )
    raise FileNotFoundError(f"{name} isn't part of this installation of hf_ngpulm; install it again from its wheel or source")


def demo_model() -> str:
    """Return the folder of a small CTC recogniser, to use in place of a Hub id. The recogniser knows only a synthetic voice."""
    return str(bundled("examples/models/ctc"))


def demo_lm() -> str:
    """Return the folder of a 6-gram model for `demo_model()`, to use in place of a Hub id. The model knows orders on a ship."""
    return str(bundled("examples/speech/harbour/lm"))


def demo_recording() -> np.ndarray:
    """Read a recording of an order on a ship's bridge, three seconds long. `demo_model()` recognises it correctly only with
    `demo_lm()`.

    Returns:
        Samples at 16 kHz, float32 `[N]`.

    Raises:
        ModuleNotFoundError: soundfile isn't installed.
    """
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading audio needs soundfile: pip install 'hf-ngpulm[audio]'", name=error.name) from error
    return soundfile.read(bundled("examples/speech/harbour/clips/01.flac"), dtype="float32")[0]
