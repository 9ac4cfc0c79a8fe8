"""Define the command `hf-ngpulm transcribe`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import typer

from ..common.files import write_beside
from ..common.progress import Bars
from ..sound.files import read_audio
from . import library
from .files import KINDS, audio_of, refuse_existing, transcript_files
from .models import check_folder, grammar_settings, load_recogniser, never_written, read_phrases
from .options import (
    MISSING,
    Adjusted,
    Boosting,
    Decoding,
    DeviceOption,
    JsonOption,
    OnCluster,
    OverwriteOption,
    Rescoring,
    Understanding,
    argument,
    given,
    of_decoders,
    option,
)
from .output import interruptible, meaning, print_json, tell

PARQUET = ".parquet"


def transcribe(
    *,
    audio: list[str] = argument(
        "Audio files (WAV, FLAC, Ogg, MP3 ...; with PyAV also WebM and MP4), folders, or patterns such as 'calls/**/*.wav'. "
        "If --output is a .jsonl or .parquet file, also a manifest or Parquet file."
    ),
    model: str = option("Folder or Hub id of the ASR model.", "--model", "-m", default=MISSING),
    decoding: Decoding,
    adjusted: Adjusted,
    boosting: Boosting,
    never: list[str] | None = option("A phrase that is never written, or a file with one per line; may be repeated."),
    understanding: Understanding,
    rescoring: Rescoring,
    on_cluster: OnCluster,
    n_best: int | None = of_decoders("num_return_sequences", min=1),
    batch_size: int = option("Files decoded together.", default=8, min=1),
    chunk_length: float = option("Cut long audio into chunks of this many seconds; 0: don't cut.", default=0.0, min=0),
    timestamps: str | None = option("Print times: of each word, or char (single tokens)."),
    output: str | None = option(
        "File to write: .txt, .srt, .vtt or .json; for several recordings, a folder. Or a .jsonl or .parquet file with a row "
        "per recording; a killed run resumes.",
        "--output",
        "-o",
    ),
    kind: str | None = option("Format of files in a folder: txt, srt, vtt or json [default: txt].", "--format"),
    overwrite: OverwriteOption = False,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Transcribe audio files, optionally with a language model or phrases.

    hf-ngpulm transcribe *.flac --model nvidia/parakeet-ctc-0.6b --lm org/my-lm --lm-weight 1.0 --num-beams 8
    hf-ngpulm transcribe call.flac --model nvidia/parakeet-tdt-0.6b-v3 --phrases names.txt --phrases "Anna Kowalska"
    hf-ngpulm transcribe talk.flac --model nvidia/parakeet-tdt-0.6b-v3 --output talk.srt
    hf-ngpulm transcribe audio.flac --model nvidia/parakeet-ctc-0.6b --grammar orders.yml --json
    """
    if timestamps not in (None, "word", "char"):
        raise ValueError(f"--timestamps must be word or char, got {timestamps!r}")
    if output is None:
        library.refuse_idle({"--format": kind, "--overwrite": overwrite or None}, "applies to written files; add --output")
    if kind is not None:
        library.check("--format", kind, library.one_of(*KINDS))
    elsewhere = on_cluster.arguments()
    in_rows = output is not None and output.endswith((".jsonl", PARQUET))
    if elsewhere and not in_rows:
        raise ValueError(f"--ray writes a row per recording; add --output results.jsonl or results.parquet (got {output})")
    if in_rows:
        idle = {"--format": kind, "--batch-size": None if batch_size == 8 else batch_size}
        if not str(output).endswith(PARQUET):
            idle["--overwrite"] = overwrite or None
        library.refuse_idle(idle, f"has no effect with {output}; leave it out")
        refuse_existing([str(output)] if str(output).endswith(PARQUET) else [], overwrite)
    names = {} if in_rows else audio_of(audio)
    if source := next(filter(_is_source, names), None):
        raise ValueError(f"{source}: a manifest or Parquet file; add --output results.jsonl or results.parquet")
    files: dict[str, Any] = {}
    if output is not None and not in_rows:
        kind, paths = transcript_files(output, kind, names)
        refuse_existing(paths, overwrite)
        files = dict(zip(names, paths))
    subtitled = kind in ("srt", "vtt")
    if subtitled:
        library.refuse_idle({"--timestamps": timestamps, "--n-best": n_best}, f"has no effect on {kind} files; leave it out")
    of_grammar = grammar_settings(understanding, may_explain=bool(boosting.phrases or never))
    if understanding.grammar is not None and subtitled:
        raise ValueError(f"--grammar gives no times, which {kind} files need; leave one of them out")
    phrases = [*read_phrases(boosting.phrases), *never_written(never)] or None
    boosted = {**vars(boosting), "phrases": phrases, "num_return_sequences": n_best}
    settings = given(decoding, adjusted, rescoring, **boosted, **of_grammar)
    if in_rows:
        check_folder(model)
        called: dict[str, Any] = {"chunk_length_s": chunk_length} if chunk_length else {}
        called |= {"return_timestamps": timestamps} if timestamps else {}
        transcriber = library.Transcriber(model, _recordings(audio), {"device": device, **settings}, called)
        _transcribe_into(str(output), transcriber, elsewhere, as_json)
        return
    asr = load_recogniser(model, device, **settings)
    rate = asr.feature_extractor.sampling_rate
    options: dict[str, Any] = {"chunk_length_s": chunk_length} if chunk_length else {}
    if timestamps or subtitled:
        # Whisper gives segments itself. For other models, segments are cut by word times.
        options["return_timestamps"] = True if subtitled and asr.type == "seq2seq_whisper" else timestamps or "word"
        if not library.is_seq2seq(asr.model) and asr._forward_params.get("ngram_decoder") is None:
            options["num_beams"] = 1  # this project's search has times for every tokenizer, the stock pipeline doesn't

    def results() -> Iterator[tuple[str, dict[str, Any], float]]:
        """Yield each file's path, its result, and its length in seconds."""
        paths = iter(names)
        while some := list(islice(paths, batch_size)):
            read: dict[str, np.ndarray] = {}
            found: dict[str, dict[str, Any]] = {}
            for path in some:
                try:
                    read[path] = read_audio(path, rate)
                except (ValueError, OSError) as error:
                    found[path] = {"error": " ".join(str(error).split())}
            try:
                found |= library.transcribed(asr, read, batch_size, options)
            except ValueError as error:
                if "return_timestamps" not in options:
                    raise
                what = f"{kind} files need" if subtitled else "--timestamps asks for"
                raise ValueError(f"{what} times, and {type(asr.model).__name__} gives none: {error}") from error
            yield from ((path, found[path], len(read.get(path, ())) / rate) for path in some)

    def content(path: str, result: dict[str, Any], seconds: float) -> str:
        if kind == "json":
            return json.dumps({"audio": path, **result}, ensure_ascii=False) + "\n"
        of_words = options.get("return_timestamps") == "word"
        return _shown(result) if kind == "txt" else _subtitles(str(kind), result, seconds, of_words)

    failed = written = 0
    with interruptible(lambda: f"{written} of {len(files)} transcripts are written" if files else ""):
        for path, result, seconds in results():
            if "error" in result:
                failed += 1
                tell(f"{result['error']}; skipped")
            elif path in files:
                with write_beside(files[path]) as beside:
                    beside.write_text(content(path, result, seconds), encoding="utf-8")
                written += 1
            if as_json:
                print_json({"audio": path, **result})
            elif "error" in result:
                continue
            elif path in files:
                print(files[path], flush=True)
            else:
                print("" if len(names) == 1 else f"{path}: ", _shown(result), sep="", end="", flush=True)
    if failed:
        tell(f"{failed} of {len(names)} files could not be read")
        raise typer.Exit(1)


