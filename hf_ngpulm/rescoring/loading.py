"""Load causal language models by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import torch

from .rescorer import Rescorer

MEMORY = Path("/proc/meminfo")


def load_rescorer(source: Any, device: torch.device | str | None = None, dtype: Any = None, **settings: Any) -> Rescorer:
    """Load a causal language model with its tokenizer.

    Args:
        source: a Hub id, a folder, or a `.gguf` file (read by the package `gguf`). A `Rescorer` is returned unchanged.
        device: device of the model; by default the CPU.
        dtype: type of the weights. The default on a CPU is float32. On other devices it is bfloat16, or float16 if the device
            lacks bfloat16.
        settings: arguments of `Rescorer`.

    Raises:
        ValueError: the model isn't a causal language model, or doesn't fit into memory. Or `settings` are given with a
            `Rescorer`.
        OSError: there is no such model.
    """
    if isinstance(source, Rescorer):
        if settings:
            raise ValueError(f"{', '.join(settings)}: given beside a Rescorer; pass them when you make it")
        return source
    if not isinstance(source, str | os.PathLike):
        raise ValueError(f"rescorer should be a Hub id, a folder or a hf_ngpulm.Rescorer, got {type(source).__name__}")
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    device, name, more = torch.device(device or "cpu"), os.fspath(source), {}
    if name.endswith(".gguf"):
        name, file = os.path.split(name)
        more["gguf_file"] = file
    config = AutoConfig.from_pretrained(name, **more)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{source} is a model of the type {config.model_type!r}, which isn't a causal language model; pass GPT-2, Llama or "
            "SmolLM2, for example"
        )
    dtype = _precision(device) if dtype is None else dtype
    with torch.device("meta"):
        parameters = sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
    size, free = parameters * dtype.itemsize, _free(device)
    if free is not None and size > free:
        raise ValueError(
            f"{source} needs {size / 1e9:.1f} GB ({parameters / 1e6:,.0f} M parameters in {str(dtype).split('.')[-1]}), but "
            f"only {free / 1e9:.1f} GB are free on {device}; pass a smaller model, dtype=torch.bfloat16, or another device"
        )
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # otherwise Transformers prints a long report on weights
    try:
        model, report = cast(Any, AutoModelForCausalLM).from_pretrained(name, dtype=dtype, output_loading_info=True, **more)
    finally:
        logging.set_verbosity(verbosity)
    if report["missing_keys"]:  # Transformers gives an encoder without a head a random one
        raise ValueError(
            f"{source} has no weights {', '.join(sorted(report['missing_keys'])[:3])}, so it wasn't saved as a causal language "
            "model; pass GPT-2, Llama or SmolLM2, for example"
        )
    model.to(device)
    return Rescorer(model, AutoTokenizer.from_pretrained(name, **more), **settings)


def _precision(device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    return torch.float16 if device.type == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16


def _free(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu" or not MEMORY.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMORY.read_text(encoding="utf-8").splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024
