"""Define the command `hf-ngpulm tune` with --grammar, --false-alarms-per-hour or --word-confidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import library, options
from .evaluate import end_if_unreadable
from .files import refuse_existing
from .models import load_recogniser, normalisation_of, phrases_and_entities
from .output import percent, print_line, print_result, print_table, tell


@dataclass(frozen=True)
class Job:
    """Hold the arguments of `hf-ngpulm tune` that all jobs need."""

    model: str
    data: str | None
    keep: options.Keep
    search: options.SearchOptions
    fields: options.Data
    batch_size: int
    device: str | None
    as_json: bool

    def recordings(self, source: str) -> library.Recordings:
        return library.read_recordings(source, **vars(self.fields))

    def recogniser(self, **settings: Any) -> Any:
        return load_recogniser(self.model, self.device, **options.given(self.search, **settings))

    def check_file(self, results: str, example: str) -> None:
        """Raise ValueError if the results should be saved to an LM, or to an existing file that has no fitted values.
        `results`: name of the results in messages, in the plural. `example`: example of a file's name in messages.
        """
        if self.keep.save:
            raise ValueError(f"--save writes to an LM, but {results} go to a file of their own: --save-to {example}")
        if self.keep.save_to:  # now, not after an hour
            library.refuse_other(self.keep.save_to)

    def end(self, result: Any, saved_to: str | None, recordings: int, show: Callable[[], None]) -> None:
        """Print the result. If some recordings could not be read, exit with status 3.

        Args:
            saved_to: the file with the saved result; None if the result wasn't saved.
            recordings: number of recordings.
            show: prints the result as text.
        """
        print_result({**result.to_dict(), "saved_to": saved_to}, self.keep.output, self.as_json, show)
        end_if_unreadable(len(result.unreadable), recordings)


def tune_confidence(job: Job, measure: str, phrases: list[str] | None, normalise: str | None) -> None:
    """Calibrate word confidences, then show and save the calibration."""
    if job.data is None:
        raise ValueError("--word-confidence is calibrated on speech with transcripts: hf-ngpulm tune MODEL DATA")
    job.check_file("calibrations", "calibration.json")
    common, from_entities = phrases_and_entities(phrases)
    if from_entities:
        raise ValueError("--word-confidence needs one list of phrases for all recordings; leave out from-entities")
    recordings, asr = job.recordings(job.data), job.recogniser(phrases=common or None)
    result = library.tune_confidence(
        asr, recordings, measure, normalise=normalisation_of(normalise), batch_size=job.batch_size, report=tell
    )
    file = job.keep.save_to
    if file:
        result.save(file)
    job.end(result, file, len(recordings), lambda: _show_confidence(result, file))


def _show_confidence(result: library.ConfidenceTuning, file: str | None) -> None:
    rows = [
        [f"{each.low:.1f} to {each.high:.1f}", f"{each.words:,}", percent(each.confidence), percent(each.right)]
        for each in result.bins
    ]
    print_table(rows, ["confidence", "words", "mean", "right"], f"{result.words:,} words, {result.right:,} of them right")
    measure, slope, offset = result.calibration
    print_line(
        f"Expected calibration error: {percent(result.after)} (each half of the utterances by the other half), "
        f"{percent(result.before)} without calibration. {measure}: slope {slope:.2f}, offset {offset:.2f}."
    )
    if file is not None:
        print_line(f"Saved in {file}: --word-confidence {file} gives calibrated confidences with this model.")


def tune_grammar(job: Job, of_grammars: options.OfGrammars) -> None:
    """Find the minimum evidence at which a grammar accepts utterances, then show and save this minimum."""
    keep, source = job.keep, str(of_grammars.grammar)
    if not of_grammars.other:
        raise ValueError("--grammar needs ordinary speech to count false accepts: add --other DATA")
    if keep.save and not (Path(source) / "grammar.json").is_file():
        raise ValueError(f"--save writes to the grammar's folder, but {source} isn't one; name a folder: --save-to FOLDER")
    refuse_existing([keep.save_to] if keep.save_to else [], keep.overwrite)
    grammar = library.Grammar.load(source)
    other = [recording for data in of_grammars.other for recording in job.recordings(data)]
    commands: Any = [] if job.data is None else job.recordings(job.data)
    rate = options.given(false_accepts_per_hour=of_grammars.false_accepts_per_hour)
    result = library.tune_grammar(job.recogniser(), grammar, other, commands, **rate, batch_size=job.batch_size, report=tell)
    folder = keep.save_to or (source if keep.save else None)
    if folder is not None:
        grammar.with_evidence({result.family: result.evidence}).save_pretrained(folder)
    job.end(result, folder, len(other) + len(commands), lambda: _show_grammar(result, folder))


def _show_grammar(result: library.GrammarTuning, folder: str | None) -> None:
    def row(point: library.OperatingPoint) -> list[str]:
        missed = percent(point.missed / result.commands) if result.commands else "-"
        cells = [f"{point.least_evidence:.2f}", str(point.false_accepts), f"{point.false_accepts / result.hours:.2f}", missed]
        return ["*" if point == result.chosen else "", *cells]

    headings = ["", "least evidence", "false accepts", "an hour", "commands missed"]
    title = f"{result.hours:.2f} hours of other speech, {result.commands} commands"
    chosen = result.curve.index(result.chosen) if result.chosen in result.curve else None
    print_table([row(point) for point in result.curve], headings, title, bold=chosen)
    print_line(
        f"For {result.family} models: evidence from {result.chosen.least_evidence:.2f} on is understood (sensitivity 0.5). "
        f"False accepts an hour: {result.chosen.false_accepts / result.hours:.2f}, with 95% confidence at most "
        f"{result.highest_rate:.2f}."
    )
    if result.wrong:
        print_line(f"{len(result.wrong)} commands are understood as something else, such as {result.wrong[0]}.")
    if folder is not None:
        print_line(f"Saved in {folder}.")


def tune_phrases(job: Job, phrases: list[str] | None, phrase_weight: str | None, false_alarms_per_hour: float) -> None:
    """Fit the thresholds of a second look at phrases, then show and save the thresholds."""
    if job.data is None or not phrases:
        raise ValueError("--false-alarms-per-hour needs ordinary speech and a list of phrases: add DATA and --phrases")
    job.check_file("thresholds", "thresholds.json")
    try:
        weight = None if phrase_weight is None else float(phrase_weight)
    except ValueError:
        raise ValueError(f"--phrase-weight should be one number with --false-alarms-per-hour, got {phrase_weight!r}") from None
    recordings = job.recordings(job.data)
    common, from_entities = phrases_and_entities(phrases)
    if from_entities:
        common = [*common, *dict.fromkeys(entity for recording in recordings for entity in recording.entities)]
    result = library.tune_phrases(
        job.recogniser(), recordings, common, phrase_weight=weight, false_alarms_per_hour=false_alarms_per_hour,
        batch_size=job.batch_size, report=tell,
    )  # fmt: skip
    file = job.keep.save_to
    if file:
        result.save(file)
    job.end(result, file, len(recordings), lambda: _show_phrases(result, file))


def _show_phrases(result: library.PhraseTuning, file: str | None) -> None:
    def row(point: library.LookPoint) -> list[str]:
        recall = percent(point.heard / result.said if result.said else None)
        cells = [f"{point.false_alarms_per_hour:g}", f"{point.threshold:.2f}", str(point.false_alarms)]
        return ["*" if point == result.chosen else "", *cells, f"{point.false_alarms / result.hours:.2f}", recall]

    headings = ["", "--false-alarms-per-hour", "threshold", "false alarms", "an hour", "heard"]
    title = f"{result.hours:.2f} hours of speech, {result.phrases:,} phrases, said {result.said:,} times"
    print_table(map(row, result.curve), headings, title, bold=result.curve.index(result.chosen))
    offset, slope, *_ = result.thresholds
    anyway = f", {percent(result.heard_anyway / result.said)} of them without the second look" if result.said else ""
    print_line(
        f"Fitted to {result.weighed} false alarms: offset {offset:.2f}, slope {slope:.2f}. False alarms an hour: "
        f"{result.chosen.false_alarms / result.hours:.2f}, with 95% confidence at most {result.highest_rate:.2f}. Heard: "
        f"{result.chosen.heard} of {result.said}{anyway}."
    )
    if file is not None:
        print_line(f"Saved in {file}: add --thresholds {file} where this model decodes with --false-alarms-per-hour.")
