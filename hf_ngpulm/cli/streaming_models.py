"""Recognisers as `stream` and `serve` take them: the options that both have, and loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .models import load_recogniser

if TYPE_CHECKING:
    from ..audio import StreamingRecognizer

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hub id of the ASR model.")]
LMOption = Annotated[str | None, typer.Option("--lm", help="Language model: folder, Hub id, ARPA or .nemo file.")]
LMWeightOption = Annotated[
    float | None, typer.Option("--lm-weight", help="Weight of the language model [default: what was tuned, or else 0.5].")
]
NumBeamsOption = Annotated[
    int | None, typer.Option("--num-beams", min=1, help="Beam of the search; 1, the default, searches greedily.")
]
StrategyOption = Annotated[
    str | None, typer.Option("--strategy", help="For transducers: greedy, alsd or aes (both beam searches); for CTC: graph.")
]
ChunkOption = Annotated[float | None, typer.Option("--chunk", help="Seconds of audio decoded at a time [default: 1.28].")]
LeftOption = Annotated[float | None, typer.Option("--left", help="Seconds the encoder hears before a chunk [default: 4].")]
RightOption = Annotated[
    float | None, typer.Option("--right", help="Seconds it hears behind it, for which the text waits [default: 1.28].")
]
LookaheadOption = Annotated[
    int | None, typer.Option("--lookahead", min=0, help="For Nemotron, in place of these three: frames of look-ahead.")
]
LanguageOption = Annotated[str | None, typer.Option("--language", help="For Nemotron 3.5: the language that is spoken.")]
EndpointOption = Annotated[
    float, typer.Option("--endpoint", min=0, help="Seconds of silence after which an utterance has ended; 0: never.")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1 ...; a GPU if there is one.")]


def load_streaming(model: str, device: str | None, endpoint: float, **settings: Any) -> StreamingRecognizer:
    """The recogniser that these options ask for. Settings that are None are left to it."""
    import torch
    from transformers import AutoProcessor

    from ..audio import StreamingRecognizer
    from ..language_model.loading import load_language_model

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    # Half precision, in which many models are saved, is slow and coarse on a CPU.
    asr = load_recogniser(model, device, **({"dtype": torch.float32} if device == "cpu" else {}))
    given = {name: value for name, value in settings.items() if value is not None}
    if "lm" in given:
        given["lm"] = load_language_model(given["lm"], asr.tokenizer, asr.device)
    elif "lm_weight" in given:
        raise ValueError("--lm-weight without --lm; give the language model, too")
    return StreamingRecognizer(asr.model, AutoProcessor.from_pretrained(model), endpoint_seconds=endpoint or None, **given)


def warm_up(recognizer: StreamingRecognizer) -> None:
    """Have a stream hear some noise: loops are compiled, or loaded, before somebody waits for them."""
    import numpy as np

    rate = recognizer.sampling_rate
    noise = 0.01 * np.random.default_rng(0).standard_normal(rate)
    sid = recognizer.open()
    recognizer.push(sid, noise.astype(np.float32))
    recognizer.close(sid)
