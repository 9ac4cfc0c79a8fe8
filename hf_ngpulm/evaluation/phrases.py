"""Find the thresholds at which a second look at phrases lets few in that nobody said.

All phrases that a recogniser proposes in ordinary speech are weighed once (see `hf_ngpulm.decoding.second_look`). Those that
the transcripts don't have are false alarms. Thresholds are fitted to their ratios, for any number of false alarms an hour.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from ..common.checks import check, whole
from ..config.of_models import save_of_model
from ..config.tuned import ModelIdentity
from ..decoding.families import family_of
from ..decoding.second_look import RATE, PhraseList
from ..decoding.thresholds import KINDS, NAME, THRESHOLDS, Thresholds
from .loading import pieces_of
from .recordings import Recording
from .significance import highest_mean

SHOWN = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # false alarms an hour of the points of a curve
# The bonus decides what is weighed, not what enters.
LOOK_WEIGHT = {"ctc": 3.0, "transducer": 3.0, "attention": 1.5}
_LOW = 1e6
_EVERYTHING = Thresholds(-_LOW, 0.0, 0.0, 1.0)  # lets all in, and says how many tokens a phrase was heard as


class LookPoint(NamedTuple):
    """Hold a setting of a second look, and its errors on some recordings.

    Args:
        false_alarms_per_hour: the setting.
        threshold: of a phrase of as many tokens as the weighed ones have on average, natural log.
        false_alarms: phrases that it lets in but nobody said.
        heard: phrases of the transcripts that are heard.
    """

    false_alarms_per_hour: float
    threshold: float
    false_alarms: int
    heard: int


@dataclass(frozen=True)
class PhraseTuning:
    """Hold what `tune_phrases` found.

    Args:
        model: the recogniser.
        thresholds: those that were fitted, for `thresholds=` of pipelines and `hf_ngpulm.PhraseDecoder`.
        chosen: the requested setting.
        curve: other settings.
        hours: hours of speech.
        phrases: number of phrases in the list.
        said: how often the transcripts have phrases.
        heard_anyway: how many of these are heard without the second look.
        weighed: number of false alarms that the thresholds are fitted to.
        unreadable: recordings that couldn't be read.
    """

    model: ModelIdentity
    thresholds: Thresholds
    chosen: LookPoint
    curve: tuple[LookPoint, ...]
    hours: float
    phrases: int
    said: int
    heard_anyway: int
    weighed: int
    unreadable: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the thresholds to a file, in which those of other recognisers stay."""
        save_of_model(path, NAME, KINDS, self.model, self.thresholds._asdict())

    @property
    def highest_rate(self) -> float:
        """Return the upper end of the 95% interval of false alarms an hour, as of rare, independent events (Poisson)."""
        return highest_mean(self.chosen.false_alarms) / self.hours

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        points = {"chosen": self.chosen._asdict(), "curve": [point._asdict() for point in self.curve]}
        told = {**vars(self), "model": self.model.name, "thresholds": self.thresholds._asdict(), **points}
        return {**told, "highest_rate": self.highest_rate}


class _Weighed(NamedTuple):
    ratio: float
    tokens: float
    phrases: int  # that entered or didn't together
    said: bool

    def enters(self, thresholds: Thresholds, rate: float, size: int) -> bool:
        limit = thresholds.of(rate, size, self.tokens)
        return self.ratio >= max(limit, self.phrases * limit)


