"""Read grammars of Vosk: a list of phrases, as JSON or in Python (https://alphacephei.com/vosk/)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..errors import GrammarError
from .expressions import Choice, Words
from .rules import Rules, checked, place, text_and_name

OTHER = "[unk]"


def read_vosk(source: str | Path | Iterable[str]) -> Rules:
    """Read a list of phrases. The phrases have no intents and no slots.

    Args:
        source: the phrases, a JSON text with a list of phrases, or the path of such a file. The phrase "[unk]" is
            ignored, because other speech is always rejected.

    Raises:
        GrammarError: the source isn't a list of phrases. If it isn't valid JSON, the message names the line and column.
    """
    where, phrases = "phrases", source
    if isinstance(source, str | Path):
        text, where = text_and_name(source, where, lambda text: text.lstrip().startswith("["))
        try:
            phrases = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            at = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else ()
            raise GrammarError(f'{place(where, *at)}: this isn\'t JSON ({error}); write ["one phrase", "another"]') from None
    if isinstance(phrases, dict) or not isinstance(phrases, Iterable):
        raise GrammarError(f"{where}: the phrases should be a list of texts, got {str(phrases)[:80]!r}")
    entries = list(phrases)
    if wrong := [each for each in entries if not isinstance(each, str) or not each.strip()]:
        raise GrammarError(f"{where}: each phrase should be a text with words, got {str(wrong[0])[:80]!r}")
    texts = [" ".join(each.split()) for each in entries if each.strip() != OTHER]
    if not texts:
        raise GrammarError(f"{where}: there are no phrases besides {OTHER!r}; write at least one")
    return checked(Rules({None: Choice(*map(Words, dict.fromkeys(texts)))}, {}), where)
