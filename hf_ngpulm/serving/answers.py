"""Transcripts as OpenAI's formats have them."""

from __future__ import annotations

import zlib
from typing import Any

PAUSE_SECONDS, LONGEST_SECONDS, LONGEST_CHARACTERS = 0.8, 7.0, 84  # where a segment, and with it a subtitle, ends

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
        return _subtitles(found, kind)
    shown: Answer = {"task": "transcribe", "language": language or "unknown", "duration": round(seconds, 3), "text": text}
    if "segment" in granularities:
        shown["segments"] = [_verbose(number, segment) for number, segment in enumerate(found)]
    if "word" in granularities:
        words = [] if final is None else final["words"]
        shown["words"] = [{"word": word["text"], "start": word.get("start"), "end": word.get("end")} for word in words]
    return {**shown, "usage": usage}


def segments(text: str, words: list[Answer]) -> list[Answer]:
    """Return parts of a text with their times, ended at pauses or where they become too long for a subtitle."""
    found: list[Answer] = []
    begin = at = 0
    for word in words:
        place = text.find(word["text"], at)
        if place < 0:  # words that are written otherwise in the text
            place = at
        start, end = word.get("start", 0.0), word.get("end", 0.0)
        last = found[-1] if found else None
        if last is None or (
            start - last["end"] >= PAUSE_SECONDS
            or end - last["start"] > LONGEST_SECONDS
            or place + len(word["text"]) - begin > LONGEST_CHARACTERS
        ):
            if last is not None:
                last["text"] = text[begin:place].strip()
                begin = place
            found.append({"start": start, "end": end})
        found[-1]["end"] = end
        at = place + len(word["text"])
    if found:
        found[-1]["text"] = text[begin:].strip()
    return found


def _verbose(number: int, segment: Answer) -> Answer:
    text = segment["text"].encode()
    # Whisper's own measures, without which some clients don't read a segment; those that this search doesn't have are constant.
    ratio = len(text) / len(zlib.compress(text))
    constant = {"seek": 0, "tokens": [], "temperature": 0.0, "avg_logprob": 0.0, "no_speech_prob": 0.0}
    return {"id": number, **segment, **constant, "compression_ratio": round(ratio, 3)}


def _subtitles(found: list[Answer], kind: str) -> str:
    comma = "," if kind == "srt" else "."
    blocks = [] if kind == "srt" else ["WEBVTT\n"]
    for number, segment in enumerate(found, 1):
        head = f"{number}\n" if kind == "srt" else ""
        times = f"{_clock(segment['start'], comma)} --> {_clock(segment['end'], comma)}"
        blocks.append(f"{head}{times}\n{segment['text']}\n")
    return "\n".join(blocks)


def _clock(seconds: float, comma: str) -> str:
    minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
    whole, rest = divmod(milliseconds, 1000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{whole:02}{comma}{rest:03}"
