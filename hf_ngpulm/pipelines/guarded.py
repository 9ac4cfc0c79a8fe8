"""Decode recordings again without a language model if the LM doesn't fit the speech (see `hf_ngpulm.decoding.guard`). This
module is for encoder-decoders.

An LM of other speech leads to transcripts that the decoder itself finds improbable. So with `lm_guard="auto"` recordings with
an improbable transcript are decoded again without the LM. The new transcript is kept if the decoder alone gives it a higher
log-probability. The difference must be more than `MOST` nats, and more than `MOST_PER_TOKEN` nats per token of the first
transcript. If `lm_guard` is a number, it is the least evidence of an LM, in nats per token, as for other models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..decoding import guard
from ..generation import NGramLogitsProcessor
from ..text.words import WordSplitter

MOST, MOST_PER_TOKEN = 8.0, 0.5  # chosen on train speakers of speechocean762 and AN4 (docs/attention.md)


def lms_of(processor: NGramLogitsProcessor, count: int) -> list[Any]:
    """Return the language model of each of `count` recordings; None if there is no language model, or its weight is 0."""
    fusion = processor.fusion
    models = [fusion.of_all] * count if fusion.per_row is None else fusion.per_row
    weights = fusion.weight.tolist() if isinstance(fusion.weight, Tensor) else [fusion.weight] * count
    return [lm if weight != 0 else None for lm, weight in zip(models, weights, strict=True)]


def without_lms(processor: NGramLogitsProcessor) -> NGramLogitsProcessor:
    """Return a copy in which the language models, the internal LM and the source LM have the weight 0."""
    subtracted = {} if processor.fusion.source is None else {"source_weight": 0.0}
    return processor.with_weights(0.0, ilm_weight=0.0, **subtracted)


def unsuited(processor: NGramLogitsProcessor, tokens: Tensor, least: float, splitter: WordSplitter) -> list[int]:
    """Return the recordings whose language models have less evidence than `least`. `tokens`: transcripts, int64 `[B, L]`."""
    judged = []
    for lm, row in zip(lms_of(processor, len(tokens)), tokens):
        scored = [] if lm is None else processor.scored(row, lm)
        words = len(splitter.words(scored)) if lm is not None and lm.config.words is not None else 0
        log_prob = guard.log_prob(lm, scored) if lm is not None and scored else 0.0
        judged.append(guard.Judged(scored, words, log_prob, -torch.inf))
    return sorted(guard.kept_models(processor.fusion, judged, least)[0])


def limit(tokens: int) -> float:
    """Return the highest cost in log-probability (natural log) that an LM may cause in a transcript of `tokens` tokens."""
    return max(MOST, MOST_PER_TOKEN * tokens)
