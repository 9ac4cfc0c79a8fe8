"""Choose the minimum evidence at which a grammar accepts an utterance. This minimum is called the bound.

The evidence (see `hf_ngpulm.decoding.understanding`) of ordinary speech and of commands is computed once. If the bound is
lower, fewer commands are missed, but more ordinary speech is accepted.
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

WIDTHS = np.geomspace(0.02, 5.0, 200)  # candidate widths of the confidence curve, nats per token
SHOWN = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # numbers of false accepts in `GrammarTuning.curve`


class OperatingPoint(NamedTuple):
    """Hold a bound on the evidence, and the errors that this bound causes.

    Args:
        least_evidence: the bound, nats per token.
        false_accepts: number of recordings of other speech that are accepted.
        missed: number of commands that are rejected.
    """

    least_evidence: float
    false_accepts: int
    missed: int


@dataclass(frozen=True)
class GrammarTuning:
    """Hold the result of `tune_grammar`. Tuples of recordings contain the recordings' ids.

    Args:
        family: "ctc", "transducer" or "attention".
        evidence: the confidence curve, a value for `Grammar.with_evidence`.
        chosen: the chosen bound, and the errors that it causes.
        curve: several bounds and the errors that each bound causes, in descending order of the bounds.
        hours: hours of other speech.
        accepted: accepted recordings of other speech.
        commands: number of commands.
        missed: rejected commands.
        wrong: accepted commands whose recognised meaning differs from the meaning of the command's text.
        left_out: commands whose text isn't in the grammar. `commands` doesn't count them.
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
        """Return the 95% upper bound of the false accepts per hour. False accepts are assumed to be independent (Poisson)."""
        return highest_mean(self.chosen.false_accepts) / self.hours

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary of plain values."""
        points = {"chosen": self.chosen._asdict(), "curve": [point._asdict() for point in self.curve]}
        return {**vars(self), "evidence": self.evidence._asdict(), **points, "highest_rate": self.highest_rate}


class _Judged(NamedTuple):
    id: str
    seconds: float
    evidence: float  # -inf if no sentence of the grammar was found
    meaning: tuple[Any, Any]
    text: str | None  # text of the recording


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
    """Find the bound on the evidence that accepts at most `false_accepts_per_hour` recordings of other speech.

        tuning = tune_grammar(asr, grammar, read_recordings("speech.jsonl"), read_recordings("commands.jsonl"))
        grammar.with_evidence({tuning.family: tuning.evidence}).save_pretrained("orders")

    In the tuned grammar, `sensitivity=0.5` selects this bound. The width of the confidence curve is fitted to commands and
    other speech by maximum likelihood, with equal weight for both. Without commands, the grammar's width stays.

    Args:
        asr: a speech recognition pipeline. The pipeline's language models, phrases and search are used.
        other: ordinary speech without commands, one utterance per recording. Recordings of more than 30 s are cut at quiet
            places into pieces of at most 10 s.
        commands: recordings of commands. The text is a sentence of the grammar, or the name of the intent.
        false_accepts_per_hour: maximum number of accepted recordings per hour of other speech.
        batch_size: number of recordings in a batch of the model.
        report: called with a line about unreadable recordings, and about commands that aren't in the grammar.

    Raises:
        ValueError: no other speech can be read, or too many recordings of other speech are sentences of the grammar, so that
            every bound accepts these recordings.
    """
    check("false_accepts_per_hour", false_accepts_per_hour, number(0))
    check("batch_size", batch_size, whole())
    model, tell = asr.model, report or (lambda message: None)
    family = family_of(model)
    unreadable: list[str] = []
    spoken, said = (list(_judged(asr, grammar, each, batch_size, unreadable, tell)) for each in (other, commands))
    hours = sum(each.seconds for each in spoken) / 3600
    if not hours:
        raise ValueError("no recording of other speech can be read; tuning needs some")
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
            f"{len(inside)} recordings of other speech are sentences of the grammar (the first is {inside[0].id}), but only "
            f"{allowed} may be accepted in {hours:.2f} hours; leave them out, or allow more false accepts"
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
    """Among all bounds that accept at most `allowed` recordings of other speech, return the bound that misses the fewest
    commands.

    The bound is halfway between two values: the highest evidence of other speech that must be rejected, and the lowest evidence
    above this value. If no recording has evidence above this value, the bound is just above it.

    Args:
        other, commands: evidence of each recording, nats per token.

    Returns:
        The bound, and the errors that it causes. If more than `allowed` recordings of other speech have the highest possible
        evidence, 0, the result is None.
    """
    heard, meant = sorted(other), sorted(commands)
    refused = -math.inf  # the highest evidence that must be rejected
    if allowed < len(heard):
        refused = heard[len(heard) - 1 - allowed]
    if refused >= 0:
        return None
    accepted = min([each for each in (*heard, *meant) if each > refused], default=refused if refused > -math.inf else 0.0)
    bound = accepted if refused == -math.inf else max((refused + accepted) / 2, math.nextafter(refused, 0.0))
    return OperatingPoint(bound, len(heard) - bisect.bisect_left(heard, bound), bisect.bisect_left(meant, bound))


def _width(middle: float, other: Sequence[float], commands: Sequence[float]) -> float:
    """Return the width of the confidence curve that makes the commands and the other speech most likely.

    Args:
        middle: the evidence that gives a confidence of 0.5.
        other, commands: evidence of each recording.
    """
    heard, meant = (np.array([each for each in of if each > -math.inf]) for of in (other, commands))
    losses = [np.logaddexp(0, (middle - meant) / width).sum() / max(len(meant), 1)
              + np.logaddexp(0, (heard - middle) / width).sum() / max(len(heard), 1) for width in WIDTHS]  # fmt: skip
    return float(WIDTHS[int(np.argmin(losses))])


def _judged(
    asr: Any, grammar: Grammar, recordings: Sequence[Recording], batch_size: int, unreadable: list[str], tell: Any
) -> Iterator[_Judged]:
    """Recognise recordings with the grammar, without a bound on the evidence. Yield the evidence and meaning of each piece.

    Args:
        unreadable: a list to which the ids of unreadable recordings are added.
        tell: called with a line about each unreadable recording.
    """
    rate = int(asr.feature_extractor.sampling_rate)
    read: list[tuple[Recording, float]] = []
    pieces = pieces_of(recordings, rate, read, unreadable, tell)
    for place, result in enumerate(asr(pieces, grammar=grammar, sensitivity=1.0, explain=True, batch_size=batch_size)):
        recording, seconds = read[place]
        slots = {slot["name"]: slot["value"] for slot in result["slots"]}
        # The free search and the search in the grammar round differently: rounded, equal transcripts have the evidence 0.
        evidence = round(result["explanation"].get("evidence", -math.inf), 2)
        yield _Judged(recording.id, seconds, evidence, (result["intent"], slots), recording.text)


def _meaning_of(grammar: Grammar, text: str) -> tuple[Any, Any] | None:
    """Return the intent and the slots of a command's text. If the text is the name of an intent, the slots are None. If the
    text is neither a sentence of the grammar nor the name of an intent, return None.
    """
    reading = grammar.reading(text)
    if reading is not None:
        return reading.intent, {slot.name: slot.value for slot in reading.slots}
    return (text, None) if text in grammar.intents else None


def _is_meant(grammar: Grammar, judged: _Judged) -> bool:
    wanted, (intent, slots) = _meaning_of(grammar, judged.text or ""), judged.meaning
    return wanted is not None and wanted[0] == intent and wanted[1] in (None, slots)
