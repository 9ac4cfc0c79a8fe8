"""Transcripts as OpenAI's formats have them."""

from __future__ import annotations

import zlib
from typing import Any

from ..audio.subtitles import segments, subtitles

Answer = dict[str, Any]


def answer(kind: str, final: Answer | None, seconds: float, granularities: frozenset[str], language: str) -> Answer | str:
    """Return what a client is answered, a text or what JSON is made of.

    Args:
        kind: one of `FORMATS`.
        final: as `final_event` gives it; None if nothing was said.
        seconds: of audio.
        granularities: "segment" and "word", for verbose_json.
        language: as the client named it.
    """
    text = "" if final is None else final["text"]
    usage = {"type": "duration", "seconds": round(seconds, 3)}
    if kind == "json":
        return {"text": text, "usage": usage}
    if kind == "text":
        return text + "\n"
    found = [] if final is None else final.get("segments") or segments(text, final["words"])
    if kind != "verbose_json":
        return subtitles(found, kind)
    shown: Answer = {"task": "transcribe", "language": language or "unknown", "duration": round(seconds, 3), "text": text}
    if "segment" in granularities:
        shown["segments"] = [_verbose(number, segment) for number, segment in enumerate(found)]
    if "word" in granularities:
        words = [] if final is None else final["words"]
        shown["words"] = [{"word": word["text"], "start": word.get("start"), "end": word.get("end")} for word in words]
    return {**shown, "usage": usage}


def _verbose(number: int, segment: Answer) -> Answer:
    text = segment["text"].encode()
    # Whisper's own measures, without which some clients don't read a segment; those that this search doesn't have are constant.
    ratio = len(text) / len(zlib.compress(text))
    constant = {"seek": 0, "tokens": [], "temperature": 0.0, "avg_logprob": 0.0, "no_speech_prob": 0.0}
    return {"id": number, **segment, **constant, "compression_ratio": round(ratio, 3)}
