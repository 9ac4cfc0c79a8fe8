"""Define the results of an evaluation, for each utterance and in total."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..common.files import write_beside
from ..generation.runaways import runs_away
from ..text.normalisation import normaliser
from .calibration import calibration_error, judged_words
from .counts import ErrorCounts, Normalisation, character_errors, share, word_errors
from .entities import EntityErrors, entity_errors
from .significance import Comparison, Interval, bootstrap, paired_significance

EDITS = ("substitutions", "deletions", "insertions")


@dataclass(frozen=True)
class Utterance:
    """Hold a recording's transcript and hypothesis.

    Args:
        id: the id of the recording.
        reference: the transcript; None if it is unknown.
        hypothesis: the recognised text; None if there is an error.
        score: the hypothesis's score (natural log); None if the decoder gives no score.
        audio_seconds: length of the audio, in seconds.
        model_seconds: time from features to text, in seconds. A recording gets a share of its batch's time, in proportion to
            its length.
        decoder_seconds: the recording's share of the batch's time in the decoder, in seconds. `model_seconds` includes this
            time.
        entities: important phrases in the transcript.
        error: reason why the audio couldn't be read, or why the recogniser refused the audio.
        cut: whether the hypothesis was cut at the limit of tokens.
        confidences: a pair (word, confidence) for each word of the hypothesis; empty if confidences weren't requested.
    """

    id: str
    reference: str | None
    hypothesis: str | None
    score: float | None = None
    audio_seconds: float = 0.0
    model_seconds: float = 0.0
    decoder_seconds: float = 0.0
    entities: tuple[str, ...] = ()
    error: str | None = None
    cut: bool = False
    confidences: Sequence[tuple[str, float]] = ()

    @property
    def ran_away(self) -> bool:
        """Return whether the hypothesis was cut, or repeats a phrase that the transcript doesn't repeat."""
        said = [(text or "").lower().split() for text in (self.hypothesis, self.reference)]
        return self.cut or (runs_away(said[0]) and not runs_away(said[1]))

    @property
    def scored(self) -> bool:
        """Return whether the utterance has both a transcript and a hypothesis. Error rates count only such utterances."""
        return self.reference is not None and self.hypothesis is not None

    def line(self) -> dict[str, Any]:
        """Return a dictionary for JSON, for the utterance's line in a results file."""
        names = ("id", "reference", "hypothesis", "score", "audio_seconds", "model_seconds")
        line = {name: getattr(self, name) for name in names} | {"decode_seconds": self.decoder_seconds}
        if self.entities:
            line["entities"] = list(self.entities)
        return line | {name: getattr(self, name) for name in ("error", "cut", "confidences") if getattr(self, name)}

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> Utterance:
        """Make an utterance from a line of a results file."""
        values = {field.name: line[field.name] for field in fields(cls) if field.name in line}
        values |= {"id": str(line["id"]), "entities": tuple(line.get("entities", ()))}
        return cls(**values, decoder_seconds=line.get("decode_seconds", 0.0))


@dataclass(frozen=True)
class Scores:
    """Hold the errors of all utterances that have a transcript and a hypothesis, in the order of the data.

    Args:
        words, characters: error counts. `words.rate` is the WER, and `characters.rate` is the CER.
        entities: errors on entities; None if the data have no entities.
    """

    words: ErrorCounts
    characters: ErrorCounts
    entities: EntityErrors | None

    @classmethod
    def of(cls, utterances: Sequence[Utterance], normalise: Normalisation) -> Scores:
        """Count the errors of utterances."""
        scored = [utterance for utterance in utterances if utterance.scored]
        texts = _texts(scored)
        clean = normaliser(normalise)
        # An entity that is empty after normalisation can't be searched for.
        lists = [tuple(phrase for phrase in utterance.entities if clean(phrase)) for utterance in scored]
        entities = entity_errors(*texts, lists, normalise) if any(lists) else None
        return cls(word_errors(*texts, normalise), character_errors(*texts, normalise), entities)

    @property
    def counts(self) -> dict[str, ErrorCounts]:
        """Return the error counts for each rate: "wer", "cer" and, if the data have entities, "entity_wer"."""
        counts = {"wer": self.words, "cer": self.characters}
        return counts if self.entities is None else {**counts, "entity_wer": self.entities.entities}

    @property
    def wer(self) -> float:
        return self.words.rate

    @property
    def cer(self) -> float:
        return self.characters.rate

    @property
    def entity_wer(self) -> float:
        """Return the errors on entities per word of an entity. If the data have no entities, return NaN."""
        return math.nan if self.entities is None else self.entities.entity_wer

    @property
    def edits(self) -> dict[str, int]:
        """Return the numbers of substituted, deleted and inserted words, and the number of words in the references."""
        return {name: getattr(self.words, name) for name in EDITS} | {"words": self.words.length}

    @property
    def of_matches(self) -> dict[str, float]:
        """Return precision, recall and F1 of entities. If the data have no entities, return an empty dictionary."""
        names = ("precision", "recall", "f1") if self.entities is not None else ()
        return {name: getattr(self.entities.matches, name) for name in names}  # type: ignore[union-attr]


