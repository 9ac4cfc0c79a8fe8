"""Reuse the outputs of a model's encoder between calls of `generate`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def encoder_outputs_of(model: Any) -> Iterator[list[Any]]:
    """Collect the outputs of the model's encoder within the block, so that the encoder needn't run again."""
    outputs: list[Any] = []
    hook = model.get_encoder().register_forward_hook(lambda *arguments: outputs.append(arguments[-1]))
    try:
        yield outputs
    finally:
        hook.remove()


@contextlib.contextmanager
def encoder_returns(model: Any, outputs: Any) -> Iterator[None]:
    """Make the model's encoder return copies of `outputs` within the block. `generate` changes the copies in place.

    If the input has another number of rows, the encoder still runs, because Whisper decodes some recordings of a batch again.
    """
    encoder, run = model.get_encoder(), model.get_encoder().forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        features = args[0] if args else kwargs[encoder.main_input_name]
        return type(outputs)(**outputs) if len(features) == len(outputs[0]) else run(*args, **kwargs)

    encoder.forward = forward
    try:
        yield
    finally:
        del encoder.forward
