"""hf-ngpulm tune --grammar"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import library, options
from .evaluate import end_if_unreadable
from .files import refuse_existing
from .models import load_recogniser
from .output import percent, print_line, print_result, print_table, tell


def tune_grammar(
    model: str,
    data: str | None,
    of_grammars: Any,
    keep: Any,
    search: options.SearchOptions,
    fields: options.Data,
    batch_size: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Find how much evidence a grammar needs with a model, show and save it. The arguments are those of `hf-ngpulm tune`."""
    if not of_grammars.other:
        raise ValueError("--grammar needs ordinary speech, to count what is taken for a command: add --other DATA")
    if keep.save and not (Path(of_grammars.grammar) / "grammar.json").is_file():
        raise ValueError(
            f"--save writes to the grammar's folder, but {of_grammars.grammar} isn't one; name a folder: --save-to FOLDER"
        )
    refuse_existing([keep.save_to] if keep.save_to else [], keep.overwrite)
    grammar = library.Grammar.load(of_grammars.grammar)
    read = [library.read_recordings(source, **vars(fields)) for source in of_grammars.other]
    other = [recording for recordings in read for recording in recordings]
    commands: Any = [] if data is None else library.read_recordings(data, **vars(fields))
    wanted = options.given(false_accepts_per_hour=of_grammars.false_accepts_per_hour)
    asr = load_recogniser(model, device, **options.given(search))
    result = library.tune_grammar(asr, grammar, other, commands, **wanted, batch_size=batch_size, report=tell)
    folder = keep.save_to or (of_grammars.grammar if keep.save else None)
    if folder is not None:
        grammar.with_evidence({result.family: result.evidence}).save_pretrained(folder)
    told = {**result.to_dict(), "saved_to": folder}
    print_result(told, keep.output, as_json, lambda: _show(result, folder))
    end_if_unreadable(len(result.unreadable), len(other) + len(commands))


def _show(result: library.GrammarTuning, folder: str | None) -> None:
    def row(point: library.OperatingPoint) -> list[str]:
        missed = percent(point.missed / result.commands) if result.commands else "-"
        found = [f"{point.least_evidence:.2f}", str(point.false_accepts), f"{point.false_accepts / result.hours:.2f}", missed]
        return ["*" if point == result.chosen else "", *found]

    headings = ["", "least evidence", "false accepts", "an hour", "commands missed"]
    title = f"{result.hours:.2f} hours of other speech, {result.commands} commands"
    print_table([row(point) for point in result.curve], headings, title, bold=_place(result))
    print_line(
        f"For {result.family} models: evidence from {result.chosen.least_evidence:.2f} on is understood (sensitivity 0.5). "
        f"False accepts an hour: {result.chosen.false_accepts / result.hours:.2f}, with 95% confidence at most "
        f"{result.highest_rate:.2f}."
    )
    if result.wrong:
        print_line(f"{len(result.wrong)} commands are understood as something else, such as {result.wrong[0]}.")
    if folder is not None:
        print_line(f"Saved in {folder}.")


def _place(result: library.GrammarTuning) -> int | None:
    return result.curve.index(result.chosen) if result.chosen in result.curve else None
