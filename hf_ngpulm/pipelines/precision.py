"""Convert half-precision models that `pipeline` loads on a CPU to float32, because CPUs compute half precision slowly."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch

# Models that a pipeline has loaded itself without an explicit precision; never a user's model object.
_as_saved: WeakSet[torch.nn.Module] = WeakSet()


def noting_precision(auto_class: Any) -> Any:
    """Return a subclass of an auto class. The subclass records the models that are loaded in the precision of their files."""

    class Noting(auto_class):
        noted = auto_class

        @classmethod
        def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
            model = auto_class.from_pretrained(*args, **kwargs)
            if kwargs.get("dtype", kwargs.get("torch_dtype")) == "auto":
                _as_saved.add(model)
            return model

    Noting.__name__, Noting.__qualname__ = auto_class.__name__, auto_class.__qualname__
    return Noting


def in_single_precision(model: Any, device: torch.device) -> None:
    """Convert a half-precision model on a CPU to float32. A model whose precision was chosen explicitly stays unchanged."""
    if device.type == "cpu" and model in _as_saved and model.dtype in (torch.float16, torch.bfloat16):
        model.float()
