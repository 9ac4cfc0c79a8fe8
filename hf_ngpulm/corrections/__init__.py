"""Learn from corrections: phrases, their mishearings, and a small language model, from pairs of what was heard and meant."""

from .lessons import learned_phrases, mined_aliases
from .log import Correction, CorrectionLog

__all__ = ["Correction", "CorrectionLog", "learned_phrases", "mined_aliases"]
