"""Write transcripts in OpenAI's formats."""

from __future__ import annotations

import re
import zlib
from typing import Any

from ..audio.subtitles import segments, subtitles

# Matches the last word. In scripts without spaces (kana, Chinese characters, Thai, Lao, Burmese, Khmer) it matches nothing.
_NO_SPACES = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNFINISHED = re.compile(rf"\s*[^\s{_NO_SPACES}]*\Z")

Answer = dict[str, Any]
MEANING = ("understood", "intent", "slots", "confidence", "free_text", "explanation", "phrases")


def answer(
    kind: str, final: Answer | None, seconds: float, granularities: frozenset[str], language: str, warned: Answer, task: str,
    has_grammar: bool = False,
) -> Answer | str:  # fmt: skip
    """Return the body of the response to a client. The body is a string, or a dictionary for JSON.

    Args:
        kind: the response format, one of `FORMATS`.
        final: the result of `final_event`; None if the audio has no speech.
        seconds: length of the audio, in seconds.
        granularities: the units that get times in verbose_json: "segment", "word" or both.
        language: the language that the client requested. The response to a translation names English instead.
        warned: the result of `warnings`. JSON responses contain these warnings.
        task: "transcribe" or "translate".
        has_grammar: whether the client requested a grammar.
    """
    text = "" if final is None else final["text"]
    usage = {"type": "duration", "seconds": round(seconds, 3)}
    meant = meaning(final, has_grammar)
    if kind == "json":
        sure = [] if final is None else [_word(word) for word in final["words"]]
        return {"text": text, **meant, **({"words": sure} if sure else {}), "usage": usage, **warned}
    if kind == "text":
        return text + "\n"
    spans = [] if final is None else final.get("segments") or segments(text, final["words"])
    if kind != "verbose_json":
        return subtitles(spans, kind)
    heard_in = "english" if task == "translate" else language or "unknown"
    shown: Answer = {"task": task, "language": heard_in, "duration": round(seconds, 3), "text": text, **meant}
    if "segment" in granularities:
        shown["segments"] = [_verbose(number, segment) for number, segment in enumerate(spans)]
    if "word" in granularities:
        words = [] if final is None else final["words"]
        shown["words"] = [{"start": None, "end": None, **_word(word)} for word in words]
    return {**shown, "usage": usage, **warned}


def _word(word: Answer) -> Answer:
    return {"word": word["text"], **{name: word[name] for name in ("start", "end", "confidence") if name in word}}


def meaning(final: Answer | None, has_grammar: bool) -> Answer:
    """Return the entries of a final event that concern a grammar or phrases. If the client requested a grammar, but the audio
    has no speech (`final` is None), the entries say "not understood".
    """
    if final is None and has_grammar:
        return {"understood": False, "intent": None, "slots": [], "confidence": 0.0, "free_text": ""}
    return {} if final is None else {name: final[name] for name in MEANING if name in final}


def warnings(context: Any) -> Answer:
    """Return `{"warnings": [...]}` if the tokenizer can't write some phrases of a context. Otherwise return an empty dict."""
    left_out = {} if context is None else context.left_out
    messages = [f"{phrase!r} is ignored: the model can't write {letters!r}" for phrase, letters in left_out.items()]
    return {"warnings": messages} if messages else {}


def whole_words(text: str) -> str:
    """Return an unfinished text without its last word, because this word may still grow. In scripts without spaces, return the
    whole text.
    """
    return _UNFINISHED.sub("", text)


def _verbose(number: int, segment: Answer) -> Answer:
    text = segment["text"].encode()
    # Some clients expect all of Whisper's fields in each segment. Fields that this search can't compute are constant.
    ratio = len(text) / len(zlib.compress(text))
    constant = {"seek": 0, "tokens": [], "temperature": 0.0, "avg_logprob": 0.0, "no_speech_prob": 0.0}
    return {"id": number, **segment, **constant, "compression_ratio": round(ratio, 3)}