def tune_phrases(
    asr: Any,
    recordings: Sequence[Recording],
    phrases: Any,
    *,
    phrase_weight: float | None = None,
    false_alarms_per_hour: float = 1.0,
    batch_size: int = 8,
    report: Callable[[str], None] | None = None,
) -> PhraseTuning:
    """Fit the thresholds of a second look at phrases to a recogniser, on ordinary speech.

        tuning = tune_phrases(asr, read_recordings("speech.jsonl"), ["Anna Kowalska", ...])
        tuning.save("thresholds.json")
        asr = pipeline(..., phrases=[...], false_alarms_per_hour=1, thresholds="thresholds.json")

    Args:
        asr: a speech recognition pipeline; its language models and search are used.
        recordings: ordinary speech with transcripts. Phrases of the list that a transcript has are no false alarms there, and
            show how many are heard. Recordings without a transcript are left out. Those of more than 30 s are cut.
        phrases: one list of phrases. The longer it is, the less speech is needed: the thresholds hold for lists of any length.
        phrase_weight: factor of the bonuses; default: 3, for encoder-decoders 1.5. It should be high, as it decides which
            phrases are weighed.
        false_alarms_per_hour: the setting to report on.
        batch_size: recordings that the model is given together.
        report: is told of recordings that are left out.

    Raises:
        ValueError: no recording has a transcript and can be read; or there are too few false alarms to fit thresholds to.
    """
    rate = check("false_alarms_per_hour", false_alarms_per_hour, RATE)
    check("batch_size", batch_size, whole())
    tell = report or (lambda message: None)
    family, own = family_of(asr.model), PhraseList(phrases)
    without = [each.id for each in recordings if each.text is None]
    if without:
        tell(f"{len(without)} recordings have no transcript and are left out, such as {without[0]}")
    read: list[tuple[Recording, float]] = []
    unreadable: list[str] = []
    transcribed = [each for each in recordings if each.text is not None]
    pieces = pieces_of(transcribed, int(asr.feature_extractor.sampling_rate), read, unreadable, tell)
    looked: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    weight = LOOK_WEIGHT[family] if phrase_weight is None else phrase_weight
    given = {"phrases": phrases, "phrase_weight": weight, "false_alarms_per_hour": 1.0, "thresholds": _EVERYTHING}
    for place, result in enumerate(asr(pieces, **given, explain=True, batch_size=batch_size)):
        looked[read[place][0].id] += [each for each in result["phrases"] if each["heard"]]
    hours = sum(seconds for _, seconds in read) / 3600
    if not hours:
        raise ValueError("no recording has a transcript and can be read; without speech no thresholds can be found")
    weighed: list[_Weighed] = []
    said = heard_anyway = 0
    for recording in {each.id: each for each, _ in read}.values():
        wanted = Counter(match.text for match in own.forms.found((recording.text or "").split()))
        said += wanted.total()
        heard_anyway += _weigh(looked[recording.id], wanted, weighed)
    false = [each for each in weighed if not each.said]
    alarms = [(each.ratio, own.size, int(each.tokens)) for each in false if each.phrases == 1]
    thresholds = THRESHOLDS[family].fitted(alarms, hours)
    mean = sum(each.tokens for each in weighed) / len(weighed)

    def point(rate: float) -> LookPoint:
        entering = Counter(each.said for each in weighed if each.enters(thresholds, rate, own.size))
        return LookPoint(rate, thresholds.of(rate, own.size, mean), entering[False], heard_anyway + entering[True])

    curve = tuple(point(each) for each in sorted({*SHOWN, rate}))
    return PhraseTuning(
        ModelIdentity.of(asr.model), thresholds, point(rate), curve, hours, own.size, said, heard_anyway, len(alarms),
        tuple(unreadable),
    )  # fmt: skip


def _weigh(reports: Sequence[dict[str, Any]], wanted: Counter[str], weighed: list[_Weighed]) -> int:
    """Add the phrases of a recording that were weighed, and return how many of those that were said are heard without.

    Args:
        reports: on the phrases that a look which lets all in has found.
        wanted: how often each phrase was said.
    """
    left = wanted.copy()
    for each in reports:
        if "ratio" not in each:
            left[each["text"]] -= 1
    anyway = (wanted - (+left)).total()
    found = sorted((each for each in reports if "ratio" in each), key=lambda each: -each["ratio"])
    for ratio, group in groupby(found, key=lambda each: each["ratio"]):  # a region has one ratio
        of_region = list(group)
        for each in of_region:
            if each["threshold"] < -_LOW / 2 and math.isfinite(ratio):  # others have thresholds of their own
                tokens = -each["threshold"] - _LOW  # of the shortest one, whose threshold is the highest
                weighed.append(_Weighed(ratio, tokens, len(of_region), left[each["text"]] > 0))
                left[each["text"]] -= 1
    return anyway
