"""Tune weights. `grids` searches for values, `dataset` reads data, `sweeps` decodes, and `results` defines the results."""

from .grids import Grids
from .results import TuningPoint, TuningResult
from .tune import tune_weights

__all__ = ["Grids", "TuningPoint", "TuningResult", "tune_weights"]
