"""Find values that `generate` doesn't pass to a strategy.

`generate` doesn't pass the streamer and the assistant model, and Whisper doesn't pass the recordings of the rows in its
windows. Without these values a strategy would silently go wrong: a streamer would never end, and a row would get another row's
language model. So this module looks up these values in the stack frames of the callers.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from transformers import GenerationMixin

from ..whisper import Window

WHISPER = "transformers.models.whisper.generation_whisper"


def arguments_of_generate() -> Mapping[str, Any]:
    """Return the local variables of the running call of `generate`; an empty mapping if no caller is `generate`."""
    return _variables_of(GenerationMixin.generate)


def window_of_whisper(prompt_length: int, generation_config: Any) -> Window | None:
    """Return the window of audio that Whisper's `generate` is decoding; None if Whisper's `generate` isn't running.

    Args:
        prompt_length: number of tokens before the transcript.
        generation_config: the config of this call.
    """
    variables = window_variables()
    if not variables:
        return None
    sequences = [int(variables["batch_idx_map"][row]) for row in variables["fallback_index_map"]]
    return Window(sequences, len(variables["seek"]), prompt_length, generation_config)


def window_variables() -> Mapping[str, Any]:
    """Return the local variables of Whisper's `generate_with_fallback`; an empty mapping if this method isn't running."""
    whisper = sys.modules.get(WHISPER)
    return {} if whisper is None else _variables_of(whisper.WhisperGenerationMixin.generate_with_fallback)


def _variables_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the local variables of a function's innermost running call; an empty mapping if the function isn't running."""
    code = inspect.unwrap(function).__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals
        frame = frame.f_back
    return {}
