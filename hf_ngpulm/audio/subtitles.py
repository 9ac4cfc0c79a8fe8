"""Cut transcripts into segments by the times of their words, and write these as subtitles."""

from __future__ import annotations

from typing import Any

PAUSE_SECONDS, LONGEST_SECONDS, LONGEST_CHARACTERS = 0.8, 7.0, 84  # where a segment, and with it a subtitle, ends

Segment = dict[str, Any]


def segments(text: str, words: list[Segment]) -> list[Segment]:
    """Return parts of a text with their times, ended at pauses or where they become too long for a subtitle.

    Args:
        words: of the text, with `text`, `start` and `end` in seconds.

    Returns:
        Mappings with `start`, `end` and `text`.
    """
    found: list[Segment] = []
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


def subtitles(found: list[Segment], kind: str) -> str:
    """Return segments as a file of subtitles.

    Args:
        kind: "srt" or "vtt".
    """
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
