"""Convert a decoder's hypotheses to a pipeline's results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..decoding.hypotheses import Hypothesis
from ..decoding.second_look import PhraseDecoder
from ..decoding.understanding import GrammarDecoder


def result_of(decoder: Any, hypotheses: Sequence[Any], timestamps: str | None) -> dict[str, Any]:
    """Return a recording's result in the stock pipeline's format, with this package's additional entries.

    Args:
        decoder: the decoder that made the hypotheses.
        hypotheses: the recording's hypotheses, best first; with a `GrammarDecoder`, its understandings.
        timestamps: "word", "char", or None for no times, as for the pipeline.
    """
    if isinstance(decoder, GrammarDecoder):
        return {**_shown(hypotheses[0].hypothesis, timestamps, True), **hypotheses[0].as_dict()}
    with_confidence = decoder.options.confidence is not None
    result = _shown(hypotheses[0], timestamps, with_confidence)
    if isinstance(decoder, PhraseDecoder) and decoder.explain:
        result["phrases"] = [report.as_dict() for report in hypotheses[0].phrases]
    if decoder.options.num_return_sequences > 1:
        result["hypotheses"] = [{**_shown(h, timestamps, with_confidence), "score": h.score} for h in hypotheses]
    return result


def _shown(hypothesis: Hypothesis, timestamps: str | None, with_confidence: bool) -> dict[str, Any]:
    """Return a hypothesis in the stock pipeline's format."""
    result: dict[str, Any] = {"text": hypothesis.text}
    if timestamps:
        result["chunks"] = [
            {"text": word.text, "timestamp": (word.start, word.end)}
            | ({"confidence": word.confidence} if with_confidence else {})
            for word in (hypothesis.words if timestamps == "word" else hypothesis.characters)
        ]
    return result
