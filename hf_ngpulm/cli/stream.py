"""Define the command `hf-ngpulm stream`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..sound.files import file_pieces
from . import library
from .models import grammar_settings, load_streaming, read_phrases, warm_up
from .options import (
    Boosting,
    Chunks,
    Decoding,
    DeviceOption,
    JsonOption,
    ModelArgument,
    Rescoring,
    Understanding,
    argument,
    given,
    option,
)
from .output import meaning, print_json


def stream(
    *,
    model: ModelArgument,
    decoding: Decoding,
    boosting: Boosting,
    understanding: Understanding,
    chunks: Chunks,
    rescoring: Rescoring,
    audio: str | None = argument("An audio file (WAV, FLAC, Ogg, MP3 ...).", default=None),
    microphone: bool = option("Listen to a microphone, until Ctrl-C.", "--microphone", default=False),
    input_device: str | None = option("Number or name of the microphone."),
    no_wait: bool = option("Read the file as fast as it can be decoded.", "--no-wait", default=False),
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Transcribe live audio: a microphone, or a file played at the speed of speech.

    On a terminal the current line grows as you speak: bold text is final, dim text may change. Each finished utterance keeps
    its line. If the output isn't a terminal, only finished utterances are printed; --json also prints unfinished ones.

    hf-ngpulm stream nvidia/parakeet-tdt-0.6b-v3 talk.flac --lm org/my-lm --phrases names.txt
    """
    if (audio is None) != microphone:
        raise ValueError("give an audio file or --microphone" + ("" if audio is None else ", not both"))
    if (microphone and no_wait) or (input_device is not None and not microphone):
        raise ValueError("--no-wait is for files, --input-device for --microphone")
    if not boosting.phrases and boosting.corrections is None:
        idle = {"--phrase-weight": boosting.phrase_weight, "--false-alarms-per-hour": boosting.false_alarms_per_hour}
        library.refuse_idle(idle, "needs phrases; add --phrases")
    log = None if boosting.corrections is None else library.CorrectionLog(boosting.corrections)
    learned: list[Any] = [] if log is None else log.phrases()
    if boosting.false_alarms_per_hour is None:  # without a second look, an alias would be written as recognised
        learned = [phrase.text for phrase in learned]
    phrases = [*read_phrases(boosting.phrases), *learned] or None
    context = given(**{**vars(boosting), "phrases": phrases, "corrections": None})
    if phrases is None:
        context = {}
    context |= grammar_settings(understanding, may_explain=boosting.false_alarms_per_hour is not None)
    recognizer = load_streaming(model, device, decoding, chunks, rescoring=rescoring, log=log)
    if not no_wait:
        warm_up(recognizer)

    rate = recognizer.sampling_rate
    pieces: Iterator[np.ndarray]
    if audio is None:
        name = int(input_device) if input_device and input_device.isdigit() else input_device
        pieces = _until_interrupted(library.microphone_pieces(rate, device=name))
    else:
        pieces = file_pieces(audio, rate, in_real_time=not no_wait)
    events = _events(recognizer, pieces, context)
    if as_json:
        for event in events:
            print_json(event)
    else:
        _show(events)


def _until_interrupted(pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield pieces of audio until Ctrl-C. Ctrl-C ends the audio, but not the command."""
    with suppress(KeyboardInterrupt):
        yield from pieces


def _events(
    recognizer: library.StreamingRecognizer, pieces: Iterable[np.ndarray], context: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Decode pieces of audio as one stream, and yield the stream's events. `context`: settings of the stream."""
    sid = recognizer.open(**context)

    def decoded() -> Iterator[dict[str, Any] | None]:
        while partials := recognizer.step():
            yield library.partial_event(recognizer, sid, partials[sid])
            if partials[sid].endpoint:
                begin = recognizer.utterance_begin(sid)
                yield library.final_event(recognizer.reset(sid), begin)

    def everything() -> Iterator[dict[str, Any] | None]:
        for piece in pieces:
            recognizer.push(sid, piece)
            yield from decoded()
        recognizer.end(sid)
        yield from decoded()
        begin = recognizer.utterance_begin(sid)
        yield library.final_event(recognizer.close(sid), begin)

    return (event for event in everything() if event is not None)


def _show(events: Iterable[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
    with live or nullcontext():
        for event in events:
            if event["type"] == "final":
                if live:
                    live.update("")
                console.print(Text(event["text"]), soft_wrap=True)
                if "understood" in event:
                    console.print(Text(f"  {meaning(event)}"), soft_wrap=True)
            elif live:
                stable, text = event["stable"], event["text"]
                fixed = len(stable) if text.startswith(stable) else 0
                line = Text(text[:fixed], style="bold")
                line.append(text[fixed:], style="dim")
                live.update(line[-3 * console.width :], refresh=True)  # the last three rows of a long utterance
