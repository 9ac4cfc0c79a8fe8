"""The heavy steps of estimating a language model, one file per engine with the same operations.

`reference` is plain torch: it is the definition and runs anywhere, and it is what a GPU runs. `cpu` has the native core do the
same. Integers come out identical, floats to rounding.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import torch

ENGINES = ("reference", "cpu")


def steps_for(device: torch.device, engine: str = "auto") -> ModuleType:
    """Return the module of an engine; "auto" takes the native core on a CPU and torch elsewhere.

    The environment variable HF_NGPULM_ENGINE=reference forces torch on a CPU too.
    """
    if engine == "auto":
        forced = os.environ.get("HF_NGPULM_ENGINE") == "reference"
        engine = "cpu" if device.type == "cpu" and not forced else "reference"
    if engine not in ENGINES:
        raise ValueError(f"engine must be 'auto', 'reference' or 'cpu', got {engine!r}")
    if engine == "cpu" and device.type != "cpu":
        raise ValueError(f"the engine 'cpu' was asked for on {device}; use engine='auto'")
    return importlib.import_module(f"{__name__}.{engine}")
