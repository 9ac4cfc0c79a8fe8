"""What a caller knows and doesn't tell a strategy.

`generate` hands a `custom_generate` function neither the streamer nor an assistant model that it was given, and Whisper, which
decodes long recordings window by window, doesn't say which recordings its rows are. Without them a strategy would be wrong
without a word: a streamer would never end, a row would have another row's language model. So they are looked up where they are.
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
    """Return what `generate` was called with, if that is where we are called from."""
    return _variables_of(GenerationMixin.generate)


def window_of_whisper(prompt_length: int, generation_config: Any) -> Window | None:
    """Return the window of long recordings that is being decoded, if one is."""
    if WHISPER not in sys.modules:
        return None
    given = _variables_of(sys.modules[WHISPER].WhisperGenerationMixin.generate_with_fallback)
    if not given:
        return None
    sequences = [int(given["batch_idx_map"][row]) for row in given["fallback_index_map"]]
    return Window(sequences, len(given["seek"]), prompt_length, generation_config)


def _variables_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return those of its innermost call that is going on."""
    code = inspect.unwrap(function).__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals
        frame = frame.f_back
    return {}
