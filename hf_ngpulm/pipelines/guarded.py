"""Decode recordings of encoder-decoders without a language model that doesn't fit them (see `hf_ngpulm.decoding.guard`).

An LM of other speech leads to transcripts that the decoder itself finds improbable. So with `lm_guard="auto"` recordings with
an improbable transcript are decoded again without the LM. The new transcript is kept if the decoder alone gives it a higher
log-probability: by more than `MOST` nats, and by more than `MOST_PER_TOKEN` nats per token of the first transcript. If
`lm_guard` is a number, it is the least evidence of an LM, in nats per token, as for other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding import guard
from ..generation import NGramLogitsProcessor
from ..generation.forced import forced_scores
from ..text.words import WordSplitter

MOST, MOST_PER_TOKEN = 8.0, 0.5  # chosen on train speakers of speechocean762 and AN4 (docs/attention.md)


def lms_of(processor: NGramLogitsProcessor, count: int) -> list[Any]:
    """Return the language model for each of `count` recordings; None for a recording without one, or with the weight 0."""
    fusion = processor.fusion
    models = [fusion.of_all] * count if fusion.per_row is None else fusion.per_row
    weights = fusion.weight.tolist() if isinstance(fusion.weight, Tensor) else [fusion.weight] * count
    return [lm if weight != 0 else None for lm, weight in zip(models, weights, strict=True)]


def without_lms(processor: NGramLogitsProcessor) -> NGramLogitsProcessor:
    """Return a copy in which the language models and the scores that are subtracted for them have the weight 0."""
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


class OwnScores:
    """Scores transcripts and their ends with the decoder alone (teacher forcing).

    Args:
        model: the encoder-decoder.
        outputs: the encoder's outputs for the batch.
        attention_mask: mask of the encoder's inputs.
        prompts: for each recording, the tokens before its transcript.
        end: the token that ends a transcript.
        splitter: the splitter that distinguishes text from special tokens.
    """

    def __init__(
        self, model: Any, outputs: Any, attention_mask: Tensor | None, prompts: list[list[int]], end: int,
        splitter: WordSplitter,
    ) -> None:  # fmt: skip
        self.model, self.outputs, self.mask = model, outputs, attention_mask
        self.prompts, self.end, self.splitter = prompts, end, splitter

    def outputs_of(self, rows: Sequence[int]) -> Any:
        """Return the encoder's outputs for some recordings."""
        return type(self.outputs)(**{name: value[list(rows)] for name, value in self.outputs.items()})

    def __call__(self, tokens: Tensor, rows: Sequence[int]) -> list[tuple[float, int]]:
        """Return the log-probability (natural log) and the number of text tokens of each transcript.

        Args:
            tokens: the transcripts, int64 `[N, L]`.
            rows: the recording of each transcript.
        """
        texts = [[token for token in row if token not in self.splitter.special] for row in tokens.tolist()]
        ended = [[*text, self.end] for text in texts]
        scores = forced_scores(self.model, self.outputs, self.mask, self.prompts, ended, rows)
        return list(zip(scores, map(len, texts)))


def limit(tokens: int) -> float:
    """Return the most log-probability (natural log) that a language model may cost a transcript of `tokens` tokens."""
    return max(MOST, MOST_PER_TOKEN * tokens)
