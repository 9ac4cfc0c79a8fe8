"""Define the thresholds of a second look at phrases (see `hf_ngpulm.decoding.second_look`).

`hf_ngpulm.evaluation.tune_phrases` fits the thresholds to a recogniser.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..common.checks import number
from ..config.of_models import found_for


class Thresholds(NamedTuple):
    """Hold the four numbers that determine thresholds (natural log); see `hf_ngpulm.decoding.second_look`."""

    offset: float
    slope: float
    per_list: float
    per_token: float

    def of(self, rate: float, size: int, tokens: Any) -> Any:
        """Return a phrase's threshold. `rate`: accepted false alarms per hour. `size`: number of phrases in the list. `tokens`:
        number of tokens of the phrase, or an array for several phrases.
        """
        return self.offset - self.slope * math.log(rate) + self.per_list * math.log(max(size, 1)) - self.per_token * tokens

    def fitted(self, false_alarms: Sequence[tuple[float, int, int]], hours: float) -> Thresholds:
        """Return a copy with the offset and slope fitted to false alarms.

        Only the tenth of the false alarms with the highest ratios is used. False alarms are assumed to become exponentially
        rarer as the threshold rises above these ratios.

        Args:
            false_alarms: for each false alarm the ratio, the list's size, and the phrase's number of tokens. A false alarm is a
                phrase that a search found but nobody said.
            hours: hours of the speech that was searched, counted once for each list.

        Raises:
            ValueError: there are fewer than 10 false alarms.
        """
        if len(false_alarms) < 10:
            raise ValueError(
                f"{len(false_alarms)} false alarms are too few to fit thresholds to, 10 are needed; take more speech, a longer "
                "list of phrases, or a higher phrase_weight"
            )
        bare = self._replace(offset=0.0, slope=0.0)
        margins = sorted((ratio - bare.of(1.0, size, tokens) for ratio, size, tokens in false_alarms), reverse=True)
        tail = margins[: max(10, len(margins) // 10)]
        slope = sum(tail) / len(tail) - tail[-1]
        # In the tail, rate = (len(tail) / hours) exp((tail[-1] - threshold) / slope).
        return self._replace(offset=tail[-1] + slope * math.log(len(tail) / hours), slope=slope)


# The keys are families or types of models. "ctc" was fitted to a CTC model on real speech (docs/phrases.md), "transducer" to an
# earlier search of the same model, "attention" to whisper-tiny.en on real speech, and "canary" to the bundled Canary. For the
# last two, the ratio of a false alarm doesn't grow with the number of its tokens, so the fourth number is 0.
THRESHOLDS = {
    "ctc": Thresholds(4.6, 1.8, 1.2, 2.6),
    "transducer": Thresholds(-1.4, 2.5, 2.2, 2.6),
    "attention": Thresholds(-8.0, 1.0, 1.2, 0.0),
    "canary": Thresholds(-9.8, 1.2, 1.2, 0.0),
}


NAME = "thresholds"
KINDS = dict.fromkeys(Thresholds._fields, number(-1e6, 1e6))


def thresholds_for(model: Any, given: Any) -> Thresholds | None:
    """Return the thresholds of a recogniser. `given`: thresholds, a file's path (see `hf_ngpulm.config.of_models`), or None.

    Raises:
        ValueError: the file has no thresholds for this recogniser.
    """
    if given is None or isinstance(given, Thresholds):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"thresholds should be hf_ngpulm.decoding.thresholds.Thresholds or the path of a file, got {given!r}")
    return Thresholds(**found_for(given, NAME, KINDS, model))
