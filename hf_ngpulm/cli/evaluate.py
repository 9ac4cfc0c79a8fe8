"""Define the command `hf-ngpulm evaluate`."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from typing import Any

import typer

from ..common.launch import Processes, launched_alone
from ..common.progress import Bars
from . import library, options
from .models import load_recogniser, normalisation_of, phrases_and_entities
from .output import interruptible, print_json, print_line, print_table, tell

UNREADABLE = 3  # exit status if some audio couldn't be read
ALONE = (
    "accelerate has started one process only; for several on CPUs or on one GPU, pass --multi_gpu instead of --cpu to "
    "accelerate launch (or use MPI: mpirun -np 2 hf-ngpulm evaluate ...)"
)


@dataclass(frozen=True)
class Comparing:
    """Options for comparing results."""

    baseline: bool = options.option(
        "Also evaluate the same search without LM and phrases, and compare.", "--baseline", default=False
    )
    compare: str | None = options.option("Compare with the results (--output) of another run on the same data.")
    confidence: float = options.option("Level of confidence intervals.", default=0.95)


def evaluate(
    *,
    model: options.ModelArgument,
    data: options.DataArgument,
    decoding: options.Decoding,
    boosting: options.Boosting,
    fields: options.Data,
    adjusted: options.Adjusted,
    rescoring: options.Rescoring,
    on_cluster: options.OnCluster,
    comparing: Comparing,
    batch_size: int = options.option("Recordings decoded together.", default=16, min=1),
    chunk_length: float = options.option("Cut longer recordings into chunks of this many seconds.", default=40.0, min=1),
    normalise: options.NormaliseOption = "none",
    word_confidence: str | None = options.option(
        "Also measure the calibration of word confidences: max_prob, gibbs, tsallis or renyi, or a file from `hf-ngpulm tune`."
    ),
    output: str | None = options.option("File for results: a line of JSON per recording.", "--output", "-o"),
    resume: bool = options.option(
        "Continue from existing results in --output; --no-resume refuses them.", "--resume/--no-resume", default=True
    ),
    device: options.DeviceOption = None,
    dtype: str | None = options.option("float32, float16 or bfloat16 [default: float32 on a CPU, otherwise the model's]."),
    num_threads: int | None = options.option("Threads of the model on a CPU.", min=1),
    as_json: options.JsonOption = False,
) -> None:
    """Measure error rates and speed of a recogniser on recordings with transcripts.

    hf-ngpulm evaluate nvidia/parakeet-ctc-0.6b test.jsonl --lm org/my-lm --lm-weight 1.0 --num-beams 8 --baseline

    Under `accelerate launch --multi_gpu --num_processes N -m hf_ngpulm.cli evaluate ...`, torchrun or `mpirun -np N`, the
    processes share the recordings. Pass `--multi_gpu` on CPUs, too, because accelerate starts only one process with `--cpu`. If
    a run with --output was killed, repeat the command to resume it. The exit status is 3 if some audio could not be read.
    """
    import torch

    baseline, compare, confidence = comparing.baseline, comparing.compare, comparing.confidence
    if not 0 < confidence < 1:
        raise ValueError(f"--confidence should lie between 0 and 1, as in 0.95, got {confidence}")
    normalisation = normalisation_of(normalise)
    earlier = None if compare is None else library.read_results(compare, normalisation)
    processes = Processes()  # first, because accelerate sets the number of threads
    rank, size = processes.rank, processes.size
    if launched_alone():
        tell(ALONE)
    if not resume:
        _refuse_existing(output, baseline, size)
    recordings = library.read_recordings(data, **vars(fields))
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    common, from_entities = phrases_and_entities(boosting.phrases)
    if from_entities and boosting.false_alarms_per_hour is not None:
        raise ValueError("--false-alarms-per-hour takes one list of phrases for all recordings; leave out from-entities")
    settings = options.given(decoding, adjusted, rescoring, **{**vars(boosting), "phrases": None})
    if common or from_entities:
        settings["phrases"] = common
    if baseline and not settings.keys() & {"lm", "phrases", "rescorer", "corrections"}:
        raise ValueError("--baseline leaves out language model and phrases, but there are none; add --lm or --phrases")
    settings |= options.given(confidence=word_confidence)
    elsewhere = on_cluster.arguments()
    if elsewhere:
        library.refuse_idle(
            {"--num-threads": num_threads}, "has no effect with --ray, which gives each actor its CPUs; leave it out"
        )
    asr: Any = None if elsewhere and not baseline else load_recogniser(model, "cpu" if elsewhere else device, dtype, **settings)
    bars = Bars(rank == 0 and not as_json and sys.stderr.isatty())

    def run(name: str, path: str | None, boost_entities: bool, changes: dict[str, Any]) -> library.Evaluation | None:
        with bars.stage(name, math.ceil(len(recordings) / size)) as bar:
            if elsewhere:
                idle = {*asr.of_an_lm, "phrase_weight", *library.OF_LOOKS} if "lm" in changes else ()
                kept = {name: value for name, value in settings.items() if name not in idle} | changes
                changes = {"device": device, "dtype": dtype, **elsewhere, **options.given(**kept)}
            return library.evaluate(
                model if elsewhere else asr, recordings, batch_size=batch_size, chunk_seconds=chunk_length,
                entities_as_phrases=boost_entities, normalise=normalisation, output=path, report=tell,
                progress=lambda done: bar.update(done - bar.n), **changes,
            )  # fmt: skip

    without, less = None, {}
    try:
        with interruptible(lambda: _kept(output)):
            evaluation = run("evaluation", output, from_entities, {})
            if baseline:
                less = library.without_lm(asr)
                without = run("baseline", _baseline_path(output), False, less)
    except ConnectionError as error:
        raise (error if size == 1 else ConnectionError(f"{error}; {_kept(output)}")) from None
    if evaluation is None:
        return
    runs = {"evaluation": evaluation} | ({} if without is None else {"baseline": without})
    others = {"baseline": without, str(compare): earlier}
    comparisons = {name: evaluation.compare(other, confidence) for name, other in others.items() if other is not None}
    if as_json:
        for name, one in runs.items():
            print_json({"run": name, **one.summary(confidence)})
        for other, compared in comparisons.items():
            print_json({"run": "evaluation", "compared_with": other, **compared.summary()})
    else:
        _show(runs, comparisons, confidence, f"{os.path.basename(model.rstrip('/'))} on {recordings.source}")
        if search := ", ".join(f"{name} {value}" for name, value in less.items() if value is not None):
            print_line(f"Without LM: the same search, {search}.")
    for warning in evaluation.warnings:
        tell(warning)
    end_if_unreadable(len(evaluation.unreadable), len(evaluation.utterances))


def end_if_unreadable(unreadable: int, recordings: int) -> None:
    """If some recordings could not be read, print the number of these recordings, and exit with status 3."""
    if unreadable:
        tell(f"{unreadable} of {recordings} recordings could not be read")
        raise typer.Exit(UNREADABLE)


def _kept(output: str | None) -> str:
    """Return a message that says which results are kept after an interrupted run."""
    if output is None:
        return "nothing is kept; with --output results.jsonl, a run keeps its results and can resume"
    return f"finished results are kept beside {output}: run the same command again to resume"


def _baseline_path(output: str | None) -> str | None:
    """Return the path of the baseline's results, such as `results.baseline.jsonl` for `results.jsonl`."""
    if output is None:
        return None
    stem, ending = os.path.splitext(output)
    return f"{stem}.baseline{ending}"


