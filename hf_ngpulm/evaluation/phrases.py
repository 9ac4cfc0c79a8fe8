"""Fit the thresholds of the second look, which rejects recognised phrases that nobody said.

In ordinary speech, a recogniser proposes phrases, and the second look computes a likelihood ratio for each phrase (see
`hf_ngpulm.decoding.second_look`). If the transcript doesn't contain a proposed phrase, the phrase is a false alarm. The
thresholds are fitted to the likelihood ratios of false alarms. The fit gives a threshold for any number of false alarms per
hour.
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

SHOWN = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # false alarms per hour in `PhraseTuning.curve`
# Default phrase weights by family. The weight decides which phrases are proposed; the thresholds decide which are accepted.
LOOK_WEIGHT = {"ctc": 3.0, "transducer": 3.0, "attention": 1.5}
_LOW = 1e6
# Accepts every phrase. The threshold that is reported for a phrase of n tokens is -_LOW - n, which tells n.
_EVERYTHING = Thresholds(-_LOW, 0.0, 0.0, 1.0)


class LookPoint(NamedTuple):
    """Hold a setting of the second look, and the errors that this setting causes on the recordings.

    Args:
        false_alarms_per_hour: the setting.
        threshold: threshold for a phrase with the average number of tokens, natural log.
        false_alarms: number of accepted phrases that nobody said.
        heard: number of recognised phrases that the transcripts contain.
    """

    false_alarms_per_hour: float
    threshold: float
    false_alarms: int
    heard: int


@dataclass(frozen=True)
class PhraseTuning:
    """Hold the result of `tune_phrases`.

    Args:
        model: the recogniser.
        thresholds: the fitted thresholds, a value for `thresholds=` of pipelines and `hf_ngpulm.PhraseDecoder`.
        chosen: the requested setting, and the errors that it causes.
        curve: several settings, and the errors that each setting causes.
        hours: hours of speech.
        phrases: number of phrases in the list.
        said: number of times that phrases occur in the transcripts.
        heard_anyway: number of these occurrences that are recognised without the second look.
        weighed: number of false alarms to which the thresholds are fitted.
        unreadable: ids of recordings that couldn't be read.
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
        """Write the thresholds to a file. Thresholds of other recognisers in the file stay."""
        save_of_model(path, NAME, KINDS, self.model, self.thresholds._asdict())

    @property
    def highest_rate(self) -> float:
        """Return the 95% upper bound of the false alarms per hour. False alarms are assumed to be independent (Poisson)."""
        return highest_mean(self.chosen.false_alarms) / self.hours

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary of plain values."""
        points = {"chosen": self.chosen._asdict(), "curve": [point._asdict() for point in self.curve]}
        names = {"model": self.model.name, "thresholds": self.thresholds._asdict()}
        return {**vars(self), **names, **points, "highest_rate": self.highest_rate}


class _Weighed(NamedTuple):
    """Hold a phrase that the second look has judged."""

    ratio: float  # log-likelihood ratio
    tokens: float
    phrases: int  # number of phrases in the same region, which are accepted or rejected together
    said: bool  # whether the transcript contains the phrase

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
    """Fit a recogniser's thresholds for a second look at phrases on ordinary speech.

        tuning = tune_phrases(asr, read_recordings("speech.jsonl"), ["Anna Kowalska", ...])
        tuning.save("thresholds.json")
        asr = pipeline(..., phrases=[...], false_alarms_per_hour=1, thresholds="thresholds.json")

    Args:
        asr: a speech recognition pipeline. The pipeline's language models and search are used.
        recordings: ordinary speech with transcripts. If the transcript contains a recognised phrase, the phrase counts for
            recall. All other recognised phrases are false alarms. Recordings without a transcript are left out. Recordings of
            more than 30 s are cut.
        phrases: one list of phrases. A longer list needs less speech. The fitted thresholds apply to lists of any length.
        phrase_weight: factor of the phrases' bonuses; by default 3, or 1.5 for encoder-decoders. A higher weight causes more
            false alarms, which the fit needs.
        false_alarms_per_hour: the setting that the result describes.
        batch_size: number of recordings in a batch of the model.
        report: called with a line of text about recordings that are left out.

    Raises:
        ValueError: there is no readable recording with a transcript, or there are too few false alarms for the fit.
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
        raise ValueError("no recording has a transcript and can be read; fitting thresholds needs some speech")
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
    """Add the judged phrases of a recording to `weighed`. Return the number of spoken phrases that are recognised without a
    second look.

    Args:
        reports: the pipeline's reports on the recording's phrases. The pipeline used the thresholds `_EVERYTHING`.
        wanted: each phrase's number of occurrences in the transcript.
    """
    left = wanted.copy()
    for each in reports:
        if "ratio" not in each:
            left[each["text"]] -= 1
    anyway = (wanted - (+left)).total()
    judged = sorted((each for each in reports if "ratio" in each), key=lambda each: -each["ratio"])
    for ratio, group in groupby(judged, key=lambda each: each["ratio"]):  # a region has one ratio
        of_region = list(group)
        for each in of_region:
            if each["threshold"] < -_LOW / 2 and math.isfinite(ratio):  # otherwise the phrase has its own threshold
                tokens = -each["threshold"] - _LOW  # of the region's shortest phrase, which has the highest threshold
                weighed.append(_Weighed(ratio, tokens, len(of_region), left[each["text"]] > 0))
                left[each["text"]] -= 1
    return anyway
