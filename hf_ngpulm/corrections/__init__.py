"""Learn phrases, the phrases' mishearings and a small language model from users' corrections of transcripts."""

from .lessons import learned_phrases, mined_aliases
from .log import Correction, CorrectionLog

__all__ = ["Correction", "CorrectionLog", "learned_phrases", "mined_aliases"]
