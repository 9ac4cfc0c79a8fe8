"""Tune weights: the search for values (`grids`), the data (`dataset`), the decoding (`sweeps`), and the `results`."""

from .grids import Grids
from .results import TuningPoint, TuningResult
from .tune import tune_weights

__all__ = ["Grids", "TuningPoint", "TuningResult", "tune_weights"]
