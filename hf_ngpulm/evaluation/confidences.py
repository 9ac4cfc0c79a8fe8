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
    """Describe the words with confidences between two bounds."""

    low: float  # bounds of the bin
    high: float
    words: int  # number of words in the bin
    confidence: float  # mean confidence of these words
    right: float  # share of correct words


@dataclass(frozen=True)
class ConfidenceTuning:
    """Hold the result of `tune_confidence`.

    Args:
        model: the recogniser.
        calibration: the fitted calibration, a value for `confidence=` of pipelines and decoders.
        before: expected calibration error of the uncalibrated measure.
        after: expected calibration error of calibrated confidences, measured by two-fold cross-validation. A calibration is
            fitted to one half of the utterances, and applied to the other half.
        bins: the words of the cross-validation, in bins of equal width by confidence.
        words: number of words in the hypotheses.
        right: number of correct words in the hypotheses.
        unreadable: ids of recordings that couldn't be read.
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
        """Write the calibration to a file. Calibrations of other recognisers in the file stay."""
        save_of_model(path, NAME, KINDS, self.model, self.calibration._asdict())

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary of plain values."""
        bins = [each._asdict() for each in self.bins]
        return {**vars(self), "model": self.model.name, "calibration": self.calibration._asdict(), "bins": bins}


def tune_confidence(
    asr: Any,
    recordings: Sequence[Recording],
    measure: str = "max_prob",
    *,
    normalise: Normalisation = None,
    batch_size: int = 8,
    report: Callable[[str], None] | None = None,
) -> ConfidenceTuning:
    """Calibrate a recogniser's word confidences. After calibration, about 80% of the words with the confidence 0.8 are correct.

        tuning = tune_confidence(asr, read_recordings("dev.jsonl"))
        tuning.save("calibration.json")
        asr = pipeline(..., confidence="calibration.json")

    Args:
        asr: a speech recognition pipeline. The pipeline's language models, phrases and search are used.
        recordings: speech with transcripts.
        measure: name of the confidence measure to calibrate, see `hf_ngpulm.search.confidence`.
        normalise: see `word_errors`.
        batch_size: number of recordings in a batch of the model.
        report: called with a line about each unreadable recording.

    Raises:
        ValueError: no recording can be scored, all words are correct, or all words are wrong.
    """
    check("measure", measure, one_of(*MEASURES))
    scored = evaluate(asr, list(recordings), batch_size=batch_size, normalise=normalise, report=report, confidence=measure)
    assert scored is not None  # there is one process
    confidences, right, numbers = judged_words(scored.utterances, scored.normalise)
    if not len(right):
        raise ValueError("no word was recognised in the recordings with transcripts")
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
        tuple(each.id for each in scored.unreadable),
    )  # fmt: skip


def _bins(confidences: np.ndarray, right: np.ndarray) -> list[ConfidenceBin]:
    places = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
    return [
        ConfidenceBin(n / BINS, (n + 1) / BINS, int(own.sum()), float(confidences[own].mean()), float(right[own].mean()))
        for n in range(BINS)
        if (own := places == n).any()
    ]
