"""Compute an encoder-decoder's own confidence in the words that a search has chosen (see `forced.token_confidences`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..decoding.hypotheses import Hypothesis
from ..search.confidence import Calibration
from ..text.words import WordSplitter
from .forced import token_confidences


def measured(
    model: Any, encoder_outputs: Any, attention_mask: Tensor | None, prompts: Sequence[Sequence[int]], tokens: Tensor,
    splitter: WordSplitter, confidence: str | Calibration,
) -> list[Hypothesis]:  # fmt: skip
    """Return the transcripts of a batch. Their `words` have confidences, but no times.

    Args:
        model, encoder_outputs, attention_mask, prompts: as for `token_confidences`.
        tokens: output of `generate`, int64 `[B, L]`.
        splitter: distinguishes text tokens from special tokens.
        confidence: a measure, or a `Calibration`.
    """
    calibration = confidence if isinstance(confidence, Calibration) else None
    measure = confidence if isinstance(confidence, str) else confidence.measure
    texts = [[token for token in row if token not in splitter.special] for row in tokens.tolist()]
    sure = token_confidences(model, encoder_outputs, attention_mask, prompts, texts, measure)
    return [
        Hypothesis(
            splitter.text(text), text, 0.0, 0.0, 0.0, [0] * len(text), [0] * len(text), of_row, splitter=splitter,
            calibration=calibration,
        )
        for text, of_row in zip(texts, sure)
    ]  # fmt: skip
