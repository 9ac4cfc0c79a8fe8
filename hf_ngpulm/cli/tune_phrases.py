"""hf-ngpulm tune --phrases --false-alarms-per-hour"""

from __future__ import annotations

from typing import Any

from . import library, options
from .evaluate import end_if_unreadable
from .models import load_recogniser, phrases_and_entities
from .output import percent, print_line, print_result, print_table, tell


def tune_phrases(
    model: str,
    data: str | None,
    phrases: list[str] | None,
    phrase_weights: str | None,
    false_alarms_per_hour: float,
    keep: Any,
    search: options.SearchOptions,
    fields: options.Data,
    batch_size: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Fit the thresholds of a second look at phrases, show and save them. The arguments are those of `hf-ngpulm tune`."""
    if data is None or not phrases:
        raise ValueError("--false-alarms-per-hour is found on ordinary speech, with a list of phrases: add DATA and --phrases")
    if keep.save:
        raise ValueError("--save writes to an LM, thresholds go to a file of their own: --save-to thresholds.json")
    if keep.save_to:  # now, not after an hour
        library.refuse_other(keep.save_to)
    weight = None if phrase_weights is None else _weight(phrase_weights)
    recordings = library.read_recordings(data, **vars(fields))
    common, from_entities = phrases_and_entities(phrases)
    if from_entities:
        common = [*common, *dict.fromkeys(entity for recording in recordings for entity in recording.entities)]
    asr = load_recogniser(model, device, **options.given(search))
    result = library.tune_phrases(
        asr, recordings, common, phrase_weight=weight, false_alarms_per_hour=false_alarms_per_hour, batch_size=batch_size,
        report=tell,
    )  # fmt: skip
    if keep.save_to:
        result.save(keep.save_to)
    told = {**result.to_dict(), "saved_to": keep.save_to}
    print_result(told, keep.output, as_json, lambda: _show(result, keep.save_to))
    end_if_unreadable(len(result.unreadable), len(recordings))


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--phrase-weight should be one number with --false-alarms-per-hour, got {text!r}") from None


def _show(result: library.PhraseTuning, file: str | None) -> None:
    def row(point: library.LookPoint) -> list[str]:
        recall = percent(point.heard / result.said if result.said else None)
        found = [f"{point.false_alarms_per_hour:g}", f"{point.threshold:.2f}", str(point.false_alarms)]
        return ["*" if point == result.chosen else "", *found, f"{point.false_alarms / result.hours:.2f}", recall]

    headings = ["", "--false-alarms-per-hour", "threshold", "false alarms", "an hour", "heard"]
    title = f"{result.hours:.2f} hours of speech, {result.phrases:,} phrases, said {result.said:,} times"
    print_table(map(row, result.curve), headings, title, bold=result.curve.index(result.chosen))
    offset, slope, *_ = result.thresholds
    anyway = f", of these {percent(result.heard_anyway / result.said)} without the second look" if result.said else ""
    print_line(
        f"Fitted to {result.weighed} false alarms: offset {offset:.2f}, slope {slope:.2f}. False alarms an hour: "
        f"{result.chosen.false_alarms / result.hours:.2f}, with 95% confidence at most {result.highest_rate:.2f}. Heard: "
        f"{result.chosen.heard} of {result.said}{anyway}."
    )
    if file is not None:
        print_line(f"Saved in {file}: add --thresholds {file} where this model decodes with --false-alarms-per-hour.")
