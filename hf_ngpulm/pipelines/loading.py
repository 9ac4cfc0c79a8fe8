"""Load a pipeline by name."""

from __future__ import annotations

from typing import Any

import torch
from transformers import pipeline

from ..common.launch import local_rank
from .registration import register


def load_pipeline(model: str, device: str | None = None, dtype: Any = None, **settings: Any) -> Any:
    """Load a speech recognition pipeline.

    Args:
        model: a folder, or an id on the Hub.
        device, dtype: as for `device_and_dtype`.
        settings: settings of `NGramPipeline`.
    """
    register()
    device, kind = device_and_dtype(device, dtype)
    return pipeline("automatic-speech-recognition", model=model, device=device, **kind, **settings)


def device_and_dtype(device: str | None, dtype: Any) -> tuple[str, dict[str, Any]]:
    """Return the device to load a model on, and the pipeline's argument for its dtype.

    Args:
        device: None selects the GPU of this process if there is one, otherwise the CPU.
        dtype: a torch dtype or its name; None selects float32 on a CPU, otherwise the dtype that the model was saved in.

    Raises:
        ValueError: the device can't be used here, or the name isn't the name of a floating-point dtype.
    """
    if device is None:
        device = f"cuda:{local_rank() % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch build without CUDA raises AssertionError
        why = str(error).partition("\n")[0]
        raise ValueError(f"the device {device!r} can't be used here ({why}); pass cpu, or leave it out") from None
    if isinstance(dtype, str):
        named = getattr(torch, dtype, None)
        if not isinstance(named, torch.dtype) or not named.is_floating_point:
            raise ValueError(f"dtype should be float32, float16 or bfloat16, got {dtype!r}")
        dtype = named
    if dtype is None:
        # Half precision, in which many models are saved, is slow and coarse on a CPU.
        return device, {"dtype": torch.float32} if device == "cpu" else {"dtype": "auto"}
    return device, {"dtype": dtype}
