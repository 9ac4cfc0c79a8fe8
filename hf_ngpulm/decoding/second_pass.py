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
    """Return n-best lists with the rescorer's scores, the best hypothesis first; equal hypotheses keep their order.

    `Decoder.rescore` documents the arguments. `rank` is the decoder's own order of hypotheses, the highest value first.

    Raises:
        ValueError: hypotheses have been rescored already, or a tensor of weights has another length than the lists.
    """
    if any(hypothesis.rescorer_score is not None for of_row in n_best for hypothesis in of_row):
        raise ValueError("these hypotheses have been rescored already; pass those of a decoder without rescorer=")
    texts = [[hypothesis.text for hypothesis in of_row] for of_row in n_best]
    scores = rescorer.scores(texts, history)
    added = what_is_added(texts, scores, weight, word_bonus)
    changed = [
        [replace(each, score=each.score + more, rescorer_score=score) for each, score, more in zip(*of_row)]
        for of_row in zip(n_best, scores, added)
    ]
    return [sorted(of_row, key=rank, reverse=True) for of_row in changed]


def what_is_added(
    texts: Sequence[Sequence[str]], scores: Sequence[Sequence[float]], weight: Weight, word_bonus: Weight
) -> list[list[float]]:
    """Return the number to add to each text's score: the rescorer's weighted score (`scores`) plus the bonuses for words."""
    weights, bonuses = (per_row(name, each, len(texts)) for name, each in (("weight", weight), ("word_bonus", word_bonus)))
    return [
        [of_row * score + bonus * len(text.split()) for text, score in zip(*both)]
        for *both, of_row, bonus in zip(texts, scores, weights, bonuses)
    ]


def share_of(scores: Sequence[float | None], counts: Sequence[int], weight: float, word_bonus: float) -> list[float]:
    """Return the value that the rescorer adds to the score of each hypothesis during the search (delayed fusion).

    Each complete word lowers the rescorer's score, so hypotheses with more complete words would seem worse. For a fair
    comparison, the average score of the utterance's words is subtracted for each word. Unscored hypotheses get the average.

    Args:
        scores: the rescorer's scores of the complete words; None for a hypothesis that the rescorer hasn't read.
        counts: the number of complete words in each hypothesis.
    """
    known = [(score, count) for score, count in zip(scores, counts) if score is not None]
    average = sum(score for score, _ in known) / max(1, sum(count for _, count in known))
    above = [0.0 if score is None else score - average * count for score, count in zip(scores, counts)]
    return [weight * score + word_bonus * count for score, count in zip(above, counts)]


def per_row(name: str, value: Weight, rows: int) -> list[float]:
    if not isinstance(value, Tensor):
        return [float(value)] * rows
    if len(value) != rows:
        raise ValueError(f"{name} has {len(value)} values, one per row, but there are {rows} rows")
    return value.tolist()
