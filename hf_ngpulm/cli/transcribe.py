"""hf-ngpulm transcribe"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import typer

from ..evaluation.recognition import SHORTEST
from ..sound.files import read_audio
from .models import load_recogniser, read_phrases
from .options import (
    MISSING,
    BetaOption,
    Boosting,
    Decoding,
    DeviceOption,
    JsonOption,
    Pauses,
    Subtracted,
    argument,
    given,
    option,
)
from .output import print_json, tell


def transcribe(
    *,
    audio: list[str] = argument("Audio files (WAV, FLAC, Ogg, MP3 ...; with PyAV also WebM and MP4)."),
    model: str = option("Folder or Hub id of the ASR model.", "--model", "-m", default=MISSING),
    decoding: Decoding,
    subtracted: Subtracted,
    pauses: Pauses,
    boosting: Boosting,
    beta: BetaOption = None,
    n_best: int | None = option("Hypotheses to show, with --num-beams.", min=1),
    batch_size: int = option("Files decoded together.", default=8, min=1),
    chunk_length: float = option("Cut long audio into chunks of so many seconds; 0: don't.", default=0.0, min=0),
    timestamps: str | None = option("word or char (single tokens)."),
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Transcribe audio files, with a language model, or phrases that shall be recognised, if some are given.

    hf-ngpulm transcribe *.flac --model nvidia/parakeet-ctc-0.6b --lm org/my-lm --lm-weight 1.0 --num-beams 8
    hf-ngpulm transcribe call.flac --model nvidia/parakeet-tdt-0.6b-v3 --phrases names.txt --phrases "Anna Kowalska"
    """
    if timestamps not in (None, "word", "char"):
        raise ValueError(f"--timestamps must be word or char, got {timestamps!r}")
    phrases = read_phrases(boosting.phrases) or None
    settings = given(decoding, subtracted, pauses, beta=beta, num_return_sequences=n_best, phrases=phrases)
    settings |= given(phrase_weight=boosting.phrase_weight)
    if timestamps and decoding.lm is None and not phrases:
        settings.setdefault("num_beams", 1)  # the stock pipeline has times for some tokenizers only
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
                tell(f"{' '.join(str(error).split())}; skipped")
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
            print_json({"audio": read[done], **result})
        else:
            print(result["text"] if len(audio) == 1 else f"{read[done]}: {result['text']}", flush=True)
            for hypothesis in result.get("hypotheses", []):
                print(f"  {hypothesis['score']:9.2f}  {hypothesis['text']}")
            for chunk in result.get("chunks", []):
                begin, end = chunk["timestamp"]
                print(f"  {begin:7.2f} {end:7.2f}  {chunk['text']}")
    if failed:
        tell(f"{failed} of {len(audio)} files could not be read")
        raise typer.Exit(1)
