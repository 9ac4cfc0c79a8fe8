"""hf-ngpulm evaluate"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from ..common.progress import Bars
from ..evaluation import evaluating, read_recordings
from ..evaluation.processes import WorkerLostError, launched_alone, rank_and_size
from ..evaluation.results import Compared, Evaluation, read_results
from .models import load_recogniser, read_phrases
from .options import Data, Decoding, DeviceOption, JsonOption, ModelArgument, PhraseWeightOption, given

FROM_ENTITIES = "from-entities"
UNREADABLE = 3  # exit status if some audio couldn't be read
LOST = 1  # if another process died
NORMALISE = {"none": None, "basic": "whisper", "english": "whisper-en"}
WITHOUT = ("lm", "phrases", "beta", "ilm_weight")  # what the baseline goes without


def evaluate(
    model: ModelArgument,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Manifest (JSON lines, also NeMo's; TSV, CSV), folder of audio with transcripts, saved dataset, Parquet file, "
            "or the Hub id of a dataset (org/name or org/name:config).",
        ),
    ],
    decoding: Decoding,
    fields: Data,
    phrases: Annotated[
        list[str] | None,
        typer.Option(
            "--phrases",
            help="A file of phrases, one a line, or a phrase itself, or from-entities: each recording's own entities; may be "
            "given several times.",
        ),
    ] = None,
    phrase_weight: PhraseWeightOption = None,
    beta: Annotated[float | None, typer.Option("--beta", help="For CTC: bonus for each token in beam search.")] = None,
    ilm_weight: Annotated[
        float | None, typer.Option("--ilm-weight", help="For transducers: weight of the internal language model, subtracted.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Recordings decoded together.")] = 16,
    chunk_length: Annotated[
        float, typer.Option("--chunk-length", min=1, help="Seconds from which recordings are cut into chunks.")
    ] = 40.0,
    normalise: Annotated[
        str,
        typer.Option(
            help="Of transcripts and hypotheses: none, basic or english (Whisper's), or lower, no-punctuation ... with commas."
        ),
    ] = "none",
    output: Annotated[str | None, typer.Option("--output", "-o", help="File for results: a line of JSON a recording.")] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Evaluate without LM and phrases, too, and compare.")] = False,
    compare: Annotated[
        str | None, typer.Option("--compare", help="Results (--output) of another run on the same data, to compare with.")
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Level of confidence intervals.")] = 0.95,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with what is in --output, or refuse if anything is.")
    ] = True,
    device: DeviceOption = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float32, float16 or bfloat16 [default: float32 on a CPU, else the model's].")
    ] = None,
    num_threads: Annotated[int | None, typer.Option("--num-threads", min=1, help="Threads of the model on a CPU.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure error rates and speed of a recogniser on recordings with transcripts.

    hf-ngpulm evaluate nvidia/parakeet-ctc-0.6b test.jsonl --lm org/my-lm --lm-weight 1.0 --num-beams 8 --baseline

    Under `accelerate launch --multi_gpu --num_processes N -m hf_ngpulm.cli evaluate ... --output results.jsonl` processes share
    the recordings, on CPUs too (not with --cpu); as they do under `mpirun -np N`. A run that was killed goes on where it was
    when the same command is given again. The exit status is 3 if some audio could not be read, 1 if another process died.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"--confidence should lie between 0 and 1, as in 0.95, got {confidence}")
    normalisation = NORMALISE.get(normalise, normalise)
    if compare is not None:
        earlier = read_results(compare, normalisation)
    rank, size = rank_and_size()
    if launched_alone():
        tell(
            "accelerate has started one process only; for several on CPUs, or on one GPU, give accelerate launch --multi_gpu, "
            "too, and leave out --cpu (or start them by MPI: mpirun -np 2 hf-ngpulm evaluate ...)"
        )
    if not resume:
        if size > 1:
            raise ValueError("--no-resume is for one process, as others may have begun; remove what is in --output by hand")
        _refuse_existing(output, baseline)
    if size > 1 and output is None:
        raise ValueError(f"{size} processes put their results together in a file: add --output results.jsonl")
    recordings = read_recordings(data, **vars(fields))
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    from_entities = FROM_ENTITIES in (phrases or ())
    common = read_phrases([phrase for phrase in phrases or () if phrase != FROM_ENTITIES])
    settings = given(
        decoding, beta=beta, ilm_weight=ilm_weight, phrases=common if common or from_entities else None,
        phrase_weight=phrase_weight,
    )  # fmt: skip
    if baseline and not settings.keys() & {"lm", "phrases"}:
        raise ValueError(
            "--baseline is the same without language model and phrases, but there is neither; add --lm or --phrases"
        )
    device, kind = evaluating.device_and_dtype(device, dtype)
    asr = load_recogniser(model, device, **kind, **settings)
    bars = Bars(rank == 0 and not as_json and sys.stderr.isatty())

    def run(name: str, path: str | None, boost_entities: bool, changes: dict[str, Any]) -> Evaluation | None:
        with bars.stage(name, math.ceil(len(recordings) / size)) as bar:
            return evaluating.evaluate(
                asr, recordings, batch_size=batch_size, chunk_seconds=chunk_length, entities_as_phrases=boost_entities,
                normalise=normalisation, output=path, report=tell, progress=lambda done: bar.update(done - bar.n), **changes,
            )  # fmt: skip

    try:
        found = run("evaluation", output, from_entities, {})
        without = None
        if baseline:
            less = {name: None for name in WITHOUT if name in ("lm", "phrases") or name in settings}
            without = run("baseline", _baseline_path(output), False, less)
    except WorkerLostError as error:
        print(f"hf-ngpulm: error: {error}", file=sys.stderr)
        raise typer.Exit(LOST) from None
    if found is None:
        return
    runs = {"evaluation": found} | ({"baseline": without} if without is not None else {})
    comparisons = {} if without is None else {"baseline": found.compare(without, confidence)}
    if compare is not None:
        comparisons[compare] = found.compare(earlier, confidence)
    _show(runs, comparisons, confidence, as_json, f"{os.path.basename(model.rstrip('/'))} on {recordings.source}")
    for warning in found.warnings:
        tell(warning)
    if found.unreadable:
        tell(f"{len(found.unreadable)} of {len(found.utterances)} recordings could not be read")
        raise typer.Exit(UNREADABLE)


def tell(message: str) -> None:
    print(f"hf-ngpulm: {message}", file=sys.stderr, flush=True)


def _baseline_path(output: str | None) -> str | None:
    """Return `results.baseline.jsonl` for `results.jsonl`."""
    if output is None:
        return None
    stem, ending = os.path.splitext(output)
    return f"{stem}.baseline{ending}"


def _refuse_existing(output: str | None, baseline: bool) -> None:
    if output is None:
        raise ValueError("--no-resume without --output; there is nothing to resume")
    for path in (output, *([_baseline_path(output)] if baseline else [])):
        for there in (f"{path}", f"{path}.parts"):
            if os.path.exists(there):
                raise ValueError(f"{there} exists; remove it, name another --output, or leave --no-resume out to go on with it")


def _show(runs: dict[str, Evaluation], comparisons: dict[str, Compared], level: float, as_json: bool, title: str) -> None:
    if as_json:
        for name, found in runs.items():
            print(json.dumps({"run": name, **found.summary(level)}, ensure_ascii=False))
        for other, compared in comparisons.items():
            print(json.dumps({"run": "evaluation", "compared_with": other, **compared.summary()}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    table = Table(title=title, show_header=len(runs) > 1)
    table.add_column("")
    for name in runs:
        table.add_column({"evaluation": "", "baseline": "without LM"}[name], justify="right")
    facts = [_facts(found, level) for found in runs.values()]
    for name in {name: None for told in facts for name in told}:
        table.add_row(name, *(told.get(name, "") for told in facts))
    console.print(table)
    first = next(iter(runs.values()))
    console.print(f"Decoder alone: {first.measured}; of one process, after warm-up.", soft_wrap=True)
    for other, compared in comparisons.items():
        of = compared.comparison
        left_out = f", {compared.alone} left out" if compared.alone else ""
        console.print(
            f"Against {other}: WER {100 * of.difference:+.2f} points ({100 * of.low:+.2f} to {100 * of.high:+.2f}), "
            f"p = {of.p_value:.2g} that it is no better ({compared.utterances} utterances{left_out}).",
            soft_wrap=True,
        )


def _facts(found: Evaluation, level: float) -> dict[str, str]:
    told = found.summary(level)
    rows = {}
    for name in ("wer", "cer", "entity_wer"):
        if name in told:
            bounds = told[f"{name}_interval"]
            shown = "" if bounds is None else f"  ({bounds[0]:.2f} to {bounds[1]:.2f})"
            rows[f"{name.replace('_', ' ').replace('wer', 'WER').replace('cer', 'CER')}, %"] = (
                "-" if told[name] is None else f"{told[name]:.2f}{shown}"
            )
        if name == "wer":
            words = (told[kind] for kind in ("substitutions", "deletions", "insertions"))
            rows["substitutions, deletions, insertions"] = ", ".join(f"{number:,}" for number in words)
    if "entity_f1" in told:
        shares = (told[f"entity_{name}"] for name in ("precision", "recall", "f1"))
        rows["entity precision, recall, F1, %"] = ", ".join("-" if share is None else f"{share:.1f}" for share in shares)
    speeds = (told["rtfx"], told["rtfx_decoder"])
    rows["x real time, model with decoder"], rows["x real time, decoder alone"] = (
        "-" if speed is None else f"{speed:,.1f}" for speed in speeds
    )
    rows["recordings, seconds of audio"] = f"{told['utterances']:,}, {told['audio_seconds']:,.1f}"
    rows["words of transcripts"] = f"{told['words']:,}"
    for name, count in (
        ("without transcript", told["without_transcript"]),
        ("of 0 s", told["without_audio"]),
        ("ran away (cut, or the same phrase again and again)", told["runaways"]),
        ("unreadable, skipped", len(told["unreadable"])),
    ):
        if count:
            rows[name] = f"{count:,}"
    return rows
