"""Compute the confidence of an acoustic model in each frame (Laptev and Ginsburg, "Fast entropy-based methods of word-level
confidence estimation for end-to-end automatic speech recognition", SLT 2022).

All measures are between 0 (all classes equally likely) and 1 (one class certain). They depend only on the acoustic model, not
on language models.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MEASURES = ("max_prob", "gibbs", "tsallis", "renyi")
LEAST = 1e-6
ALPHA = 1 / 3  # the order of the Tsallis and Rényi entropies that the paper recommends


class Calibration(NamedTuple):
    """Turn the confidence of a word into the probability that the word is right, for one confidence measure. The curve is
    logistic:

        log(p / (1 - p)) = slope log(c / (1 - c)) + offset

    Here p is the probability, and c the confidence (Platt, "Probabilistic outputs for support vector machines", 1999).
    `hf_ngpulm.evaluation.tune_confidence` fits the curve to a recogniser. Probabilities can be compared between recognisers and
    between measures, but confidences can't.
    """

    measure: str
    slope: float
    offset: float

    def of(self, confidence: float) -> float:
        """Return the probability for a confidence from 0 to 1."""
        return 1 / (1 + math.exp(-max(-30.0, min(self.slope * logit(confidence) + self.offset, 30.0))))


def logit(confidence: float) -> float:
    """Return the log odds of a confidence. The confidence is first limited to the range from `LEAST` to `1 - LEAST`."""
    kept = min(max(confidence, LEAST), 1 - LEAST)
    return math.log(kept / (1 - kept))


def frame_confidence(logits: Tensor, measure: str = "max_prob") -> Tensor:
    """Return the confidence of each frame, `[B, T, C]` logits -> float32 `[B, T]`.

    Args:
        measure: "max_prob" is the probability of the likeliest class. The other measures normalise an entropy of the frame's
            classes by the entropy of C equally likely classes (the paper's section 3). "gibbs" (Shannon's entropy) and "renyi"
            normalise linearly, "tsallis" normalises exponentially.

    Raises:
        ValueError: the measure is unknown.
    """
    if measure not in MEASURES:
        raise ValueError(f"confidence should be one of {MEASURES}, got {measure!r}")
    classes = logits.shape[-1]
    if not logits.numel():
        return logits.new_zeros(logits.shape[:2], dtype=torch.float32)
    log_probs = torch.log_softmax(logits.detach().float(), dim=-1)
    if measure == "max_prob":
        sums = log_probs.amax(-1).exp()
    elif measure == "gibbs":
        probabilities = log_probs.exp()
        sums = torch.where(probabilities > 0, probabilities * log_probs, 0.0).sum(-1)
    else:
        sums = (ALPHA * log_probs).exp().sum(-1)
    return confidence_of_sums(sums, measure, classes)


def confidence_of_sums(sums: Tensor, measure: str, classes: int) -> Tensor:
    """Return the confidences of frames, in the shape of `sums`.

    Args:
        sums: float32 of any shape, a sum for each frame. Let p be the probabilities of the frame's classes. The sum is the
            largest p ("max_prob"), the sum of p log p ("gibbs"), or the sum of p ** ALPHA ("tsallis" and "renyi").
        measure: one of `MEASURES`.
        classes: number of classes.
    """
    if measure == "max_prob":
        return sums
    if classes == 1:
        return torch.ones_like(sums)
    if measure == "gibbs":
        return (1 + sums / math.log(classes)).clamp(0, 1)
    if measure == "renyi":
        return (1 - sums.log() / (1 - ALPHA) / math.log(classes)).clamp(0, 1)
    entropy = (sums - 1) / (1 - ALPHA)
    least = math.exp(-(classes ** (1 - ALPHA) - 1) / (1 - ALPHA))
    return (((-entropy).exp() - least) / (1 - least)).clamp(0, 1)
