"""hf-ngpulm stream"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .models import JsonOption
from .phrases import PhrasesOption, PhraseWeightOption, read_phrases
from .streaming_models import (
    ChunkOption,
    DeviceOption,
    EndpointOption,
    LanguageOption,
    LeftOption,
    LMOption,
    LMWeightOption,
    LookaheadOption,
    ModelArgument,
    NumBeamsOption,
    RightOption,
    StrategyOption,
    load_streaming,
    warm_up,
)

if TYPE_CHECKING:
    import numpy as np

    from ..audio import StreamingRecognizer


def stream(
    model: ModelArgument,
    audio: Annotated[str | None, typer.Argument(help="An audio file (WAV, FLAC, Ogg, MP3 ...).")] = None,
    microphone: Annotated[bool, typer.Option("--microphone", help="Listen to a microphone, until Ctrl-C.")] = False,
    input_device: Annotated[str | None, typer.Option("--input-device", help="Number or name of the microphone.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Read the file as fast as it is decoded.")] = False,
    lm: LMOption = None,
    lm_weight: LMWeightOption = None,
    phrases: PhrasesOption = None,
    phrase_weight: PhraseWeightOption = None,
    num_beams: NumBeamsOption = None,
    strategy: StrategyOption = None,
    chunk: ChunkOption = None,
    left: LeftOption = None,
    right: RightOption = None,
    lookahead: LookaheadOption = None,
    language: LanguageOption = None,
    endpoint: EndpointOption = 1.0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Transcribe a microphone, or a file as if it were spoken now, while it is heard.

    On a terminal the line that is being spoken is shown as it grows: what can no longer change, and (dim) what may. An
    utterance that has ended stays as a line. Elsewhere only these lines are printed; --json prints what grows, too.

    hf-ngpulm stream nvidia/parakeet-tdt-0.6b-v3 talk.flac --lm org/my-lm --phrases names.txt
    """
    if (audio is None) != microphone:
        raise ValueError("give an audio file, or --microphone" if audio is None else "an audio file and --microphone: give one")
    if (microphone and no_wait) or (input_device is not None and not microphone):
        raise ValueError("--no-wait is for files, --input-device for --microphone")
    settings = {
        "lm": lm, "lm_weight": lm_weight, "num_beams": num_beams, "strategy": strategy, "chunk_seconds": chunk,
        "left_seconds": left, "right_seconds": right, "num_lookahead_tokens": lookahead, "language": language,
    }  # fmt: skip
    context: dict[str, Any] = {"phrases": read_phrases(phrases)} if phrases else {}
    if phrase_weight is not None:
        context["phrase_weight"] = phrase_weight
    if phrase_weight is not None and not phrases:
        raise ValueError("--phrase-weight without --phrases; give the phrases, too")
    recognizer = load_streaming(model, device, endpoint, max_streams=1, **settings)
    if not no_wait:
        warm_up(recognizer)
    from ..audio.sources import file_pieces, microphone_pieces

    rate = recognizer.sampling_rate
    pieces: Iterator[np.ndarray]
    if audio is None:
        name = int(input_device) if input_device and input_device.isdigit() else input_device
        pieces = _until_interrupted(microphone_pieces(rate, device=name))
    else:
        pieces = file_pieces(audio, rate, in_real_time=not no_wait)
    events = _events(recognizer, pieces, context)
    if as_json:
        for event in events:
            print(json.dumps(event, ensure_ascii=False), flush=True)
    else:
        _show(events)


def _until_interrupted(pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Ctrl-C ends the audio, not the command."""
    try:
        yield from pieces
    except KeyboardInterrupt:
        return


def _events(recognizer: StreamingRecognizer, pieces: Iterable[np.ndarray], context: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a stream says, as it says it."""
    from ..audio.events import final_event, partial_event

    sid = recognizer.open(**context)

    def decoded() -> Iterator[dict[str, Any] | None]:
        while partials := recognizer.step():
            yield partial_event(recognizer, sid, partials[sid])
            if partials[sid].endpoint:
                begin = recognizer.utterance_begin(sid)
                yield final_event(recognizer.reset(sid), begin)

    def everything() -> Iterator[dict[str, Any] | None]:
        for piece in pieces:
            recognizer.push(sid, piece)
            yield from decoded()
        recognizer.end(sid)
        yield from decoded()
        begin = recognizer.utterance_begin(sid)
        yield final_event(recognizer.close(sid), begin)

    return (event for event in everything() if event is not None)


def _show(events: Iterable[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
    with live or nullcontext():
        for event in events:
            if event["type"] == "final":
                if live:
                    live.update("")
                console.print(Text(event["text"]), soft_wrap=True)
            elif live:
                stable, text = event["stable"], event["text"]
                fixed = len(stable) if text.startswith(stable) else 0
                line = Text(text[:fixed], style="bold")
                # A long utterance would fill the screen; its end is what is new.
                line.append(text[fixed:], style="dim")
                live.update(line[-3 * console.width :], refresh=True)
