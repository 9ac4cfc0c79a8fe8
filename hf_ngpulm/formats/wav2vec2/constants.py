"""Define pyctcdecode's default settings under the same names."""

from __future__ import annotations

import math

DEFAULT_ALPHA = 0.5
DEFAULT_BETA = 1.5
DEFAULT_UNK_LOGP_OFFSET = -10.0
DEFAULT_BEAM_WIDTH = 100
DEFAULT_HOTWORD_WEIGHT = 10.0
DEFAULT_PRUNE_LOGP = -10.0
DEFAULT_PRUNE_BEAMS = False
DEFAULT_MIN_TOKEN_LOGP = -5.0
DEFAULT_SCORE_LM_BOUNDARY = True

AVG_TOKEN_LEN = 6  # number of characters of an average word
MIN_TOKEN_CLIP_P = 1e-15  # lower bound of a class's probability
LOG_BASE_CHANGE_FACTOR = math.log(10)  # KenLM's logarithms are to base 10
