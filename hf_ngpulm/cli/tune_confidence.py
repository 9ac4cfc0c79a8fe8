"""hf-ngpulm tune --word-confidence"""

from __future__ import annotations

from typing import Any

from . import library, options
from .evaluate import end_if_unreadable
from .models import load_recogniser, normalisation_of, phrases_and_entities
from .output import percent, print_line, print_result, print_table, tell


def tune_confidence(
    model: str,
    data: str | None,
    measure: str,
    phrases: list[str] | None,
    normalise: str | None,
    keep: Any,
    search: options.SearchOptions,
    fields: options.Data,
    batch_size: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Calibrate the confidences of words, show and save it. The arguments are those of `hf-ngpulm tune`."""
    if data is None:
        raise ValueError("--word-confidence is calibrated on speech with transcripts: hf-ngpulm tune MODEL DATA")
    if keep.save:
        raise ValueError("--save writes to an LM, calibrations go to a file of their own: --save-to calibration.json")
    if keep.save_to:  # now, not after an hour
        library.refuse_other(keep.save_to)
    common, from_entities = phrases_and_entities(phrases)
    if from_entities:
        raise ValueError("--word-confidence takes one list of phrases for all recordings; leave out from-entities")
    recordings = library.read_recordings(data, **vars(fields))
    asr = load_recogniser(model, device, **options.given(search, phrases=common or None))
    result = library.tune_confidence(
        asr, recordings, measure, normalise=normalisation_of(normalise), batch_size=batch_size, report=tell
    )
    if keep.save_to:
        result.save(keep.save_to)
    told = {**result.to_dict(), "saved_to": keep.save_to}
    print_result(told, keep.output, as_json, lambda: _show(result, keep.save_to))
    end_if_unreadable(len(result.unreadable), len(recordings))


def _show(result: library.ConfidenceTuning, file: str | None) -> None:
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
