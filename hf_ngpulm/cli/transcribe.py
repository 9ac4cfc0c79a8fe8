"""hf-ngpulm transcribe"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
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


def transcribe(
    *,
    audio: list[str] = argument(
        "Audio files (WAV, FLAC, Ogg, MP3 ...; with PyAV also WebM and MP4), folders of them, or patterns: 'calls/**/*.wav'."
    ),
    model: str = option("Folder or Hub id of the ASR model.", "--model", "-m", default=MISSING),
    decoding: Decoding,
    adjusted: Adjusted,
    boosting: Boosting,
    false_alarms_per_hour: float | None = option(
        "Look at each phrase again, and let so many in an hour of speech stay that nobody said."
    ),
    never: list[str] | None = option("Words that are never written: a word, or a file with one a line; several times."),
    corrections: str | None = option("File of corrections to learn from (see hf-ngpulm learn)."),
    understanding: Understanding,
    rescoring: Rescoring,
    on_cluster: OnCluster,
    n_best: int | None = of_decoders("num_return_sequences", min=1),
    batch_size: int = option("Files decoded together.", default=8, min=1),
    chunk_length: float = option("Cut long audio into chunks of so many seconds; 0: don't.", default=0.0, min=0),
    timestamps: str | None = option("word or char (single tokens)."),
    output: str | None = option(
        "File to write: .txt, .srt, .vtt or .json; or, for several recordings, a folder. With --ray: a .jsonl file with a line "
        "for each recording; recordings that have one are left out.",
        "--output",
        "-o",
    ),
    kind: str | None = option("Kind of file, if no ending says it: txt, srt, vtt or json [default: txt].", "--format"),
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
        library.refuse_idle(
            {"--format": kind, "--overwrite": overwrite or None}, "says of files how they are written; add --output"
        )
    if kind is not None:
        library.check("--format", kind, library.one_of(*KINDS))
    elsewhere = on_cluster.arguments()
    if elsewhere:
        idle = {"--format": kind, "--overwrite": overwrite or None, "--batch-size": None if batch_size == 8 else batch_size}
        library.refuse_idle(idle, "has no place with --ray; leave it out")
        if output is None or not output.endswith(".jsonl"):
            raise ValueError(f"--ray writes a line of JSON for each recording; add --output results.jsonl (got {output})")
    names = {} if elsewhere else audio_of(audio)
    files: dict[str, Any] = {}
    if output is not None and not elsewhere:
        kind, paths = transcript_files(output, kind, names)
        refuse_existing(paths, overwrite)
        files = dict(zip(names, paths))
    subtitled = kind in ("srt", "vtt")
    if subtitled:
        library.refuse_idle({"--timestamps": timestamps, "--n-best": n_best}, f"has no place in {kind} files; leave it out")
    of_grammar = grammar_settings(understanding, may_explain=bool(boosting.phrases or never))
    if understanding.grammar is not None and subtitled:
        raise ValueError(f"--grammar understands recordings as a whole, which {kind} files can't tell; leave one of them out")
    phrases = [*read_phrases(boosting.phrases), *never_written(never)] or None
    boosted = {"phrases": phrases, "phrase_weight": boosting.phrase_weight, "num_return_sequences": n_best}
    settings = given(decoding, adjusted, rescoring, **boosted, **of_grammar)
    if corrections is not None:
        settings["corrections"] = corrections
    if false_alarms_per_hour is not None:
        settings["false_alarms_per_hour"] = false_alarms_per_hour
    if elsewhere:
        check_folder(model)
        called: dict[str, Any] = {"chunk_length_s": chunk_length} if chunk_length else {}
        called |= {"return_timestamps": timestamps} if timestamps else {}
        transcriber = library.Transcriber(model, _recordings(audio), {"device": device, **settings}, called)
        _transcribe_on(transcriber, str(output), elsewhere, as_json)
        return
    asr = load_recogniser(model, device, **settings)
    rate = asr.feature_extractor.sampling_rate
    read: list[tuple[str, float]] = []  # with their lengths in seconds
    failed = written = 0

    def recordings() -> Iterator[dict[str, Any]]:
        nonlocal failed
        for path in names:
            try:
                samples = read_audio(path, rate)
            except (ValueError, OSError) as error:
                failed += 1
                tell(f"{' '.join(str(error).split())}; skipped")
                continue
            read.append((path, len(samples) / rate))
            samples = np.pad(samples, (0, max(0, round(library.SHORTEST * rate) - len(samples))))
            yield {"raw": samples, "sampling_rate": rate}

    options: dict[str, Any] = {"batch_size": batch_size}
    if chunk_length:
        options["chunk_length_s"] = chunk_length
    if timestamps or subtitled:
        # Whisper segments by itself; others are cut by the times of words.
        options["return_timestamps"] = True if subtitled and asr.type == "seq2seq_whisper" else timestamps or "word"
        if not library.is_seq2seq(asr.model) and asr._forward_params.get("ngram_decoder") is None:
            options["num_beams"] = 1  # the stock pipeline has times for some tokenizers only
    try:
        results = asr(recordings(), **options)
    except ValueError as error:
        if "return_timestamps" not in options:
            raise
        what = f"{kind} files need" if subtitled else "--timestamps asks for"
        raise ValueError(f"{what} times, and {type(asr.model).__name__} gives none: {error}") from error

    def content(path: str, result: dict[str, Any], seconds: float) -> str:
        if kind == "json":
            return json.dumps({"audio": path, **result}, ensure_ascii=False) + "\n"
        of_words = options.get("return_timestamps") == "word"
        return _shown(result) if kind == "txt" else _subtitles(str(kind), result, seconds, of_words)

    with interruptible(lambda: f"{written} of {len(files)} transcripts are written" if files else ""):
        for done, result in enumerate(results):
            path, seconds = read[done]
            if path in files:
                with write_beside(files[path]) as beside:
                    beside.write_text(content(path, result, seconds), encoding="utf-8")
                written += 1
            if as_json:
                print_json({"audio": path, **result})
            elif path in files:
                print(files[path], flush=True)
            else:
                print("" if len(names) == 1 else f"{path}: ", _shown(result), sep="", end="", flush=True)
    if failed:
        tell(f"{failed} of {len(names)} files could not be read")
        raise typer.Exit(1)


def _recordings(audio: list[str]) -> library.Recordings:
    """Return the recordings of audio files, folders and patterns, which are known by their paths, or of a manifest or Parquet
    file."""
    is_source = [os.path.isfile(name) and name.lower().endswith((*library.MANIFESTS, ".parquet")) for name in audio]
    if any(is_source):
        if len(audio) > 1:
            raise ValueError(f"{audio[is_source.index(True)]}: a manifest or Parquet file stands alone; leave the others out")
        return library.read_recordings(audio[0])
    return library.listed(" ".join(audio)[:60], (library.Recording(path, Path(path)) for path in audio_of(audio)))


def _transcribe_on(transcriber: library.Transcriber, output: str, elsewhere: dict[str, Any], as_json: bool) -> None:
    done = failed = 0
    cluster = library.cluster_of(elsewhere["cluster"])
    with (
        interruptible(lambda: f"{done} more transcripts are in {output}: run the same command again to go on"),
        Bars(not as_json and sys.stderr.isatty()).stage("transcribing", len(transcriber.recordings)) as bar,
    ):
        for result in library.transcribe_into(output, transcriber, cluster, elsewhere["actors"]):
            bar.update()
            if "problem" in result:
                failed += 1
                tell(f"{result['problem']}; skipped")
                continue
            done += 1
            if as_json:
                print_json(result)
    if not as_json:
        print(output)
    if failed:
        tell(f"{failed} of {len(transcriber.recordings)} files could not be read")
        raise typer.Exit(1)


def _subtitles(kind: str, result: dict[str, Any], seconds: float, of_words: bool) -> str:
    """Return a transcript as subtitles, from the times of its words or segments. The end of the last one may be unknown."""
    spans = []
    for chunk in result["chunks"]:
        begin, end = chunk["timestamp"]
        spans.append({"text": chunk["text"].strip(), "start": begin, "end": seconds if end is None else end})
    return library.subtitles(library.segments(result["text"], spans) if of_words else spans, kind)


def _shown(result: dict[str, Any]) -> str:
    """Return the text, followed by lines with the hypotheses and times that the user requested."""
    lines = [result["text"]]
    if "understood" in result:
        lines.append(f"  {meaning(result)}")
    lines += map(_explained, result.get("phrases", []))
    lines += [f"  {hypothesis['score']:9.2f}  {hypothesis['text']}" for hypothesis in result.get("hypotheses", [])]
    for chunk in result.get("chunks", []):
        begin, end = ("-" if time is None else f"{time:.2f}" for time in chunk["timestamp"])  # where a model doesn't say
        lines.append(f"  {begin:>7} {end:>7}  {chunk['text']}")
    return "\n".join(lines) + "\n"


def _explained(report: dict[str, Any]) -> str:
    """Return a line about a phrase."""
    at = f" at {report['start']:.2f} s" if "start" in report else ""
    weighed = ""
    if "ratio" in report:
        limit = f", threshold {report['threshold']:.2f}" if "threshold" in report else ""
        weighed = f": ratio {report['ratio']:.2f}{limit}; without phrases {report['instead']!r}"
    return f"  {'heard' if report['heard'] else 'not heard'}{at}  {report['text']}{weighed}"
