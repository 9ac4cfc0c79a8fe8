"""How sure a transducer is of the tokens of a hypothesis."""

from __future__ import annotations

import torch
from torch import Tensor

from ..confidence import frame_confidence
from .model import TransducerModel


def token_confidences(
    model: TransducerModel, frames: Tensor, rows: Tensor, tokens: Tensor, token_frames: Tensor, measure: str
) -> Tensor:
    """Read the tokens of hypotheses once more, and ask the joint network about the frame that each was emitted at.

    Args:
        frames: `[B, T, D]`, projected.
        rows: int64 `[N]`, which utterance each hypothesis is of.
        tokens, token_frames: int64 `[N, L]`, ids (any where a hypothesis has no more) and frames.
        measure: see `hf_ngpulm.confidence`.

    Returns:
        float32 `[N, L]`
    """
    prediction, state = model.start(tokens.shape[0], frames)
    found = []
    for position in range(tokens.shape[1]):
        logits = model.join(frames[rows, token_frames[:, position]], prediction)[:, : model.vocab_size]
        found.append(frame_confidence(logits[None], measure)[0])
        prediction, state = model.predict(tokens[:, position], state)
    return torch.stack(found, 1) if found else torch.zeros(tokens.shape, device=frames.device)
