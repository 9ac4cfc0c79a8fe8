"""Events of a stream, as dictionaries for JSON, for the command line and the server. Times are seconds of the audio."""

from __future__ import annotations

from typing import Any

from ..decoding.hypotheses import Hypothesis
from ..decoding.partials import Partial
from .recognizer import StreamingRecognizer


def partial_event(recognizer: StreamingRecognizer, sid: int, partial: Partial) -> dict[str, Any]:
    """Return the utterance so far.

    The event has its `text`, the part that can no longer change (`stable`), and the end of the decoded audio (`end`).
    """
    end = recognizer.utterance_begin(sid) + partial.frames * (recognizer.frame_seconds or 0.0)
    return {"type": "partial", "end": round(end, 3), "text": partial.text, "stable": partial.stable_text}


def final_event(hypotheses: list[Hypothesis], begin: float, has_words: bool = True) -> dict[str, Any] | None:
    """Return the event of a finished utterance; None if its transcript is empty.

    Args:
        hypotheses: a result of `StreamingRecognizer.close` or `reset`.
        begin: the begin of the utterance, in seconds.
        has_words: whether to list the words; this takes longer than the text alone.
    """
    if not hypotheses or not hypotheses[0].token_ids:
        return None
    words: list[dict[str, Any]] = []
    for word in hypotheses[0].words if has_words else ():
        shown: dict[str, Any] = {"text": word.text}
        for name, time in (("start", word.start), ("end", word.end)):
            if time is not None:
                shown[name] = round(begin + time, 3)
        words.append(shown | ({} if word.confidence is None else {"confidence": round(word.confidence, 3)}))
    segments = getattr(hypotheses[0], "segments", None)  # from models that segment the text themselves
    return {"type": "final", "text": hypotheses[0].text, "words": words, **({"segments": segments} if segments else {})}
