"""Tune weights: the search for values (`grids`), the data (`dataset`), the decoding (`sweeps`), and the `results`."""

from .results import TuningPoint, TuningResult
from .tune import tune_weights

__all__ = ["TuningPoint", "TuningResult", "tune_weights"]
