"""Find the calibration of a recogniser's confidences in a file."""

from __future__ import annotations

import os
from typing import Any

from ..common.checks import number, one_of
from ..config.of_models import found_for
from ..search.confidence import MEASURES, Calibration

NAME = "confidence"
KINDS = {"measure": one_of(*MEASURES), "slope": number(-1e3, 1e3), "offset": number(-1e3, 1e3)}


def confidence_for(model: Any, given: Any) -> Any:
    """Return the value of a decoder's option `confidence` for a recogniser.

    Args:
        given: a measure, a `Calibration`, None, or the path of a file that `hf-ngpulm tune --word-confidence` has written.

    Raises:
        ValueError: the file has no calibration for this recogniser, or there is no such file.
    """
    if given in MEASURES or not isinstance(given, str | os.PathLike):
        return given
    if not os.path.isfile(given):
        raise ValueError(f"confidence should be one of {MEASURES}, a Calibration or a file of one; there is no file {given!r}")
    return Calibration(**found_for(given, NAME, KINDS, model))
