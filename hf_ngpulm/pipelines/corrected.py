"""Add phrases and a language model from corrections to a pipeline's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..corrections import CorrectionLog
from ..phrases import Booster
from ..phrases.contexts import is_per_row

_OF_AN_LM = ("lm", "lm_weight", "source_lm", "source_weight")


def with_log(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which the log replaces the path of its file. Raises FileNotFoundError if there is no such file."""
    path = settings.get("corrections")
    if not isinstance(path, str | os.PathLike):
        return settings
    log = CorrectionLog(path)
    if not log.path.is_file():  # otherwise a mistyped path would be an empty log
        raise FileNotFoundError(f"corrections: there is no file {log.path}; pass CorrectionLog(path) to begin a new log")
    return {**settings, "corrections": log}


def taught(settings: Mapping[str, Any], tokenizer: Any, aliases: bool) -> dict[str, Any]:
    """Return settings in which the log `corrections` is replaced by additions to `lm` and `phrases`.

    A graph consists of a language model's words, so with `strategy="graph"` only `phrases` change. If there is no language
    model, settings of language models are removed.

    Args:
        tokenizer: the recogniser's tokenizer.
        aliases: whether phrases keep their aliases. A family that writes aliases as they are heard mustn't boost aliases.

    Raises:
        TypeError: `corrections` isn't a log, or phrases are compiled already.
    """
    log = settings.get("corrections")
    if log is None:
        return {name: value for name, value in settings.items() if name != "corrections"}
    if not isinstance(log, CorrectionLog):
        raise TypeError(f"corrections should be a CorrectionLog or the path of its file, got {log!r}")
    lm, phrases = settings.get("lm"), settings.get("phrases")
    learned = log.phrases() if aliases else [phrase.text for phrase in log.phrases()]
    every: Any = _with(phrases, learned) if not is_per_row(phrases) else [_with(own, learned) for own in phrases or ()]
    if settings.get("strategy") == "graph":
        return {**{name: value for name, value in settings.items() if name != "corrections"}, "phrases": every}
    lms = [log.language_model(each, tokenizer) for each in lm] if isinstance(lm, list) else log.language_model(lm, tokenizer)
    idle = _OF_AN_LM if lms is None else ()
    rest = {name: value for name, value in settings.items() if name != "corrections" and name not in idle}
    return {**rest, "phrases": every} | ({} if lms is None else {"lm": lms})


def _with(phrases: Any, learned: list[Any]) -> list[Any]:
    if isinstance(phrases, Booster):
        raise TypeError("corrections= can't add phrases to a PhraseBooster; pass the phrases themselves")
    return [*(phrases.items() if isinstance(phrases, Mapping) else phrases or ()), *learned]
