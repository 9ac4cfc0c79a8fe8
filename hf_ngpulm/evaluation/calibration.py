"""Measure and fit the calibration of word confidences.

Words are divided by confidence into `BINS` bins of equal width. A bin's error is the distance between its mean confidence and
its share of correct words. The expected calibration error is the mean of these errors, weighted by the number of words (Guo et
al., "On calibration of modern neural networks", ICML 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..common.extras import needed
from ..search.confidence import Calibration, logit
from ..text.normalisation import normaliser

BINS = 10
_PRIOR = 1e-3  # weight of the squared slope and offset; without this penalty, separable data has no solution
_STEPS = 50


def judged_words(utterances: Sequence[Any], normalise: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare the words of scored utterances with the transcripts.

    A word is correct if the alignment with the fewest errors matches the word with an equal word of the transcript.

    Args:
        utterances: utterances of an `Evaluation`. Only scored utterances with confidences count.
        normalise: see `word_errors`. If normalisation removes a word, the word is left out. If normalisation splits a word into
            several words, the word is correct if these words are all correct.

    Returns:
        Three arrays `[words]`. The first has each word's confidence, float64. The second says whether the word is correct,
        bool. The third has the index of the word's utterance, int64.
    """
    clean = normaliser(normalise)
    confidences: list[float] = []
    right: list[bool] = []
    numbers: list[int] = []
    for number, utterance in enumerate(utterances):
        if not utterance.scored or not utterance.confidences:
            continue
        words = [(clean(text).split(), confidence) for text, confidence in utterance.confidences]
        words = [(parts, confidence) for parts, confidence in words if parts]
        are_right = _aligned(clean(utterance.reference).split(), [part for parts, _ in words for part in parts])
        place = 0
        for parts, confidence in words:
            confidences.append(confidence)
            right.append(all(are_right[place : place + len(parts)]))
            numbers.append(number)
            place += len(parts)
    return np.array(confidences, dtype=np.float64), np.array(right, dtype=bool), np.array(numbers, dtype=np.int64)


def _aligned(said: list[str], heard: list[str]) -> list[bool]:
    """Return for each word of the hypothesis (`heard`) whether the alignment matches it with an equal word of the transcript
    (`said`).
    """
    if not said or not heard:
        return [False] * len(heard)
    with needed("eval", "error rates"):
        import jiwer
    matched = [False] * len(heard)
    for chunk in jiwer.process_words(" ".join(said), " ".join(heard)).alignments[0]:
        if chunk.type == "equal":
            matched[chunk.hyp_start_idx : chunk.hyp_end_idx] = [True] * (chunk.hyp_end_idx - chunk.hyp_start_idx)
    return matched


def calibration_error(confidences: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error of one or more words, from 0 to 1. `judged_words` returns the arguments."""
    bins = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
    sums = [np.bincount(bins, weights, BINS) for weights in (confidences, right.astype(np.float64))]
    return float(np.abs(sums[0] - sums[1]).sum() / len(right))


def fitted_calibration(confidences: np.ndarray, right: np.ndarray, measure: str) -> Calibration:
    """Fit the slope and offset of a calibration by logistic regression on correct and wrong words (Newton's method).

    Args:
        confidences, right: the first two results of `judged_words`.
        measure: name of the confidence measure. The calibration stores it.

    Raises:
        ValueError: all words are right, or all are wrong.
    """
    if right.all() or not right.any():
        raise ValueError(f"{int(right.sum())} of {len(right)} words are right; calibration needs both right and wrong words")
    inputs = np.stack([[logit(each) for each in confidences], np.ones(len(right))], axis=1)
    weights = np.zeros(2)
    for _ in range(_STEPS):
        likely = 1 / (1 + np.exp(-np.clip(inputs @ weights, -50, 50)))
        gradient = inputs.T @ (right - likely) - _PRIOR * weights
        curvature = (inputs * (likely * (1 - likely))[:, None]).T @ inputs + _PRIOR * np.eye(2)
        weights += np.linalg.solve(curvature, gradient)
    return Calibration(measure, float(weights[0]), float(weights[1]))
