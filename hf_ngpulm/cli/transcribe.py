"""hf-ngpulm transcribe"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from .models import JsonOption, load_recogniser
from .phrases import PhrasesOption, PhraseWeightOption, read_phrases
from .streaming_models import LMWeightOption


def transcribe(
    audio: Annotated[list[str], typer.Argument(help="Audio files (WAV, FLAC, Ogg, MP3 ...).")],
    model: Annotated[str, typer.Option("--model", "-m", help="Folder or Hub id of the ASR model.")],
    lm: Annotated[str | None, typer.Option("--lm", help="Language model: folder, Hub id, ARPA or .nemo file.")] = None,
    lm_weight: LMWeightOption = None,
    phrases: PhrasesOption = None,
    phrase_weight: PhraseWeightOption = None,
    num_beams: Annotated[
        int | None, typer.Option("--num-beams", min=1, help="Beam of the search; 1, the default, searches greedily.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", help="For transducers: greedy, alsd or aes (both beam searches); for CTC: graph."),
    ] = None,
    beta: Annotated[float | None, typer.Option("--beta", help="For CTC: bonus for each token in beam search.")] = None,
    n_best: Annotated[int | None, typer.Option("--n-best", min=1, help="Hypotheses to show, with --num-beams.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Files decoded together.")] = 8,
    chunk_length: Annotated[
        float, typer.Option("--chunk-length", min=0, help="Cut long audio into chunks of so many seconds; 0: don't.")
    ] = 0.0,
    timestamps: Annotated[str | None, typer.Option("--timestamps", help="word or char (single tokens).")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1 ...; a GPU if there is one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Transcribe audio files, with a language model, or phrases that shall be recognised, if some are given.

    hf-ngpulm transcribe *.flac --model nvidia/parakeet-ctc-0.6b --lm org/my-lm --lm-weight 1.0 --num-beams 8
    hf-ngpulm transcribe call.flac --model nvidia/parakeet-tdt-0.6b-v3 --phrases names.txt --phrases "Anna Kowalska"
    """
    import numpy as np
    import torch

    from ..audio.files import read_audio
    from ..evaluation.recognition import SHORTEST

    if timestamps not in (None, "word", "char"):
        raise ValueError(f"--timestamps must be word or char, got {timestamps!r}")
    given = {
        "lm": lm, "lm_weight": lm_weight, "num_beams": num_beams, "strategy": strategy, "beta": beta,
        "num_return_sequences": n_best, "phrases": read_phrases(phrases) or None, "phrase_weight": phrase_weight,
    }  # fmt: skip
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if timestamps and lm is None:
        settings.setdefault("num_beams", 1)  # the stock pipeline has times for some tokenizers only
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    asr = load_recogniser(model, device, **settings)
    rate = asr.feature_extractor.sampling_rate
    read: list[str] = []
    failed = 0

    def recordings() -> Iterator[dict[str, Any]]:
        nonlocal failed
        for path in audio:
            try:
                samples = read_audio(path, rate)
            except (ValueError, OSError) as error:
                failed += 1
                print(f"hf-ngpulm: {' '.join(str(error).split())}; skipped", file=sys.stderr)
                continue
            read.append(path)
            samples = np.pad(samples, (0, max(0, round(SHORTEST * rate) - len(samples))))
            yield {"raw": samples, "sampling_rate": rate}

    options: dict[str, Any] = {"batch_size": batch_size}
    if chunk_length:
        options["chunk_length_s"] = chunk_length
    if timestamps:
        options["return_timestamps"] = timestamps
    for done, result in enumerate(asr(recordings(), **options)):
        if as_json:
            print(json.dumps({"audio": read[done], **result}, ensure_ascii=False), flush=True)
        else:
            print(result["text"] if len(audio) == 1 else f"{read[done]}: {result['text']}", flush=True)
            for hypothesis in result.get("hypotheses", []):
                print(f"  {hypothesis['score']:9.2f}  {hypothesis['text']}")
            for chunk in result.get("chunks", []):
                begin, end = chunk["timestamp"]
                print(f"  {begin:7.2f} {end:7.2f}  {chunk['text']}")
    if failed:
        print(f"hf-ngpulm: {failed} of {len(audio)} files could not be read", file=sys.stderr)
        raise typer.Exit(1)
