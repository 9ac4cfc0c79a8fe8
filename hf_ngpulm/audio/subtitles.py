"""Cut transcripts into segments by the words' times, and write subtitles."""

from __future__ import annotations

from typing import Any

PAUSE_SECONDS, LONGEST_SECONDS, LONGEST_CHARACTERS = 0.8, 7.0, 84  # limits that end a segment, and so a subtitle

Segment = dict[str, Any]


def segments(text: str, words: list[Segment]) -> list[Segment]:
    """Cut a text into segments. Cuts are at pauses, and where a segment would become too long for a subtitle.

    Args:
        words: the words of the text. A word is a dictionary with `text`, and `start` and `end` in seconds.

    Returns:
        The segments. A segment is a dictionary with `text`, and `start` and `end` in seconds.
    """
    cut: list[Segment] = []
    begin = at = 0
    for word in words:
        place = text.find(word["text"], at)
        if place < 0:  # the text spells the word differently
            place = at
        start, end = word.get("start", 0.0), word.get("end", 0.0)
        last = cut[-1] if cut else None
        if last is None or (
            start - last["end"] >= PAUSE_SECONDS
            or end - last["start"] > LONGEST_SECONDS
            or place + len(word["text"]) - begin > LONGEST_CHARACTERS
        ):
            if last is not None:
                last["text"] = text[begin:place].strip()
                begin = place
            cut.append({"start": start, "end": end})
        cut[-1]["end"] = end
        at = place + len(word["text"])
    if cut:
        cut[-1]["text"] = text[begin:].strip()
    return cut


def subtitles(cut: list[Segment], kind: str) -> str:
    """Return segments as the content of a subtitle file. `kind`: "srt" or "vtt"."""
    comma = "," if kind == "srt" else "."
    blocks = [] if kind == "srt" else ["WEBVTT\n"]
    for number, segment in enumerate(cut, 1):
        head = f"{number}\n" if kind == "srt" else ""
        times = f"{_clock(segment['start'], comma)} --> {_clock(segment['end'], comma)}"
        blocks.append(f"{head}{times}\n{segment['text']}\n")
    return "\n".join(blocks)


def _clock(seconds: float, comma: str) -> str:
    minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
    whole, rest = divmod(milliseconds, 1000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{whole:02}{comma}{rest:03}"
