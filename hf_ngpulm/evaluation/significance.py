"""Compute bootstrap confidence intervals of an error rate, and of the difference between two error rates.

Each draw selects N of the N utterances, with replacement (Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR
performance evaluation", ICASSP 2004). Errors within an utterance may depend on each other. Errors of different utterances are
assumed to be independent. If a draw has no reference word (for the entity WER: no word of an entity), it has no rate, and is
left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..common.checks import check, whole
from .counts import ErrorCounts

NUMBERS_AT_ONCE = 1 << 20  # utterances drawn at a time


@dataclass(frozen=True)
class Interval:
    """Hold a rate and its confidence interval.

    Args:
        rate: the rate of all utterances.
        low, high: bounds of the interval.
        level: confidence level. In repeated experiments, this share of the intervals contains the true rate.
    """

    rate: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Comparison:
    """Compare recognisers A and B on the same utterances.

    Args:
        difference: A's rate minus B's rate. The difference is negative if A has fewer errors.
        low, high, level: bounds and level of the difference's confidence interval.
        p_value: a one-sided p-value. A low p-value means that A is better. The p-value equals (1 + draws in which A has at
            least as many errors as B) / (1 + draws). 1 minus the p-value is Bisani and Ney's probability of improvement.
    """

    difference: float
    low: float
    high: float
    level: float
    p_value: float


def bootstrap(counts: ErrorCounts, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Return the confidence interval of an error rate. The bounds are quantiles of the draws' rates.

    Args:
        counts: a result of `word_errors` or `character_errors`. For entities, the field `entities` or `others` in a result of
            `entity_errors`.
        level: confidence level, between 0 and 1.
        resamples: number of draws.
        seed: seed of the random numbers. The same seed gives the same interval.

    Raises:
        ValueError: `counts` has no utterances or no words, or `level` or `resamples` is out of range.
    """
    table = _table("counts", counts)
    drawn = _drawn(table, resamples, seed)
    return Interval(counts.rate, *_quantiles(drawn[:, 0] / drawn[:, 1], level), level)


def paired_significance(
    a: ErrorCounts, b: ErrorCounts, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Comparison:
    """Compare the error rates of A and B. Each draw selects the same utterances for both recognisers.

    Args:
        a, b: counts of two recognisers on the same utterances in the same order. For all arguments see `bootstrap`.

    Raises:
        ValueError: as for `bootstrap`. Or the utterances of `a` and `b` differ in number or length.
    """
    table, other = _table("a", a), _table("b", b)
    if len(table) != len(other):
        raise ValueError(f"a and b should be of the same utterances, got {len(table)} and {len(other)} utterances")
    different = np.flatnonzero(table[:, 1] != other[:, 1])
    if len(different):
        lengths = [int(counts[different[0], 1]) for counts in (table, other)]
        raise ValueError(
            f"a and b should be of the same utterances, but number {different[0]} has {lengths[0]} units (words or characters)"
            f" in a and {lengths[1]} in b; use the same references, order and normalisation"
        )
    drawn = _drawn(np.column_stack([table, other[:, 0]]), resamples, seed)
    low, high = _quantiles((drawn[:, 0] - drawn[:, 2]) / drawn[:, 1], level)
    p_value = (1 + int((drawn[:, 0] >= drawn[:, 2]).sum())) / (1 + len(drawn))
    return Comparison(a.rate - b.rate, low, high, level, p_value)


def _table(name: str, counts: ErrorCounts) -> np.ndarray:
    """Return the errors and the length of each utterance, int64 `[utterances, 2]`. `name`: argument's name, for messages."""
    if not counts.utterances:
        raise ValueError(f"{name} should be counts of several utterances, got {counts!r} of a single one")
    table = np.array([(each.errors, each.length) for each in counts.utterances], dtype=np.int64)
    if not table[:, 1].any():
        raise ValueError(f"{name} has no words in its references, so there is no error rate")
    return table


def highest_mean(count: int) -> float:
    """Return the one-sided 95% upper bound of a Poisson distribution's mean, after `count` events were observed."""
    mean = float(count)
    while _poisson(count, mean) > 0.05:
        mean += 0.01 * max(count, 1)
    return mean


def _poisson(count: int, mean: float) -> float:
    """Return the probability of at most `count` events under a Poisson distribution with the given mean."""
    return sum(math.exp(-mean + each * math.log(mean) - math.lgamma(each + 1)) for each in range(count + 1)) if mean else 1.0


def _drawn(table: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Draw rows of `table`, and sum the rows of each draw. Return the sums, int64 `[draws, columns]`. If a draw's sum of
    the second column is 0, the draw is left out.
    """
    check("resamples", resamples, whole())
    random = np.random.default_rng(seed)
    at_once = max(1, NUMBERS_AT_ONCE // len(table))
    sums = []
    for first in range(0, resamples, at_once):
        numbers = random.integers(len(table), size=(min(at_once, resamples - first), len(table)))
        sums.append(np.stack([column[numbers].sum(1) for column in table.T], axis=1))
    drawn = np.concatenate(sums)
    drawn = drawn[drawn[:, 1] > 0]
    if not len(drawn):
        raise ValueError(f"none of {resamples} draws has a word in its references; use more resamples")
    return drawn


def _quantiles(rates: np.ndarray, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level should lie between 0 and 1, as in 0.95, got {level!r}")
    low, high = np.quantile(rates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