def _recordings(audio: list[str]) -> library.Recordings:
    """Return the recordings that the arguments name. Arguments are audio files, folders and patterns, and the recordings' ids
    are the paths. If the argument is a manifest or Parquet file, return the file's recordings.
    """
    if source := next(filter(_is_source, audio), None):
        if len(audio) > 1:
            raise ValueError(f"{source}: a manifest or Parquet file must be the only argument; leave the others out")
        return library.read_recordings(source)
    return library.listed(" ".join(audio)[:60], (library.Recording(path, Path(path)) for path in audio_of(audio)))


def _is_source(name: str) -> bool:
    return os.path.isfile(name) and name.lower().endswith((*library.MANIFESTS, PARQUET))


def _transcribe_into(output: str, transcriber: library.Transcriber, elsewhere: dict[str, Any], as_json: bool) -> None:
    """Write results to a file of JSON lines. If the output is a Parquet file, the lines are converted at the end. `elsewhere`:
    the `cluster` and the `actors` that transcribe. If `elsewhere` is empty, this process transcribes.
    """
    lines, done = Path(output + ".jsonl" if output.endswith(PARQUET) else output), 0
    cluster, actors = library.cluster_of(elsewhere.get("cluster")), elsewhere.get("actors")
    with (
        interruptible(lambda: f"{done} more transcripts are in {lines}: run the same command again to resume"),
        Bars(not as_json and sys.stderr.isatty()).stage("transcribing", len(transcriber.recordings)) as bar,
    ):
        for result in library.transcribe_into(lines, transcriber, cluster, actors):
            bar.update()
            done += 1
            if "error" in result:
                tell(f"{result['error']}; skipped")
            if as_json:
                print_json(result)
    with open(lines, encoding="utf-8") as file:
        failed = sum("error" in json.loads(line) for line in file)
    if output.endswith(PARQUET):
        library.write_parquet(lines, output)
        lines.unlink()
    if not as_json:
        print(output)
    if failed:
        tell(f"{failed} of {len(transcriber.recordings)} files could not be read")
        raise typer.Exit(1)