@dataclass(frozen=True)
class Clock:
    """Hold the durations of this process's work, in seconds.

    Args:
        wall: total time, from reading the first file's header to the last text, without warm-up.
        model: time from features to text, including `decoder`.
        decoder: time in the decoder.
        waiting: time in which the model waits for audio and features from the loading thread.
        warm_up: time of an extra run of the first step. The other durations don't include it.
    """

    wall: float
    model: float
    decoder: float
    waiting: float
    warm_up: float

    @property
    def outside(self) -> float:
        """Return the share of the wall time outside of model and decoder."""
        return 1 - share(self.model, self.wall)


@dataclass(frozen=True)
class Evaluation:
    """Hold the result of `evaluate`.

    Args:
        utterances: the utterances in the order of the data.
        scores: the errors of the scored utterances.
        settings: all settings that affect the results.
        measured: a text that names the work that the decoder's time includes. This work depends on the model's family.
        normalise: normalisation of the texts.
        clock: durations of the evaluation; None if some results are from an earlier run or another process.
        warnings: reasons why the error rates may be unreliable.
    """

    utterances: tuple[Utterance, ...]
    scores: Scores
    settings: dict[str, Any]
    measured: str
    normalise: Normalisation = None
    clock: Clock | None = None
    warnings: tuple[str, ...] = ()

    @cached_property
    def scored(self) -> tuple[Utterance, ...]:
        """Return the utterances with a transcript and a hypothesis."""
        return tuple(utterance for utterance in self.utterances if utterance.scored)

    @property
    def unreadable(self) -> tuple[Utterance, ...]:
        """Return the utterances that have an error. In such cases the audio couldn't be read, or the recogniser refused it."""
        return tuple(utterance for utterance in self.utterances if utterance.error is not None)

    @property
    def without_transcript(self) -> int:
        """Return the number of recognised utterances without a transcript. Error rates ignore these utterances."""
        return sum(utterance.reference is None and utterance.error is None for utterance in self.utterances)

    @property
    def without_audio(self) -> int:
        """Return the number of utterances with a length of 0 s. Such utterances have empty hypotheses."""
        return sum(utterance.error is None and utterance.audio_seconds == 0 for utterance in self.utterances)

    @property
    def runaways(self) -> int:
        """Return the number of hypotheses that ran away (see `Utterance.ran_away`)."""
        return sum(utterance.ran_away for utterance in self.utterances)

    @property
    def audio_seconds(self) -> float:
        return math.fsum(utterance.audio_seconds for utterance in self.utterances)

    @property
    def calibration_error(self) -> float | None:
        """Return the expected calibration error of words' confidences; None without confidences."""
        confidences, right, _ = judged_words(self.utterances, self.normalise)
        return calibration_error(confidences, right) if len(right) else None

    @property
    def rtfx(self) -> float:
        """Return how many seconds of audio one process handles per second, from features to text. Warm-up isn't counted."""
        return share(self.audio_seconds, math.fsum(utterance.model_seconds for utterance in self.utterances))

    @property
    def rtfx_decoder(self) -> float:
        """Return how many seconds of audio the decoder alone handles per second. `measured` names the decoder's work."""
        return share(self.audio_seconds, math.fsum(utterance.decoder_seconds for utterance in self.utterances))

    def interval(self, of: str = "wer", level: float = 0.95) -> Interval | None:
        """Return the bootstrap confidence interval of a rate. `of`: "wer", "cer" or "entity_wer". If the rate doesn't exist,
        return None.
        """
        counts = self.scores.counts.get(of)
        return bootstrap(counts, level) if counts is not None and counts.length else None

    def compare(self, other: Evaluation, level: float = 0.95) -> Compared:
        """Compare the WERs of this run and another run on the same data. Return the difference and its paired significance.

        Raises:
            ValueError: the runs share no scored utterance, or the transcripts of a shared utterance differ.
        """
        theirs = {utterance.id: utterance for utterance in other.scored}
        common = [utterance for utterance in self.scored if utterance.id in theirs]
        if not common:
            raise ValueError("the two runs have no utterance in common; compare runs on the same data")
        for utterance in common:
            if utterance.reference != theirs[utterance.id].reference:
                raise ValueError(
                    f"the two runs have different transcripts of {utterance.id}: {utterance.reference!r} and "
                    f"{theirs[utterance.id].reference!r}; compare runs on the same data"
                )
        alone = len(self.scored) + len(theirs) - 2 * len(common)
        ours = word_errors(*_texts(common), self.normalise)
        of_other = word_errors(*_texts([theirs[utterance.id] for utterance in common]), self.normalise)
        return Compared(ours.rate, of_other.rate, paired_significance(ours, of_other, level), len(common), alone)

    def summary(self, level: float = 0.95) -> dict[str, Any]:
        """Return all results as a dictionary for JSON. Rates are in percent. An undefined rate is None."""
        scores = self.scores
        figures: dict[str, Any] = {
            "utterances": len(self.utterances),
            "scored": len(self.scored),
            "without_transcript": self.without_transcript,
            "without_audio": self.without_audio,
            "unreadable": [utterance.id for utterance in self.unreadable],
            "runaways": self.runaways,
            "audio_seconds": round(self.audio_seconds, 3),
            **scores.edits,
            "confidence": level,
        }
        for name in scores.counts:
            interval = self.interval(name, level)
            figures[name] = _percent(getattr(scores, name))
            figures[f"{name}_interval"] = None if interval is None else [_percent(interval.low), _percent(interval.high)]
        if scores.entities:
            figures["other_wer"] = _percent(scores.entities.other_wer)
            figures["entity_words"] = scores.entities.entities.length
            figures |= {f"entity_{name}": _percent(rate) for name, rate in scores.of_matches.items()}
        if self.calibration_error is not None:
            figures["calibration_error"] = _percent(self.calibration_error)
        speeds = {name: getattr(self, name) for name in ("rtfx", "rtfx_decoder")}
        figures |= {name: None if math.isnan(speed) else speed for name, speed in speeds.items()}
        figures["decoder_measured"] = self.measured
        if self.clock is not None:
            figures["seconds"] = {name: round(value, 4) for name, value in vars(self.clock).items()}
        return figures | {"warnings": list(self.warnings)}

    def save(self, path: str | os.PathLike[str], level: float = 0.95) -> None:
        """Write each utterance as a line of JSON to `path`. Write settings and summary to NAME.summary.json beside it."""
        with write_beside(summary_path(path)) as beside:
            about = {"settings": self.settings, "figures": self.summary(level)}
            beside.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        words, entities = iter(self.scores.words.utterances), self.scores.entities
        of_entities = iter(entities.entities.utterances if entities is not None else ())
        with write_beside(path) as beside, open(beside, "w", encoding="utf-8") as file:
            for utterance in self.utterances:
                line = utterance.line()
                if utterance.scored:
                    counts = next(words)
                    line |= {name: getattr(counts, name) for name in EDITS} | {"words": counts.length}
                    if entities is not None:
                        counts = next(of_entities)
                        line |= {"entity_errors": counts.errors, "entity_words": counts.length}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Compared:
    """Compare two runs on the same data.

    Args:
        wer, other_wer: the WER of each run on the utterances that both runs have scored.
        comparison: the difference between both rates, with its significance.
        utterances: the number of utterances that both runs have scored.
        alone: the number of utterances that only one run has scored. The comparison leaves these utterances out.
    """

    wer: float
    other_wer: float
    comparison: Comparison
    utterances: int
    alone: int

    def summary(self) -> dict[str, Any]:
        """Return the comparison as a dictionary for JSON, with rates in percent."""
        comparison = self.comparison
        return {
            "wer": _percent(self.wer),
            "other_wer": _percent(self.other_wer),
            "difference": _percent(comparison.difference),
            "difference_interval": [_percent(comparison.low), _percent(comparison.high)],
            "confidence": comparison.level,
            "p_value": comparison.p_value,
            "utterances": self.utterances,
            "left_out": self.alone,
        }


def read_results(path: str | os.PathLike[str], normalise: Normalisation = None) -> Evaluation:
    """Read an evaluation that `Evaluation.save` wrote.

    Raises:
        ValueError: a line of the file isn't a result of an evaluation. The message names the line.
    """
    utterances, about, summary = [], {}, summary_path(path)
    if summary.exists():
        about = json.loads(summary.read_text(encoding="utf-8"))
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                utterances.append(Utterance.from_line(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not a result of hf-ngpulm evaluate ({error!r})") from None
    measured = about.get("figures", {}).get("decoder_measured", "")
    scores = Scores.of(utterances, normalise)
    return Evaluation(tuple(utterances), scores, about.get("settings", {}), measured, normalise)


def summary_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file with the settings and summary for a results file."""
    return Path(path).with_suffix(".summary.json")


def _texts(utterances: Sequence[Utterance]) -> tuple[list[str], list[str]]:
    return [utterance.reference or "" for utterance in utterances], [utterance.hypothesis or "" for utterance in utterances]


def _percent(value: float) -> float | None:
    return None if math.isnan(value) else 100 * value
