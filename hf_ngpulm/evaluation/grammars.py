"""Find how much evidence a grammar needs, so that few recordings of other speech are taken for its sentences.

The evidence (see `hf_ngpulm.decoding.understanding`) of ordinary speech and of commands is computed once. A bound on it says
what is understood: the lower it is, the fewer commands are missed, and the more other speech is accepted.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..common.checks import check, number, whole
from ..decoding.families import family_of
from ..decoding.understanding import EVIDENCE
from ..grammar.grammar import Grammar
from ..grammar.rules import Evidence
from .loading import pieces_of
from .recordings import Recording
from .significance import highest_mean

WIDTHS = np.geomspace(0.02, 5.0, 200)  # of curves, nats per token
SHOWN = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # false accepts of the points of a curve


class OperatingPoint(NamedTuple):
    """Hold a bound on the evidence, and its errors on some recordings.

    Args:
        least_evidence: the bound, nats per token.
        false_accepts: recordings of other speech that are understood.
        missed: commands that aren't.
    """

    least_evidence: float
    false_accepts: int
    missed: int


@dataclass(frozen=True)
class GrammarTuning:
    """Hold what `tune_grammar` found.

    Args:
        family: "ctc", "transducer" or "attention".
        evidence: the curve of confidence, for `Grammar.with_evidence`.
        chosen: the bound, and its errors on the recordings.
        curve: the same for other bounds, the highest first.
        hours: hours of other speech.
        accepted: the recordings of other speech that are understood.
        commands: number of commands.
        missed: commands that aren't understood.
        wrong: commands with texts or intents that are understood as something else.
        left_out: commands whose texts aren't in the grammar. They count nowhere.
        unreadable: recordings that couldn't be read.
    """

    family: str
    evidence: Evidence
    chosen: OperatingPoint
    curve: tuple[OperatingPoint, ...]
    hours: float
    accepted: tuple[str, ...]
    commands: int
    missed: tuple[str, ...]
    wrong: tuple[str, ...]
    left_out: tuple[str, ...]
    unreadable: tuple[str, ...]

    @property
    def highest_rate(self) -> float:
        """Return the upper end of the 95% interval of false accepts an hour, as of rare, independent events (Poisson)."""
        return highest_mean(self.chosen.false_accepts) / self.hours

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        points = {"chosen": self.chosen._asdict(), "curve": [point._asdict() for point in self.curve]}
        return {**vars(self), "evidence": self.evidence._asdict(), **points, "highest_rate": self.highest_rate}


class _Judged(NamedTuple):
    id: str
    seconds: float
    evidence: float  # -inf: no sentence of the grammar was found
    meaning: tuple[Any, Any]
    text: str | None  # of the recording


def tune_grammar(
    asr: Any,
    grammar: Grammar,
    other: Sequence[Recording],
    commands: Sequence[Recording] = (),
    *,
    false_accepts_per_hour: float = 1.0,
    batch_size: int = 8,
    report: Callable[[str], None] | None = None,
) -> GrammarTuning:
    """Find the bound on the evidence at which so many recordings of other speech an hour are taken for commands.

        tuning = tune_grammar(asr, grammar, read_recordings("speech.jsonl"), read_recordings("commands.jsonl"))
        grammar.with_evidence({tuning.family: tuning.evidence}).save_pretrained("orders")

    With that curve, `sensitivity=0.5` means this bound. The width of the curve is fitted to commands and other speech (maximum
    likelihood, both weighing the same); without commands it stays as it was.

    Args:
        asr: a speech recognition pipeline; its language models, phrases and search are used.
        grammar: the grammar.
        other: ordinary speech without commands, one utterance a recording, as they reach the recogniser. Recordings of more
            than 30 s are cut at quiet places, into pieces of at most 10 s.
        commands: commands. A text is a sentence of the grammar, or the name of its intent.
        false_accepts_per_hour: the most recordings of other speech that may be understood, per hour of it.
        batch_size: recordings that the model is given together.
        report: is told of recordings that can't be read or have no place in the grammar.

    Raises:
        ValueError: no other speech can be read; or more of it than allowed are sentences of the grammar, so no bound helps.
    """
    check("false_accepts_per_hour", false_accepts_per_hour, number(0))
    check("batch_size", batch_size, whole())
    model, tell = asr.model, report or (lambda message: None)
    family = family_of(model)
    unreadable: list[str] = []
    spoken, said = (list(_judged(asr, grammar, each, batch_size, unreadable, tell)) for each in (other, commands))
    hours = sum(each.seconds for each in spoken) / 3600
    if not hours:
        raise ValueError("other speech has no recording that can be read; without it no bound can be found")
    left_out = [each for each in said if each.text is not None and _meaning_of(grammar, each.text) is None]
    if left_out:
        tell(f"{len(left_out)} commands aren't in the grammar and are left out, such as {left_out[0].id}: {left_out[0].text!r}")
    said = [each for each in said if each not in left_out]
    heard, meant = [each.evidence for each in spoken], [each.evidence for each in said]
    allowed = math.floor(false_accepts_per_hour * hours + 1e-9)
    chosen = best_bound(heard, meant, allowed)
    if chosen is None:
        inside = [each for each in spoken if each.evidence >= 0]
        raise ValueError(
            f"{len(inside)} recordings of other speech are sentences of the grammar, such as {inside[0].id}, but only "
            f"{allowed} may be understood in {hours:.2f} hours; leave them out, or allow more false accepts"
        )
    before = grammar.evidence.get(family, EVIDENCE[family])
    evidence = Evidence(chosen.least_evidence, _width(chosen.least_evidence, heard, meant) if meant else before.width)
    points = (best_bound(heard, meant, count) for count in sorted({*SHOWN, allowed}) if count <= len(heard))
    understood = [each for each in said if each.evidence >= chosen.least_evidence]
    return GrammarTuning(
        family, evidence, chosen, tuple(dict.fromkeys(point for point in points if point is not None)), hours,
        tuple(each.id for each in spoken if each.evidence >= chosen.least_evidence), len(said),
        tuple(each.id for each in said if each.evidence < chosen.least_evidence),
        tuple(each.id for each in understood if each.text is not None and not _is_meant(grammar, each)),
        tuple(each.id for each in left_out), tuple(unreadable),
    )  # fmt: skip


def best_bound(other: Sequence[float], commands: Sequence[float], allowed: int) -> OperatingPoint | None:
    """Return the bound with the fewest missed commands of those that at most `allowed` recordings of other speech reach.

    It is in the middle between the best recording of other speech that is refused, and what is accepted next; just above the
    former if nothing is. None: too many recordings of other speech have the highest evidence, 0.
    """
    heard, meant = sorted(other), sorted(commands)
    refused = -math.inf  # the best that has to be
    if allowed < len(heard):
        refused = heard[len(heard) - 1 - allowed]
    if refused >= 0:
        return None
    accepted = min([each for each in (*heard, *meant) if each > refused], default=refused if refused > -math.inf else 0.0)
    bound = accepted if refused == -math.inf else max((refused + accepted) / 2, math.nextafter(refused, 0.0))
    return OperatingPoint(bound, len(heard) - bisect.bisect_left(heard, bound), bisect.bisect_left(meant, bound))


def _width(middle: float, other: Sequence[float], commands: Sequence[float]) -> float:
    """Return the width with which the curve gives commands high confidences and other speech low ones."""
    heard, meant = (np.array([each for each in of if each > -math.inf]) for of in (other, commands))
    losses = [np.logaddexp(0, (middle - meant) / width).sum() / max(len(meant), 1)
              + np.logaddexp(0, (heard - middle) / width).sum() / max(len(heard), 1) for width in WIDTHS]  # fmt: skip
    return float(WIDTHS[int(np.argmin(losses))])


def _judged(
    asr: Any, grammar: Grammar, recordings: Sequence[Recording], batch_size: int, unreadable: list[str], tell: Any
) -> Iterator[_Judged]:
    """Yield what recordings mean if they are understood at all."""
    rate = int(asr.feature_extractor.sampling_rate)
    read: list[tuple[Recording, float]] = []
    pieces = pieces_of(recordings, rate, read, unreadable, tell)
    for place, found in enumerate(asr(pieces, grammar=grammar, sensitivity=1.0, explain=True, batch_size=batch_size)):
        recording, seconds = read[place]
        slots = {slot["name"]: slot["value"] for slot in found["slots"]}
        # Two searches for the same transcript agree but for rounding.
        evidence = round(found["explanation"].get("evidence", -math.inf), 2)
        yield _Judged(recording.id, seconds, evidence, (found["intent"], slots), recording.text)


def _meaning_of(grammar: Grammar, text: str) -> tuple[Any, Any] | None:
    """Return the intent and the slots of a text, and None as slots if it is the name of an intent; None if it is neither."""
    reading = grammar.reading(text)
    if reading is not None:
        return reading.intent, {slot.name: slot.value for slot in reading.slots}
    return (text, None) if text in grammar.intents else None


def _is_meant(grammar: Grammar, found: _Judged) -> bool:
    wanted, (intent, slots) = _meaning_of(grammar, found.text or ""), found.meaning
    return wanted is not None and wanted[0] == intent and wanted[1] in (None, slots)
