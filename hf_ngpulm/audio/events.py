"""Describe the results of a stream as events, dictionaries for JSON. Times are in seconds of the stream's audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..decoding.grammar_streams import PartialUnderstanding
from ..decoding.hypotheses import Hypothesis
from ..decoding.partials import Partial
from ..decoding.understanding import Understanding
from .recognizer import StreamingRecognizer


def partial_event(recognizer: StreamingRecognizer, sid: int, partial: Partial) -> dict[str, Any]:
    """Return the event of an unfinished utterance.

    The event has the `text`, the text that can no longer change (`stable`), and the end of the decoded audio (`end`). For a
    stream with a grammar, the event also has the `intent` and `slots` so far.
    """
    begin = recognizer.utterance_begin(sid)
    end = begin + partial.frames * (recognizer.frame_seconds or 0.0)
    event = {"type": "partial", "end": round(end, 3), "text": partial.text, "stable": partial.stable_text}
    if not isinstance(partial, PartialUnderstanding):
        return event
    return {**event, "intent": partial.intent, "slots": [slot.as_dict(begin) for slot in partial.slots]}


def final_event(
    hypotheses: Sequence[Hypothesis | Understanding], begin: float, has_words: bool = True
) -> dict[str, Any] | None:
    """Return the event of a finished utterance. If the transcript is empty, return None.

    For a stream with a grammar, the event has the entries of `Understanding.as_dict`. For a stream with a second look, the
    event has reports on `phrases`.

    Args:
        hypotheses: a result of `StreamingRecognizer.close` or `reset`. With a grammar, the result has an `Understanding`.
        begin: the start of the utterance, in seconds.
        has_words: whether the event lists the words. This takes longer than the text alone.
    """
    best = hypotheses[0] if hypotheses else None
    meant = best.as_dict(begin) if isinstance(best, Understanding) else getattr(best, "meant", {})
    hypothesis = best.hypothesis if isinstance(best, Understanding) else best
    if hypothesis is None or not hypothesis.token_ids:
        return None
    words: list[dict[str, Any]] = []
    for word in hypothesis.words if has_words else ():
        shown: dict[str, Any] = {"text": word.text}
        for name, time in (("start", word.start), ("end", word.end)):
            if time is not None:
                shown[name] = round(begin + time, 3)
        words.append(shown | ({} if word.confidence is None else {"confidence": round(word.confidence, 3)}))
    event = {"type": "final", "text": hypothesis.text, **meant, "words": words}
    segments = getattr(hypothesis, "segments", None)  # from models that segment the text themselves
    if segments:
        event["segments"] = segments
    reports = getattr(hypothesis, "phrases", ())
    if reports:
        event["phrases"] = [report.as_dict(begin) for report in reports]
    return event
