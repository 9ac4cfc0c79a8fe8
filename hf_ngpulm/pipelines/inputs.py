"""Read files if ffmpeg is missing, and resample if torchaudio is missing. The stock pipeline can't do this."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.utils import get_session
from transformers.pipelines.audio_utils import ffmpeg_read
from transformers.utils import is_torchaudio_available

from ..common.checks import check, whole
from ..sound.files import RATES, decode_audio, resample


def readable(inputs: Any, rate: int) -> Any:
    """Return a recording in a form that the stock pipeline can read.

    If the stock pipeline can read an input, the samples are the same. `hf_ngpulm.sound.files` reads all other inputs.

    Args:
        inputs: any input that the pipeline accepts, a path, or a dictionary with `bytes` or `path` as in undecoded data sets.
        rate: the model's sampling rate in hertz.

    Raises:
        ValueError: the input can't be read as audio, or holds no samples.
        ImportError: neither the stock pipeline's requirements nor the `audio` extra are installed.
    """
    if isinstance(inputs, str | os.PathLike | bytes):
        return _read(inputs, rate)
    if isinstance(inputs, dict) and "sampling_rate" not in inputs and (inputs.get("bytes") or inputs.get("path")):
        rest = {name: value for name, value in inputs.items() if name not in ("bytes", "path")}
        return {**rest, "array": _read(inputs.get("bytes") or inputs["path"], rate), "sampling_rate": rate}
    if hasattr(inputs, "get_all_samples"):  # torchcodec's decoder, from data sets
        decoded = inputs.get_all_samples()
        inputs = {"array": decoded.data, "sampling_rate": decoded.sample_rate}
    if isinstance(inputs, dict) and inputs.get("sampling_rate", rate) != rate and not is_torchaudio_available():
        return _resampled(inputs, rate)
    return inputs


def _read(source: str | os.PathLike[str] | bytes, rate: int) -> np.ndarray | str:
    name = "audio" if isinstance(source, bytes) else os.fspath(source)
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        if shutil.which("ffmpeg"):
            return source
        response = get_session().get(source)
        response.raise_for_status()
        data = response.content
    else:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    try:
        return ffmpeg_read(data, rate)
    except ValueError:  # ffmpeg is missing, or can't read this from a pipe
        try:
            samples = decode_audio(io.BytesIO(data), rate, name)
        except ImportError as error:
            if shutil.which("ffmpeg"):
                raise ValueError(f"{name}: can't be read as audio by ffmpeg") from None
            raise _missing(name, "ffmpeg", error) from None
    if not len(samples):
        raise ValueError(f"{name}: holds no samples")
    return samples


def _resampled(inputs: dict[str, Any], rate: int) -> dict[str, Any]:
    """Return a copy of a dictionary with its samples and strides converted to another sampling rate."""
    key = "raw" if inputs.get("raw") is not None else "array"
    given = check("sampling_rate", inputs["sampling_rate"], whole(*RATES))
    samples = torch.as_tensor(inputs.get(key)).detach().cpu().numpy()
    if samples.ndim == 2 and len(samples) <= 2:  # as in the stock pipeline; a longer axis may be samples instead of channels
        samples = samples.mean(axis=0)
    if samples.ndim != 1:
        raise ValueError(f"{key} should be samples [N], or [channels, N] with 1 or 2 channels, got {list(samples.shape)}")
    try:
        changed = {key: resample(samples, given, rate), "sampling_rate": rate}
    except ImportError as error:
        raise _missing(f"audio at {given} Hz", "torchaudio", error) from None
    if inputs.get("stride") is not None:
        changed["stride"] = tuple(round(length * rate / given) for length in inputs["stride"])
    return {**inputs, **changed}


def _missing(name: str, program: str, error: ImportError) -> ImportError:
    return ImportError(f"{name}: reading it needs {program}, or {error.name}: pip install 'hf-ngpulm[audio]'", name=error.name)
