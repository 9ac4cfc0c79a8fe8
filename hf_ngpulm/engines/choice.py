"""Choose the engine of an operation: "cpu" (the native core), "gpu" (Triton) or "reference" (plain torch).

"auto" means the value of the environment variable HF_NGPULM_ENGINE if it is set; otherwise the tensors' device decides.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from typing import Any

import torch

ENGINES = ("reference", "cpu", "gpu")
CHOICES = ("auto", *ENGINES)
ENGINE_VARIABLE = "HF_NGPULM_ENGINE"


def check_engine(name: str, what: str = "engine") -> str:
    """Return `name`. Raises ValueError if `name` is neither an engine nor "auto". `what`: the argument's name in messages."""
    if name not in CHOICES:
        raise ValueError(f"{what} should be one of {CHOICES}, got {name!r}")
    return name


def engine_name(name: str, device: torch.device, elsewhere: str = "reference") -> str:
    """Return the name of the engine for a device. If `name` is "auto", choose an engine.

    Args:
        elsewhere: the engine for devices that are neither CPU nor CUDA, if `name` is "auto".

    Raises:
        ImportError: the engine is "gpu" and Triton isn't installed.
        ValueError: no engine has this name, or the engine "cpu" was named for tensors on another device.
    """
    if check_engine(name) == "auto":
        name = check_engine(os.environ.get(ENGINE_VARIABLE) or "auto", ENGINE_VARIABLE)
    if name == "auto":
        name = {"cpu": "cpu", "cuda": "gpu"}.get(device.type, elsewhere)
    elif name == "cpu" and device.type != "cpu":
        raise ValueError(f"engine='cpu', but the tensors are on {device}; move them or use engine='auto'")
    if name == "gpu":
        _require_triton()
    return name


def load_engine(package: str, name: str, device: torch.device, elsewhere: str = "reference") -> Any:
    """Return the module of an engine. `package` is the package of an operation, which contains the modules of its engines.

    `name` may be "auto". Arguments and errors are as for `engine_name`.
    """
    return engine_module(package, engine_name(name, device, elsewhere))


@functools.cache  # even for a loaded module `import_module` takes as long as making a tensor
def engine_module(package: str, engine: str) -> Any:
    """Return the module of an engine. `package` is the package of an operation, which contains the modules of its engines."""
    return importlib.import_module(f"{package}.{engine}")


def is_native(name: str, device: torch.device) -> bool:
    """Return whether the native core (the engine "cpu") runs operations on a device. Errors are as for `engine_name`."""
    return engine_name(name, device) == "cpu"


@functools.cache
def _require_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        raise ImportError(
            "the engine 'gpu' needs Triton: pip install 'hf-ngpulm[gpu]' (on Linux; PyTorch's CUDA builds include it). "
            "engine='reference' needs only PyTorch, and is slower",
            name="triton",
        )
