"""Rerank n-best lists with the scores of a causal language model (see `hf_ngpulm.rescoring`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from .hypotheses import Hypothesis

RESCORER_WEIGHT = 0.3
EVERY_WORD = "word"
N_BEST = 8  # of `num_beams="auto"` with a rescorer

Weight = float | Tensor


def rescored(
    n_best: Sequence[Sequence[Hypothesis]], rescorer: Any, weight: Weight, word_bonus: Weight,
    rank: Callable[[Hypothesis], float], history: Sequence[Sequence[str]] | None = None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Return n-best lists with the rescorer's scores, the best hypothesis first; equal ones keep their order.

    `Decoder.rescore` documents the arguments. `rank` is the decoder's own order of hypotheses, the highest value first.

    Raises:
        ValueError: hypotheses have been rescored already, or a tensor of weights has another length than the lists.
    """
    if any(hypothesis.rescorer_score is not None for of_row in n_best for hypothesis in of_row):
        raise ValueError("these hypotheses have been rescored already; pass those of a decoder without rescorer=")
    weights, bonuses = (per_row(name, each, len(n_best)) for name, each in (("weight", weight), ("word_bonus", word_bonus)))
    scores = rescorer.scores([[hypothesis.text for hypothesis in of_row] for of_row in n_best], history)
    return [
        sorted((_with(each, score, *of_row) for each, score in zip(hypotheses, found)), key=rank, reverse=True)
        for hypotheses, found, *of_row in zip(n_best, scores, weights, bonuses)
    ]


def _with(hypothesis: Hypothesis, score: float, weight: float, word_bonus: float) -> Hypothesis:
    added = weight * score + word_bonus * len(hypothesis.text.split())
    return replace(hypothesis, score=hypothesis.score + added, rescorer_score=score)


def per_row(name: str, value: Weight, rows: int) -> list[float]:
    if not isinstance(value, Tensor):
        return [float(value)] * rows
    if len(value) != rows:
        raise ValueError(f"{name} has {len(value)} values, one per row, but there are {rows} rows")
    return value.tolist()
