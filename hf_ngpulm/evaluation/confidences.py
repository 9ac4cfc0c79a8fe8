"""Calibrate the confidences of a recogniser's words."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..common.checks import check, one_of
from ..config.of_models import save_of_model
from ..config.tuned import ModelIdentity
from ..decoding.calibration import KINDS, NAME
from ..search.confidence import MEASURES, Calibration
from .calibration import BINS, calibration_error, fitted_calibration, judged_words
from .counts import Normalisation
from .evaluating import evaluate
from .recordings import Recording


class ConfidenceBin(NamedTuple):
    """Hold words with similar confidences: the lowest and the highest confidence of the bin, their number, their mean
    confidence, and the share of them that is right.
    """

    low: float
    high: float
    words: int
    confidence: float
    right: float


@dataclass(frozen=True)
class ConfidenceTuning:
    """Hold what `tune_confidence` found.

    Args:
        model: the recogniser.
        calibration: for `confidence=` of pipelines and decoders.
        before, after: expected calibration error of the measure itself, and of calibrated confidences. The latter is of words
            of each half of the utterances, by a calibration of the other half.
        bins: calibrated confidences of the same words, in bins of equal width.
        words, right: number of words that were heard, and of those of them that are right.
        unreadable: recordings that couldn't be read.
    """

    model: ModelIdentity
    calibration: Calibration
    before: float
    after: float
    bins: tuple[ConfidenceBin, ...]
    words: int
    right: int
    unreadable: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibration to a file, in which those of other recognisers stay."""
        save_of_model(path, NAME, KINDS, self.model, self.calibration._asdict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        told = {"model": self.model.name, "calibration": self.calibration._asdict()}
        return {**vars(self), **told, "bins": [each._asdict() for each in self.bins]}


def tune_confidence(
    asr: Any,
    recordings: Sequence[Recording],
    measure: str = "max_prob",
    *,
    normalise: Normalisation = None,
    batch_size: int = 8,
    report: Callable[[str], None] | None = None,
) -> ConfidenceTuning:
    """Calibrate the confidences of a recogniser's words, so that of words with a confidence of 0.8, 80% are right.

        tuning = tune_confidence(asr, read_recordings("dev.jsonl"))
        tuning.save("calibration.json")
        asr = pipeline(..., confidence="calibration.json")

    Args:
        asr: a speech recognition pipeline; its language models, phrases and search are used.
        recordings: speech with transcripts.
        measure: the measure that is calibrated, see `hf_ngpulm.search.confidence`.
        normalise: as for `word_errors`.
        batch_size: recordings that the model is given together.
        report: is told of recordings that can't be read.

    Raises:
        ValueError: no recording can be scored; or no word is right, or none is wrong.
    """
    check("measure", measure, one_of(*MEASURES))
    found = evaluate(asr, list(recordings), batch_size=batch_size, normalise=normalise, report=report, confidence=measure)
    assert found is not None  # there is one process
    confidences, right, numbers = judged_words(found.utterances, found.normalise)
    if not len(right):
        raise ValueError("no word was heard in recordings with transcripts")
    calibration = fitted_calibration(confidences, right, measure)
    calibrated, halves = np.zeros(len(right)), numbers % 2 == 0
    for half in (halves, ~halves):
        of_other = calibration
        if right[~half].any() and not right[~half].all():
            of_other = fitted_calibration(confidences[~half], right[~half], measure)
        calibrated[half] = [of_other.of(each) for each in confidences[half]]
    before, after = (calibration_error(each, right) for each in (confidences, calibrated))
    return ConfidenceTuning(
        ModelIdentity.of(asr.model), calibration, before, after, tuple(_bins(calibrated, right)), len(right), int(right.sum()),
        tuple(each.id for each in found.unreadable),
    )  # fmt: skip


def _bins(confidences: np.ndarray, right: np.ndarray) -> list[ConfidenceBin]:
    places = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
    return [
        ConfidenceBin(n / BINS, (n + 1) / BINS, int(own.sum()), float(confidences[own].mean()), float(right[own].mean()))
        for n in range(BINS)
        if (own := places == n).any()
    ]
