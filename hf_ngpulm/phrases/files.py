"""Read files of phrases: plain lists, and those of FluidAudio, NeMo and sherpa-onnx."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .phrase import Phrase

# sherpa-onnx's hotwords: "PHRASE :1.5 #0.35 @WHAT IS WRITTEN", all parts but the first optional.
_SHERPA = re.compile(r"^(?P<said>.*?\S)(?:\s+:(?P<weight>[\d.]+))?(?:\s+#(?P<threshold>[\d.]+))?(?:\s+@(?P<text>\S.*))?$")


def read_phrase_file(path: str | os.PathLike[str]) -> list[str | Phrase]:
    """Read phrases from a file. Its content tells the format; see `FORMATS`.

    Raises:
        ValueError: the file holds no phrases, or isn't in its format.
    """
    text = Path(path).read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = next(read for is_it, read in FORMATS if is_it(lines))(text, lines, os.fspath(path))
    if not found:
        raise ValueError(f"{path}: holds no phrases (one a line)")
    return found


def _plain(text: str, lines: list[str], name: str) -> list[Any]:
    return lines


def _fluid_audio(text: str, lines: list[str], name: str) -> list[Any]:
    """Read FluidAudio's JSON: {"terms": [{"text": ..., "weight": ..., "aliases": [...]}]}, or the list alone."""
    try:
        content = json.loads(text)
        terms = content["terms"] if isinstance(content, dict) else content
        found = [
            Phrase(term["text"], term.get("weight"), None, term.get("aliases") or (), term.get("language")) for term in terms
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f'{name}: not FluidAudio\'s JSON, {{"terms": [{{"text": "NVIDIA", "aliases": ["in video"]}}]}} ({error!r})'
        raise ValueError(message) from None
    if isinstance(content, dict) and "minSimilarity" in content:
        warnings.warn(
            f"{name}: minSimilarity compares letters, and is left out; false_alarms_per_hour compares likelihoods", stacklevel=3
        )
    return found


def _nemo(text: str, lines: list[str], name: str) -> list[Any]:
    """Read NeMo's lists for word spotting: a line "text_spelling_spelling"."""
    parts = [[part.strip() for part in line.split("_")] for line in lines]
    return [Phrase(written, aliases=[other for other in others if other != written]) for written, *others in parts]


def _sherpa(text: str, lines: list[str], name: str) -> list[Any]:
    found = []
    for line in lines:
        match = _SHERPA.match(line)
        assert match is not None  # any line does
        said, weight, threshold, written = match.group("said", "weight", "threshold", "text")
        said = said.replace(" ", "").replace("▁", " ").strip() if "▁" in said else said
        try:
            # A threshold there is a mean probability; it isn't comparable with a likelihood ratio.
            number = None if weight is None else float(weight)
        except ValueError:
            raise ValueError(f"{name}: {weight!r} in {line!r} should be a number") from None
        if threshold is not None:
            warnings.warn(f"{name}: the threshold #{threshold} is a probability, and is left out", stacklevel=3)
        found.append(Phrase(written or said, number, None, () if written in (None, said) else (said,)))
    return found


# For each format: whether lines are in it, and its reader. The first that fits counts.
FORMATS: list[tuple[Callable[[list[str]], bool], Callable[[str, list[str], str], list[Any]]]] = [
    (lambda lines: bool(lines) and lines[0][0] in "[{", _fluid_audio),
    (lambda lines: any("▁" in line or re.search(r"\s[:#][\d.]+(\s|$)|\s@\S", line) for line in lines), _sherpa),
    (lambda lines: bool(lines) and all("_" in line for line in lines), _nemo),
    (lambda lines: True, _plain),
]
