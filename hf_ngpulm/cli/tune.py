"""Define the command `hf-ngpulm tune`."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument

from ..common.extras import needed
from . import library, options
from .evaluate import end_if_unreadable
from .files import refuse_existing
from .models import load, load_recogniser, load_tokenizer, normalisation_of, phrases_and_entities
from .output import interruptible, percent, print_json, print_line, print_table, tell
from .tune_jobs import Job, tune_confidence, tune_grammar, tune_phrases

MOST_SHOWN = 24
GRID = "from:to:step, or numbers with commas"
DATA = "Recordings with transcripts, as `hf-ngpulm evaluate` takes them; with --grammar commands, which may be left out."


@dataclass(frozen=True)
class Grids:
    """Options for the weights that `hf-ngpulm tune` tries; see `hf_ngpulm.evaluation.tune_weights`."""

    lm_weights: str | None = options.option(f"Weights of the LM: {GRID} [default: tuned].", "--weights", "--lm-weight")
    betas: str | None = options.option(
        f"For CTC with a beam: bonuses for each token: {GRID} [default: in proportion to the LM's weight].", "--betas", "--beta"
    )
    phrase_weights: str | None = options.option(
        f"Weights of the phrases: {GRID} [default: tuned].", "--phrase-weights", "--phrase-weight"
    )
    ilm_weights: str | None = options.option(
        f"For transducers and attention decoders: weights of the subtracted internal LM: {GRID} [default: tuned for attention "
        "decoders, in proportion to the LM's weight for transducers].",
        "--ilm-weights",
        "--ilm-weight",
    )
    source_weights: str | None = options.option(
        f"Weights of --source-lm: {GRID} [default: half of the LM's weight].", "--source-weights", "--source-weight"
    )
    rescorer_weights: str | None = options.option(
        f"Weights of --rescorer: {GRID} [default: tuned].", "--rescorer-weights", "--rescorer-weight"
    )
    word_bonuses: str | None = options.option(
        f"With --rescorer: bonuses per word: {GRID} [default: tuned].", "--word-bonuses", "--word-bonus"
    )


@dataclass(frozen=True)
class OfSpeech:
    """Options for tuning on ordinary speech; see `hf_ngpulm.evaluation.tune_phrases` and `tune_confidence`."""

    false_alarms_per_hour: float | None = options.option(
        "With --phrases: fit thresholds of a second look that accepts about this many wrong phrases per hour.", min=1e-6
    )
    word_confidence: str | None = options.option(
        "Calibrate the confidences of words by this measure: max_prob, gibbs, tsallis or renyi."
    )


# Options that tune something else than weights; and for each, the other options that have an effect on it.
JOBS = {
    "grammar": {"other", "false_accepts_per_hour", "overwrite"},
    "false_alarms_per_hour": {"phrases", "phrase_weights"},
    "word_confidence": {"phrases", "normalise"},
}


@interruptible(lambda: "nothing is saved")
def tune(
    *,
    model: options.ModelArgument,
    data: Annotated[str | None, Argument(metavar="[DATA]", help=DATA)] = None,
    grids: Grids,
    of_grammars: options.OfGrammars,
    of_speech: OfSpeech,
    keep: options.Keep,
    search: options.SearchOptions,
    fields: options.Data,
    source_lm: str | None = options.of_decoders("source_lm"),
    rescorer: str | None = options.of_decoders("rescorer"),
    phrases: options.PhrasesOption = None,
    corrections: str | None = options.of_log(),
    by: str = options.option("Rate to minimise: wer, cer or entity_wer.", default="wer"),
    normalise: options.NormaliseOption = "none",
    refine: int = options.option(
        "Number of refinements, each of which halves the steps around the best value.", default=2, min=0, max=10
    ),
    held_out: float = options.option(
        "Share of the utterances that aren't tuned on; their errors are reported. Such as 0.5.", default=0.0
    ),
    batch_size: int = options.option("Number of recordings in a batch of the model.", default=8, min=1),
    memory: str = options.option("Memory limit for the model's outputs; the rest goes to disk.", default="2G"),
    device: options.DeviceOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Find the weights with which a model and an LM make the fewest errors. Or tune the evidence that grammars and phrases
    need, or calibrate confidences.

    hf-ngpulm tune nvidia/parakeet-ctc-0.6b dev.jsonl --lm my-lm --num-beams 8 --save --plot wer.png
    hf-ngpulm tune nvidia/parakeet-ctc-0.6b commands.jsonl --grammar orders --other speech.jsonl --save
    hf-ngpulm tune nvidia/parakeet-ctc-0.6b speech.jsonl --phrases names.txt --false-alarms-per-hour 1 --save-to thresholds.json
    hf-ngpulm tune nvidia/parakeet-ctc-0.6b dev.jsonl --word-confidence tsallis --save-to calibration.json

    The weights of the LM, of phrases and of a decoder's internal LM are always tuned; a single value, such as --lm-weight 0.5,
    stays fixed.

    If no weight is given, saved weights apply wherever this model decodes with this LM. If some audio could not be read, the
    weights are tuned and saved without that audio, and the exit status is 3.

    With --grammar, DATA are commands and may be left out. The saved bound applies to all models of the family (CTC, transducer,
    attention) that use the grammar. --sensitivity 0.5 selects this bound.

    With --word-confidence, DATA is speech with transcripts. A calibrated confidence is the probability that a word is right.

    With --phrases and --false-alarms-per-hour, DATA is ordinary speech with transcripts. If a transcript doesn't contain a
    recognised phrase, the phrase is a false alarm.
    """
    asked = options.given(
        grids, of_grammars, of_speech, source_lm=source_lm, rescorer=rescorer, phrases=phrases, corrections=corrections,
        plot=keep.plot, overwrite=keep.overwrite, held_out=held_out or None,
    )  # fmt: skip
    others = {"by": (by, "wer"), "normalise": (normalise, "none"), "refine": (refine, 2), "memory": (memory, "2G")}
    asked |= {name: value for name, (value, default) in others.items() if value != default}
    job = next((name for name in JOBS if name in asked), None)
    if job is not None:
        idle = {_flag(name): True for name in sorted(asked.keys() - JOBS[job] - {job})}
        library.refuse_idle(idle, f"has no effect with {_flag(job)}; leave it out")
        shared = Job(model, data, keep, search, fields, batch_size, device, as_json)
        if job == "grammar":
            tune_grammar(shared, of_grammars)
        elif job == "false_alarms_per_hour":
            tune_phrases(shared, phrases, grids.phrase_weights, asked[job])
        else:
            tune_confidence(shared, asked[job], phrases, normalise)
        return
    of_none = {"--other": of_grammars.other, "--false-accepts-per-hour": of_grammars.false_accepts_per_hour}
    library.refuse_idle(of_none, "needs a grammar; add --grammar")
    if data is None:
        raise ValueError("name the recordings to tune on: hf-ngpulm tune MODEL DATA")
    if search.lm is None and not phrases and rescorer is None and corrections is None:
        raise ValueError("there is nothing to weigh: add --lm, --phrases, --corrections or --rescorer")
    if (keep.save or keep.save_to) and search.lm is None:
        raise ValueError("--save and --save-to write to a language model: add --lm")
    if keep.save and not os.path.isdir(str(search.lm)):
        raise ValueError(f"--save writes to the LM's folder, but {search.lm} isn't one; name a folder: --save-to FOLDER")
    refuse_existing([keep.save_to] if keep.save_to else [], keep.overwrite)
    if keep.plot:
        if not keep.plot.lower().endswith((".png", ".pdf", ".svg")):  # now, not after an hour
            raise ValueError(f"--plot writes .png, .pdf or .svg, by the file's ending; got {keep.plot!r}")
        with needed("plots", "plots"):
            importlib.import_module("matplotlib")
    recordings: Any = library.read_recordings(data, **vars(fields))
    settings = options.given(search, source_lm=source_lm, rescorer=rescorer)
    if search.lm is not None:
        # An explicit weight keeps settings out that the LM remembers.
        settings |= {"lm": load(search.lm, model), "lm_weight": 0.5}
    base: Any = settings.get("lm")
    common, from_entities = phrases_and_entities(phrases)
    if corrections is not None:
        log = library.CorrectionLog(corrections)
        common = [*common, *log.phrases()]
        learned = log.language_model(base, load_tokenizer(model))
        settings |= {} if learned is None else {"lm": learned, "lm_weight": 0.5}
    if from_entities:
        recordings = [recording for recording in recordings if recording.text is not None]
        settings["phrases"] = [[*common, *recording.entities] or None for recording in recordings]
    elif common:
        settings["phrases"] = common
    result = library.tune_weights(
        load_recogniser(model, device, **settings), recordings, **vars(grids), by=by,
        normalise=normalisation_of(normalise), refine=refine, held_out=held_out, batch_size=batch_size, memory=memory,
        progress=sys.stderr.isatty() and not as_json, report=tell,
    )  # fmt: skip
    if keep.output:
        result.save(keep.output)
    if keep.plot:
        result.plot(keep.plot)
    folder = keep.save_to or (search.lm if keep.save else None)
    if folder is not None:
        base.remember(result.tuned)
        base.save_pretrained(folder)
    if as_json:
        summary = result.to_dict()
        for point in summary.pop("points"):
            print_json(point)
        print_json({**summary, "saved_to": folder})
    else:
        _show(result, folder)
    end_if_unreadable(len(result.unreadable), result.recordings)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _show(result: library.TuningResult, folder: str | None) -> None:
    best, baseline, by = result.best, result.baseline, result.by
    fewest = sorted(result.points, key=lambda point: point.counts[by].errors)[:MOST_SHOWN]
    shown = [point for point in result.points if point in fewest]
    left_out = f" (the best {len(shown)} of {len(result.points)})" if len(shown) < len(result.points) else ""
    with_entities = best.entities is not None

    def row(point: library.TuningPoint) -> list[str]:
        weights = ["without" if point is baseline else f"{point.setting[name]:g}" for name in best.setting]
        counts = [str(point.edits[name]) for name in library.EDITS]
        rates = [percent(point.cer), *([percent(point.entity_wer)] if with_entities else [])]
        return ["*" if point is best else "", *weights, percent(point.wer), *counts, *rates]

    headings = ["", *best.setting, "WER", "sub", "del", "ins", "CER", *(["entity WER"] if with_entities else [])]
    title = f"{result.utterances} utterances, {best.words.length:,} words{left_out}"
    print_table([row(point) for point in (baseline, *shown)], headings, title, bold=1 + shown.index(best))
    interval, measure = result.interval, by.replace("_", " ").replace("wer", "WER").replace("cer", "CER")
    setting = ", ".join(f"{name} {value:g}" for name, value in best.setting.items())
    print_line(
        f"Best: {setting}: {measure} {percent(interval.rate)} ({100 * interval.level:g}% interval {percent(interval.low)} to "
        f"{percent(interval.high)}), without LM and phrases {percent(getattr(baseline, by))}."
    )
    if result.held_out is not None and result.held_out_baseline is not None:
        print_line(
            f"On the utterances that were held out: {percent(getattr(result.held_out, by))}, without "
            f"{percent(getattr(result.held_out_baseline, by))}."
        )
    if folder is not None:
        print_line(f"Saved in {folder}: this model with this LM decodes with these weights from now on.")
