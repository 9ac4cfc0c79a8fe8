"""hf-ngpulm tune"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..evaluation import TuningPoint, TuningResult, read_recordings, tune_weights
from .evaluate import UNREADABLE, tell
from .models import device_of, load, load_recogniser, read_phrases
from .options import DeviceOption, JsonOption, ModelArgument, PhrasesOption

MOST_SHOWN = 24
FROM_ENTITIES = "from-entities"
GRID = "from:to:step, or numbers with commas"


@dataclass(frozen=True)
class Grids:
    """What to try; see `hf_ngpulm.evaluation.tune_weights`."""

    weights: Annotated[
        str | None,
        typer.Option("--weights", "--lm-weight", help=f"Weights of the LM, or the one to keep to: {GRID} [default: tuned]."),
    ] = None
    betas: Annotated[
        str | None,
        typer.Option(
            "--betas",
            "--beta",
            help=f"For CTC with a beam: bonuses for each token: {GRID} [default: in proportion to the LM's weight].",
        ),
    ] = None
    phrase_weights: Annotated[
        str | None,
        typer.Option("--phrase-weights", "--phrase-weight", help=f"Weights of the phrases: {GRID} [default: tuned]."),
    ] = None
    ilm_weights: Annotated[
        str | None,
        typer.Option(
            "--ilm-weights",
            "--ilm-weight",
            help=f"For transducers: weights of the internal LM, which is subtracted: {GRID} [default: it isn't].",
        ),
    ] = None


@dataclass(frozen=True)
class Keep:
    """Where to keep what was found."""

    save: Annotated[bool, typer.Option("--save", help="Write the best setting to the LM's folder, to decode by.")] = False
    save_to: Annotated[str | None, typer.Option("--save-to", help="Or save the LM with it to another folder.")] = None
    output: Annotated[str | None, typer.Option("--output", "-o", help="JSON file to write all settings and results to.")] = None
    plot: Annotated[str | None, typer.Option("--plot", help="Image (.png, .pdf, .svg) of error rates against weights.")] = None


def tune(
    model: ModelArgument,
    data: Annotated[str, typer.Argument(help="Recordings with transcripts: manifest, folder, or Hub id of a dataset.")],
    grids: Grids,
    keep: Keep,
    lm: Annotated[str | None, typer.Option("--lm", help="Language model: folder, Hub id, ARPA or .nemo file.")] = None,
    phrases: PhrasesOption = None,
    num_beams: Annotated[int | None, typer.Option("--num-beams", min=1, help="Beam of the search to tune for.")] = None,
    strategy: Annotated[
        str | None, typer.Option("--strategy", help="For transducers: greedy, alsd or aes; for CTC: graph.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="What to choose by: wer, cer or entity_wer.")] = "wer",
    normalise: Annotated[
        str | None, typer.Option("--normalise", help="What is done to transcripts first: lower, no-punctuation, whisper-en ...")
    ] = None,
    refine: Annotated[int, typer.Option("--refine", min=0, max=10, help="How often steps are halved around the best.")] = 2,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of the utterances to report on only, such as 0.5.")
    ] = 0.0,
    split: Annotated[str | None, typer.Option("--split", help="Of a dataset.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many recordings.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Recordings that the model is given together.")] = 8,
    memory: Annotated[str, typer.Option("--memory", help="What the model's outputs may take; more goes to disk.")] = "2G",
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the weights with which a model and an LM make the fewest errors; with --save, the LM remembers them.

    hf-ngpulm tune nvidia/parakeet-ctc-0.6b dev.jsonl --lm my-lm --num-beams 8 --save --plot wer.png

    The weights of the LM and of phrases are tuned whatever else is; a single value, as in --lm-weight 0.5, stays.

    Wherever this model decodes with this LM, and no weight is given, what was saved holds from then on. The exit status is 3 if
    some audio could not be read; weights are found, and saved, all the same.
    """
    if lm is None and not phrases:
        raise ValueError("name what to weigh: --lm, or --phrases, or both")
    if (keep.save or keep.save_to) and lm is None:
        raise ValueError("--save and --save-to write to a language model: add --lm")
    if keep.save and not os.path.isdir(str(lm)):
        raise ValueError(f"--save writes to the LM's folder, but {lm} isn't one; name a folder to save it to: --save-to FOLDER")
    if keep.plot:
        importlib.import_module("matplotlib")  # not after an hour
    recordings: Any = read_recordings(data, split=split, limit=limit)
    settings: dict[str, Any] = {"num_beams": num_beams, "strategy": strategy}
    language_model = None
    if lm is not None:
        language_model = load(lm, model)
        settings |= {"lm": language_model, "lm_weight": 0.5}  # any weight: one that was tuned before plays no part
    if phrases == [FROM_ENTITIES]:
        recordings = [recording for recording in recordings if recording.text is not None]
        settings["phrases"] = [list(recording.entities) or None for recording in recordings]
    elif phrases:
        settings["phrases"] = read_phrases(phrases)
    asr = load_recogniser(model, device_of(device), **{name: value for name, value in settings.items() if value is not None})
    result = tune_weights(
        asr, recordings, grids.weights, grids.betas, grids.phrase_weights, grids.ilm_weights, by=by, normalise=normalise,
        refine=refine, held_out=held_out, batch_size=batch_size, memory=memory,
        progress=sys.stderr.isatty() and not as_json, report=tell,
    )  # fmt: skip
    if keep.output:
        result.save(keep.output)
    if keep.plot:
        result.plot(keep.plot)
    folder = keep.save_to or (lm if keep.save else None)
    if folder is not None and language_model is not None:
        language_model.remember(result.tuned)
        language_model.save_pretrained(folder)
    if as_json:
        summary = result.to_dict()
        for point in summary.pop("points"):
            print(json.dumps(point))
        print(json.dumps({**summary, "saved_to": folder}))
    else:
        _show(result, folder)
    if result.unreadable:
        tell(f"{len(result.unreadable)} of {result.recordings} recordings could not be read")
        raise typer.Exit(UNREADABLE)


