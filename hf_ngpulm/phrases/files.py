"""Read files of phrases: plain lists, and the formats of FluidAudio, NeMo and sherpa-onnx."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .phrase import Phrase

# sherpa-onnx's hotwords: "PHRASE :WEIGHT #THRESHOLD @WRITTEN FORM"; only the phrase is required.
_SHERPA = re.compile(r"^(?P<said>.*?\S)(?:\s+:(?P<weight>[\d.]+))?(?:\s+#(?P<threshold>[\d.]+))?(?:\s+@(?P<text>\S.*))?$")


def read_phrase_file(path: str | os.PathLike[str]) -> list[str | Phrase]:
    """Read phrases from a file. The format is detected from its lines; see `FORMATS`.

    Raises:
        ValueError: the file holds no phrases, or a line doesn't follow the detected format.
    """
    text = Path(path).read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    phrases = next(read for matches, read in FORMATS if matches(lines))(text, lines, os.fspath(path))
    if not phrases:
        raise ValueError(f"{path}: holds no phrases (one per line)")
    return phrases


def _plain(text: str, lines: list[str], name: str) -> list[Any]:
    return lines


def _fluid_audio(text: str, lines: list[str], name: str) -> list[Any]:
    """Read FluidAudio's JSON: {"terms": [{"text": ..., "weight": ..., "aliases": [...]}]}, or the list alone."""
    try:
        content = json.loads(text)
        terms = content["terms"] if isinstance(content, dict) else content
        phrases = [
            Phrase(term["text"], term.get("weight"), None, term.get("aliases") or (), term.get("language")) for term in terms
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f'{name}: not FluidAudio\'s JSON, {{"terms": [{{"text": "NVIDIA", "aliases": ["in video"]}}]}} ({error!r})'
        raise ValueError(message) from None
    if isinstance(content, dict) and "minSimilarity" in content:
        warnings.warn(
            f"{name}: minSimilarity compares letters and is ignored; use false_alarms_per_hour, which compares likelihoods",
            stacklevel=3,
        )
    return phrases


def _nemo(text: str, lines: list[str], name: str) -> list[Any]:
    """Read NeMo's lists for word spotting: a line "text_spelling_spelling"."""
    parts = [[part.strip() for part in line.split("_")] for line in lines]
    return [Phrase(written, aliases=[other for other in others if other != written]) for written, *others in parts]


def _sherpa(text: str, lines: list[str], name: str) -> list[Any]:
    phrases = []
    for line in lines:
        match = _SHERPA.match(line)
        assert match is not None  # every line matches
        said, weight, threshold, written = match.group("said", "weight", "threshold", "text")
        said = said.replace(" ", "").replace("▁", " ").strip() if "▁" in said else said
        try:
            # sherpa-onnx's threshold is a mean probability, which can't be compared with a likelihood ratio.
            number = None if weight is None else float(weight)
        except ValueError:
            raise ValueError(f"{name}: {weight!r} in {line!r} should be a number") from None
        if threshold is not None:
            warnings.warn(f"{name}: the threshold #{threshold} is a probability and is ignored", stacklevel=3)
        phrases.append(Phrase(written or said, number, None, () if written in (None, said) else (said,)))
    return phrases


# For each format: a function that detects it in lines, and its reader. The first match counts.
FORMATS: list[tuple[Callable[[list[str]], bool], Callable[[str, list[str], str], list[Any]]]] = [
    (lambda lines: bool(lines) and lines[0][0] in "[{", _fluid_audio),
    (lambda lines: any("▁" in line or re.search(r"\s[:#][\d.]+(\s|$)|\s@\S", line) for line in lines), _sherpa),
    (lambda lines: bool(lines) and all("_" in line for line in lines), _nemo),
    (lambda lines: True, _plain),
]
