"""How sure a transducer is of the tokens of a hypothesis."""

from __future__ import annotations

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
    logits = model.join(frames[rows[:, None], token_frames], model.predictions(tokens, frames))
    return frame_confidence(logits[..., : model.vocab_size], measure)