def _show(result: TuningResult, folder: str | None) -> None:
    console = Console(highlight=False)
    best = sorted(result.points, key=lambda point: point.counts[result.by].errors)[:MOST_SHOWN]
    shown = [point for point in result.points if point in best]
    rows: list[tuple[str, TuningPoint]] = [("", result.baseline), *(("*" if p is result.best else "", p) for p in shown)]
    left_out = f" (the best {len(shown)} of {len(result.points)})" if len(shown) < len(result.points) else ""
    table = Table(title=f"{result.utterances} utterances, {result.best.words.length:,} words{left_out}")
    names = list(result.best.setting)
    with_entities = result.best.entities is not None
    headings = ["", *names, "WER", "sub", "del", "ins", "CER", *(["entity WER"] if with_entities else [])]
    for heading in headings:
        table.add_column(heading, justify="right")
    for mark, point in rows:
        weights = ["without" if point is result.baseline else f"{point.setting[name]:g}" for name in names]
        words = point.words
        counts = [str(count) for count in (words.substitutions, words.deletions, words.insertions)]
        rates = [_percent(point.cer), *([_percent(point.entity_wer)] if with_entities else [])]
        table.add_row(mark, *weights, _percent(point.wer), *counts, *rates, style="bold" if mark else None)
    console.print(table)
    interval, measure = result.interval, result.by.replace("_", " ").replace("wer", "WER").replace("cer", "CER")
    setting = ", ".join(f"{name} {value:g}" for name, value in result.best.setting.items())
    console.print(
        f"Best: {setting}: {measure} {_percent(interval.rate)} ({100 * interval.level:g}% interval {_percent(interval.low)} to "
        f"{_percent(interval.high)}), without LM and phrases {_percent(getattr(result.baseline, result.by))}.",
        soft_wrap=True,
    )
    if result.held_out is not None and result.held_out_baseline is not None:
        console.print(
            f"On the utterances that were held out: {_percent(getattr(result.held_out, result.by))}, without "
            f"{_percent(getattr(result.held_out_baseline, result.by))}.",
            soft_wrap=True,
        )
    if folder is not None:
        console.print(f"Saved in {folder}: this model with this LM decodes so from now on.", soft_wrap=True)


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}%"
