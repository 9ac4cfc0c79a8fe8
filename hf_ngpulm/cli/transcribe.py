"""hf-ngpulm transcribe"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tqdm import tqdm

from .models import JsonOption, load, load_recogniser, load_tokenizer
from .output import print_json, print_line, progress

if TYPE_CHECKING:
    import numpy as np

Recording = tuple[str, "np.ndarray"]  # path, samples


def transcribe(
    audio: Annotated[list[str], typer.Argument(metavar="AUDIO...", help="Audio files (WAV, FLAC, Ogg, MP3 ...).")],
    model: Annotated[str, typer.Option("--model", "-m", help="Folder or Hub id of the ASR model.")],
    lm: Annotated[str | None, typer.Option("--lm", help="Language model: folder, Hub id, ARPA or .nemo file.")] = None,
    lm_weight: Annotated[
        float | None, typer.Option("--lm-weight", show_default="0.5", help="Weight of the language model.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            show_default="8 with an LM, else 1",
            help="Files decoded together. Without an LM the padding of shorter ones is decoded too.",
        ),
    ] = None,
    chunk_length: Annotated[
        float | None,
        typer.Option(
            "--chunk-length", show_default="whole files", help="Cut long audio into chunks of so many seconds, at least 1."
        ),
    ] = None,
    timestamps: Annotated[
        str | None, typer.Option("--timestamps", help="word or char, where the model's tokenizer can tell them.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", show_default="a GPU if there is one", help="cpu, cuda, cuda:1 ...")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Transcribe audio files, with a language model if one is given.

    hf-ngpulm transcribe *.flac -m nvidia/parakeet-ctc-0.6b --lm org/my-lm

    hf-ngpulm transcribe talk.mp3 -m nvidia/parakeet-ctc-0.6b --chunk-length 30 --json

    Files that can't be read are named on stderr and skipped; the exit status is 1 then.
    """
    import torch

    if timestamps not in (None, "word", "char"):
        raise ValueError(f"--timestamps must be word or char, got {timestamps!r}")
    if chunk_length is not None and not 1 <= chunk_length < math.inf:
        raise ValueError(f"--chunk-length must be at least 1 second, got {chunk_length:g}")
    if lm is None and lm_weight is not None:
        raise ValueError("--lm-weight is the weight of a language model; add --lm")
    batch_size = batch_size or (1 if lm is None else 8)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    settings: dict[str, Any] = {
        "lm": None if lm is None else load(lm, load_tokenizer(model)),
        "lm_weight": lm_weight,
        "batch_size": batch_size,
        "chunk_length_s": chunk_length,
        "return_timestamps": timestamps,
    }
    asr = load_recogniser(model, device, **{name: value for name, value in settings.items() if value is not None})
    if timestamps and asr.type == "ctc" and "output_char_offsets" not in inspect.signature(asr.tokenizer.decode).parameters:
        raise ValueError(f"--timestamps {timestamps}: the tokenizer of {model} can't tell where its characters are")

    transcribed = 0
    with progress(len(audio), "files") as bar:
        for group in _groups(audio, asr.feature_extractor.sampling_rate, batch_size):
            for path, result in _results(asr, group):
                transcribed += 1
                if as_json:
                    print_json(audio=path, **result)
                    continue
                print_line(result["text"] if len(audio) == 1 else f"{path}: {result['text']}")
                for chunk in result.get("chunks", ()):
                    begin, end = ("" if seconds is None else f"{seconds:.2f}" for seconds in chunk["timestamp"])
                    print_line(f"  {begin:>8} {end:>8}  {chunk['text']}")
            bar.update(len(group))
    if transcribed < len(audio):
        print(f"hf-ngpulm: {len(audio) - transcribed} of {len(audio)} files could not be transcribed", file=sys.stderr)
        raise typer.Exit(1)


def _groups(paths: list[str], sampling_rate: int, size: int) -> Iterator[list[Recording]]:
    """The files that can be read, some at a time."""
    import numpy as np

    from ..audio import read_audio

    group: list[Recording] = []
    for path in paths:
        try:
            samples = read_audio(path, sampling_rate)
            if not np.isfinite(samples).all():
                raise ValueError(f"{path}: holds samples that are infinite or not a number")
            group.append((path, samples))
        except (ValueError, OSError) as error:
            _skip(error)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _results(asr: Any, group: list[Recording]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and outcome of each file that the model takes; one that it doesn't take leaves the others alone."""
    rate = asr.feature_extractor.sampling_rate
    try:
        results = asr([{"raw": samples, "sampling_rate": rate} for _, samples in group])
    except (ValueError, RuntimeError) as error:  # audio too short for the model, logits that are NaN, memory ...
        if len(group) == 1:
            _skip(f"{group[0][0]}: the model fails on it: {error}")
            return
        for recording in group:
            yield from _results(asr, [recording])
        return
    for (path, _), result in zip(group, results, strict=True):
        yield path, result


def _skip(reason: object) -> None:
    with tqdm.external_write_mode():
        print(f"hf-ngpulm: {' '.join(str(reason).split())}; skipped", file=sys.stderr)
