"""Define the thresholds of a second look at phrases (see `hf_ngpulm.decoding.second_look`), and keep them in files.

`hf_ngpulm.evaluation.tune_phrases` fits thresholds to a recogniser. A file has those of one or more recognisers:

    {"thresholds": [
      {"model": "nvidia/parakeet-ctc-0.6b", "model_type": "parakeet_ctc", "model_fingerprint": "5b1e...",
       "offset": 4.6, "slope": 1.8, "per_list": 1.2, "per_token": 2.6}
    ]}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..common.checks import NAME, check_entries, number
from ..common.files import write_beside
from ..config.tuned import MOST_ENTRIES, ModelIdentity
from ..errors import NGramFormatError


class Thresholds(NamedTuple):
    """Hold the numbers of a threshold (natural log); see `hf_ngpulm.decoding.second_look`."""

    offset: float
    slope: float
    per_list: float
    per_token: float

    def of(self, rate: float, size: int, tokens: Any) -> Any:
        """Return the threshold of a phrase. `size`: phrases in the list; `tokens`: tokens of the phrase, or of each phrase."""
        return self.offset - self.slope * math.log(rate) + self.per_list * math.log(max(size, 1)) - self.per_token * tokens

    def fitted(self, false_alarms: Sequence[tuple[float, int, int]], hours: float) -> Thresholds:
        """Return a copy with an offset and a slope for other speech.

        In the tail that matters, false alarms become rarer exponentially as the threshold rises; a tenth of them is the tail.

        Args:
            false_alarms: ratio, size of the list, and tokens of each phrase that a search found and nobody said.
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


# Fitted to a CTC model on real speech (docs/phrases.md), for transducers to an earlier search of the same model.
THRESHOLDS = {
    "ctc": Thresholds(4.6, 1.8, 1.2, 2.6),
    "transducer": Thresholds(-1.4, 2.5, 2.2, 2.6),
    "attention": Thresholds(4.6, 1.8, 1.2, 2.6),
}


_NAMES = ("model", "model_type", "model_fingerprint")
_KINDS = {**dict.fromkeys(_NAMES, NAME), **dict.fromkeys(Thresholds._fields, number(-1e6, 1e6))}


def read_thresholds(path: str | os.PathLike[str]) -> list[tuple[ModelIdentity, Thresholds]]:
    """Return the recognisers of a file, and their thresholds.

    Raises:
        NGramFormatError: the file isn't one of thresholds.
    """
    try:
        entries = json.loads(Path(path).read_bytes())["thresholds"]
        found = [(entry, entry.keys() == _KINDS.keys()) for entry in entries]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        found = [({}, False)]
    if len(found) > MOST_ENTRIES or not all(is_whole for _, is_whole in found):
        raise NGramFormatError(
            f"{path}: isn't a file of thresholds of phrases; hf-ngpulm tune MODEL DATA --phrases LIST --save-to FILE writes one"
        )
    for entry, _ in found:
        check_entries(entry, _KINDS, str(path), "thresholds: ")
    return [
        (ModelIdentity(*(entry[name] for name in _NAMES)), Thresholds(*(float(entry[name]) for name in Thresholds._fields)))
        for entry, _ in found
    ]


def save_thresholds(path: str | os.PathLike[str], model: ModelIdentity, thresholds: Thresholds) -> None:
    """Write a recogniser's thresholds to a file, in which those of other recognisers stay.

    Raises:
        NGramFormatError: there is a file of that name, but it isn't one of thresholds.
    """
    others = read_thresholds(path) if os.path.exists(path) else []
    kept = [*(pair for pair in others if not pair[0].is_same(model)), (model, thresholds)][-MOST_ENTRIES:]
    entries = [
        {**dict(zip(_NAMES, (each.name, each.model_type, each.fingerprint))), **numbers._asdict()} for each, numbers in kept
    ]
    with write_beside(path) as beside:
        beside.write_text(json.dumps({"thresholds": entries}, indent=1) + "\n", encoding="utf-8")


def thresholds_for(model: Any, given: Any) -> Thresholds | None:
    """Return the thresholds of a recogniser. `given`: thresholds, the path of a file, or None for none.

    Raises:
        ValueError: the file has none for this recogniser.
    """
    if given is None or isinstance(given, Thresholds):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"thresholds should be hf_ngpulm.decoding.thresholds.Thresholds or the path of a file, got {given!r}")
    found, own = read_thresholds(given), ModelIdentity.of(model)
    fitting = [thresholds for each, thresholds in found if each.is_same(own)]
    if not fitting:
        names = ", ".join(each.name for each, _ in found)
        raise ValueError(
            f"{os.fspath(given)}: has thresholds for {names}, none for {own.name}; find them with "
            f"hf-ngpulm tune {own.name} DATA --phrases LIST --false-alarms-per-hour 1 --save-to {os.fspath(given)}"
        )
    return fitting[-1]