def _refuse_existing(output: str | None, baseline: bool, size: int) -> None:
    if size > 1:
        raise ValueError("--no-resume works in one process only; with several, remove the results in --output by hand")
    if output is None:
        raise ValueError("--no-resume without --output; there is nothing to resume")
    for path in (output, *([_baseline_path(output)] if baseline else [])):
        for there in (f"{path}", f"{path}.parts"):
            if os.path.exists(there):
                raise ValueError(f"{there} exists; remove it, name another --output, or leave --no-resume out to continue it")


def _show(runs: dict[str, library.Evaluation], comparisons: dict[str, library.Compared], level: float, title: str) -> None:
    facts = [_facts(one, level) for one in runs.values()]
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    rows = [[name, *(of_run.get(name, "") for of_run in facts)] for name in names]
    print_table(rows, ["", *({"evaluation": "", "baseline": "without LM"}[name] for name in runs)], title)
    print_line(f"Decoder alone: {runs['evaluation'].measured}; in one process, after warm-up.")
    for other, compared in comparisons.items():
        of = compared.comparison
        left_out = f", {compared.alone} left out" if compared.alone else ""
        print_line(
            f"Against {other}: WER {100 * of.difference:+.2f} points ({100 * of.low:+.2f} to {100 * of.high:+.2f}), "
            f"p = {of.p_value:.2g} that it is no better ({compared.utterances} utterances{left_out})."
        )


def _facts(evaluation: library.Evaluation, level: float) -> dict[str, str]:
    figures = evaluation.summary(level)

    def rate(name: str) -> str:
        bounds = figures[f"{name}_interval"]
        return _number(figures[name], 2) + ("" if bounds is None else f"  ({bounds[0]:.2f} to {bounds[1]:.2f})")

    rows = {
        "WER, %": rate("wer"),
        "substitutions, deletions, insertions": ", ".join(f"{figures[name]:,}" for name in library.EDITS),
    }
    rows["CER, %"] = rate("cer")
    if "entity_wer" in figures:
        rows["entity WER, %"] = rate("entity_wer")
        shares = (figures[f"entity_{name}"] for name in ("precision", "recall", "f1"))
        rows["entity precision, recall, F1, %"] = ", ".join(_number(share, 1) for share in shares)
    if "calibration_error" in figures:
        rows["calibration error of confidences, %"] = _number(figures["calibration_error"], 1)
    rows["x real time, model with decoder"] = _number(figures["rtfx"], 1)
    rows["x real time, decoder alone"] = _number(figures["rtfx_decoder"], 1)
    rows["recordings, seconds of audio"] = f"{figures['utterances']:,}, {figures['audio_seconds']:,.1f}"
    rows["words of transcripts"] = f"{figures['words']:,}"
    for name, count in (
        ("without transcript", figures["without_transcript"]),
        ("of 0 s", figures["without_audio"]),
        ("ran away (cut, or the same phrase again and again)", figures["runaways"]),
        ("unreadable, skipped", len(figures["unreadable"])),
    ):
        if count:
            rows[name] = f"{count:,}"
    return rows


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
