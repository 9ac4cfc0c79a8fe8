"""Handle rows of different lengths in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidLogitsError

# What decoders take for a model's outputs.
Outputs: TypeAlias = Tensor | np.ndarray | Sequence[Any]


def tensor_of(values: Any, name: str, device: torch.device | None = None) -> Tensor:
    """Return a model's outputs as a tensor. Tensors are returned unchanged.

    Lists, numpy arrays, and objects that numpy converts become tensors. Double precision becomes single precision.

    Args:
        values: numbers of any shape.
        name: name of the argument, for messages.
        device: device for arrays and lists; by default the CPU.

    Raises:
        InvalidLogitsError: the values can't be converted, or lists have different lengths.
    """
    if isinstance(values, Tensor):
        return values
    if hasattr(values, "logits"):
        raise InvalidLogitsError(f"{name} should be a tensor or an array, got {type(values).__name__}: pass its .logits")
    try:
        if isinstance(values, list | tuple) and any(isinstance(row, Tensor) for row in values):
            return torch.stack([tensor_of(row, name, device) for row in values])
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise TypeError(array.dtype)
        dtype = np.dtype(np.float32) if array.dtype.kind == "f" and array.itemsize > 4 else array.dtype.newbyteorder("=")
        array = np.require(array, dtype, ["C", "W"])  # what torch can share
        return torch.from_numpy(array).to(device or "cpu")
    except (TypeError, ValueError, RuntimeError):
        of = f" of shapes {shapes}" if (shapes := _shapes(values)) else ""
        raise InvalidLogitsError(
            f"{name} should be a tensor, a numpy array or nested lists of numbers, got {type(values).__name__}{of}; rows of "
            "different lengths are padded to one array, and their lengths passed as lengths="
        ) from None


def _shapes(values: Any) -> str:
    """Return the shapes of the first arrays in a list, for an error message."""
    rows = values[:4] if isinstance(values, list | tuple) else ()
    return ", ".join(str(tuple(row.shape)) for row in rows if hasattr(row, "shape"))


def checked_lengths(lengths: Outputs | None, batch_size: int, frames: int, device: torch.device) -> Tensor:
    """Return the lengths of the rows, int64 `[B]`. If `lengths` is None, each row has `frames` frames. Raises ValueError if the
    number of lengths isn't the number of rows, or a length isn't an integer from 0 to `frames`.
    """
    if lengths is None:
        return torch.full((batch_size,), frames, dtype=torch.int64, device=device)
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (batch_size,) or lengths.dtype.is_floating_point:
        raise ValueError(f"lengths should be {batch_size} integers, one per row, got {lengths.dtype} {tuple(lengths.shape)}")
    if batch_size and (int(lengths.min()) < 0 or int(lengths.max()) > frames):
        lowest, highest = int(lengths.min()), int(lengths.max())
        raise ValueError(f"lengths should lie in 0..{frames}, the frames there are, got {lowest}..{highest}")
    return lengths.to(device, torch.int64)


def checked_frames(frames: Tensor, lengths: Outputs | None, name: str, last: str) -> Tensor:
    """Validate frames `[B, T, X]` and return the lengths of their rows, int64 `[B]`.

    Args:
        frames: floating point of three dimensions.
        lengths: see `checked_lengths`.
        name, last: names of the argument and of its last dimension, for messages.

    Raises:
        InvalidLogitsError: the frames have a wrong shape or type.
        ValueError: the lengths don't fit the frames.
    """
    if frames.dim() != 3 or not frames.dtype.is_floating_point:
        problem = f"{name} should be floating point of the shape [B, T, {last}], got {frames.dtype} {tuple(frames.shape)}"
        if frames.dim() == 2:
            problem += f"; of one utterance add a batch dimension: {name}[None]"
        raise InvalidLogitsError(problem)
    return checked_lengths(lengths, frames.shape[0], frames.shape[1], frames.device)