def _subtitles(kind: str, result: dict[str, Any], seconds: float, of_words: bool) -> str:
    """Return a transcript as subtitles in the format `kind`. `of_words`: whether the result's chunks are words, not segments.
    `seconds`: end time of a chunk that has no end time.
    """
    spans = []
    for chunk in result["chunks"]:
        begin, end = chunk["timestamp"]
        spans.append({"text": chunk["text"].strip(), "start": begin, "end": seconds if end is None else end})
    return library.subtitles(library.segments(result["text"], spans) if of_words else spans, kind)


def _shown(result: dict[str, Any]) -> str:
    """Return a result as text. After the transcript come the requested meaning, phrases, hypotheses and times."""
    lines = [result["text"]]
    if "understood" in result:
        lines.append(f"  {meaning(result)}")
    lines += map(_explained, result.get("phrases", []))
    lines += [f"  {hypothesis['score']:9.2f}  {hypothesis['text']}" for hypothesis in result.get("hypotheses", [])]
    for chunk in result.get("chunks", []):
        begin, end = ("-" if time is None else f"{time:.2f}" for time in chunk["timestamp"])  # a model may leave times out
        lines.append(f"  {begin:>7} {end:>7}  {chunk['text']}")
    return "\n".join(lines) + "\n"


def _explained(report: dict[str, Any]) -> str:
    """Return a report on a phrase as a line of text."""
    at = f" at {report['start']:.2f} s" if "start" in report else ""
    weighed = ""
    if "ratio" in report:
        limit = f", threshold {report['threshold']:.2f}" if "threshold" in report else ""
        weighed = f": ratio {report['ratio']:.2f}{limit}; without phrases {report['instead']!r}"
    return f"  {'heard' if report['heard'] else 'not heard'}{at}  {report['text']}{weighed}"
