"""Tune weights. The modules search for values (`grids`), read data (`dataset`), decode (`sweeps`), and hold `results`."""

from .grids import Grids
from .results import TuningPoint, TuningResult
from .tune import tune_weights

__all__ = ["Grids", "TuningPoint", "TuningResult", "tune_weights"]
