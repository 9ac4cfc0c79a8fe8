"""Confidence of frames: the paper's formulas written out."""

from __future__ import annotations

import math

import pytest
import torch

from hf_ngpulm.search.confidence import MEASURES, frame_confidence


def by_hand(probabilities, measure, alpha=1 / 3):
    """Laptev and Ginsburg 2022, sections 2 and 3."""
    size = len(probabilities)
    if measure == "max_prob":
        return max(probabilities)
    if measure == "gibbs":
        return 1 + sum(p * math.log(p) for p in probabilities if p) / math.log(size)
    powers = sum(p**alpha for p in probabilities)
    if measure == "renyi":
        return 1 - math.log2(powers) / (1 - alpha) / math.log2(size)
    entropy, most = ((total - 1) / (1 - alpha) for total in (powers, size ** (1 - alpha)))
    return (math.exp(-entropy) - math.exp(-most)) / (1 - math.exp(-most))


@pytest.mark.parametrize("measure", MEASURES)
def test_equal_to_the_formulas(measure):
    logits = 3 * torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    logits[0, 0, 2:] = -torch.inf
    found = frame_confidence(logits, measure)
    for row in range(2):
        for frame in range(5):
            expected = by_hand(torch.softmax(logits[row, frame], 0).tolist(), measure)
            assert float(found[row, frame]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_between_uniform_and_certain(measure, dtype):
    certain = torch.full((1, 1, 9), -1e4, dtype=dtype)
    certain[..., 3] = 0.0
    assert float(frame_confidence(certain, measure)) == pytest.approx(1.0)
    least = 1 / 9 if measure == "max_prob" else 0.0
    assert float(frame_confidence(torch.zeros(1, 1, 9, dtype=dtype), measure)) == pytest.approx(least, abs=1e-5)
    assert frame_confidence(torch.zeros(2, 3, 1), measure).tolist() == [[1.0] * 3] * 2
    assert frame_confidence(torch.zeros(2, 0, 9), measure).shape == (2, 0)


def test_an_unknown_measure():
    with pytest.raises(ValueError, match="certain"):
        frame_confidence(torch.zeros(1, 1, 2), "certain")
