"""Tuning of weights: what is tried (`grids`), on what (`utterances`), how it is decoded (`sweeps`), and what comes out."""

from .results import TuningPoint, TuningResult
from .tune import tune_weights

__all__ = ["TuningPoint", "TuningResult", "tune_weights"]
