"""Segments and subtitles: where they end, and how times are written."""

from hf_ngpulm.audio.subtitles import segments, subtitles


def test_segments_end_at_pauses_and_before_they_are_too_long():
    def words(*times):
        return [{"text": text, "start": start, "end": end} for text, start, end in times]

    assert segments("", []) == []
    assert segments("a, b. C", words(("a,", 0, 1), ("b.", 1, 2), ("C", 3, 4))) == [
        {"start": 0, "end": 2, "text": "a, b."}, {"start": 3, "end": 4, "text": "C"},
    ]  # fmt: skip
    long = words(*((f"word{n}", n / 2, n / 2 + 0.4) for n in range(100)))
    text = " ".join(word["text"] for word in long)
    found = segments(text, long)
    assert " ".join(segment["text"] for segment in found) == text
    assert all(segment["end"] - segment["start"] <= 7 and len(segment["text"]) <= 84 for segment in found)
    joined = words(("今日", 0, 1), ("は", 1, 2), ("晴れ", 4, 5))
    assert [segment["text"] for segment in segments("今日は晴れ", joined)] == ["今日は", "晴れ"]


def test_times_and_numbers():
    found = [{"text": "hello", "start": 0.5, "end": 1.9996}, {"text": "there", "start": 3723.004, "end": 3724}]
    assert subtitles(found, "srt") == ("1\n00:00:00,500 --> 00:00:02,000\nhello\n\n2\n01:02:03,004 --> 01:02:04,000\nthere\n")
    assert subtitles(found[:1], "vtt") == "WEBVTT\n\n00:00:00.500 --> 00:00:02.000\nhello\n"
    assert subtitles([], "srt") == "" and subtitles([], "vtt") == "WEBVTT\n"
