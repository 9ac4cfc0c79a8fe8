"""Corpora that benchmarks decode: recordings with transcripts, speakers and splits, by a name or the path of a manifest.

A manifest has a line {"audio": path, "text": transcript} per clip; "entities" (names in it), "speaker", "group" (of speakers)
and "split" may follow. Where it names no splits the first clip is "even", the second "odd", and so on. Weights are chosen on
the first split that there is, and figures are reported of the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np

from hf_ngpulm.evaluation import ErrorCounts, entity_errors, word_errors
from hf_ngpulm.sound.files import read_audio

RATE = 16_000
SPEECH = measure.ROOT / "examples" / "speech"  # a folder for each bundled corpus
LM = (str(SPEECH / "harbour" / "lm.arpa.gz"),)  # for the bundled models


@dataclass(frozen=True, eq=False)
class Clip:
    """A recording: samples at 16 kHz, what is said, the names in it, who says it, the split that it belongs to, its file."""

    audio: np.ndarray
    text: str
    entities: tuple[str, ...] = ()
    speaker: str = ""
    split: str = ""
    group: str = ""
    path: str = ""

    @property
    def seconds(self) -> float:
        return len(self.audio) / RATE


def lines_of(path: str | Path, split: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of a JSON-lines file, those of a split if one is given."""
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line for line in lines if split in (None, line.get("split"))]


def load(source: str | Path, limit: int | None = None, split: str | None = None, every: int = 1) -> list[Clip]:
    """Return the clips (at most `limit`, each n-th, those of a split) of a bundled corpus by its name, of a folder with
    clips.jsonl, or of a manifest."""
    path = SPEECH / source if (SPEECH / source).is_dir() else Path(source)
    path = path / "clips.jsonl" if path.is_dir() else path
    return [
        Clip(
            read_audio(path.parent / line["audio"], RATE),
            line["text"],
            tuple(line.get("entities", ())),
            line.get("speaker", line.get("voice", "")),
            line.get("split", ("even", "odd")[number % 2]),
            line.get("group", ""),
            str(path.parent / line["audio"]),
        )
        for number, line in enumerate(lines_of(path, split)[:limit:every])
    ]


def text_of(source: str | Path) -> list[str]:
    """Return the sentences of a file, or of a bundled corpus (those that its language model is trained on)."""
    path = SPEECH / source / "text.txt" if (SPEECH / source).is_dir() else Path(source)
    return path.read_text(encoding="utf-8").splitlines()


def splits(clips: Sequence[Clip]) -> dict[str, list[int]]:
    """Return the numbers of each split's clips, the one that weights are chosen on first; and those of all."""
    names = dict.fromkeys(clip.split for clip in clips)
    return {name: [n for n, clip in enumerate(clips) if clip.split == name] for name in names} | {"all": [*range(len(clips))]}


def joined(clips: Sequence[Clip], size: int) -> list[Clip]:
    """Return so many clips at a time as one; what is left over at the end is left out."""
    parts = [clips[first : first + size] for first in range(0, len(clips) - size + 1, size)]
    return [
        Clip(np.concatenate([c.audio for c in part]), " ".join(c.text for c in part), split=part[0].split) for part in parts
    ]


def figures(clips: Sequence[Clip], found: Sequence[str], entities: bool = False) -> dict[str, float]:
    """Return error rates of transcripts in percent: word error rates by split, deletions, insertions and substitutions of all
    clips; with `entities` also the error rates of the names in the clips, and their F1, by split."""
    rates: dict[str, float] = {}
    for name, numbers in splits(clips).items():
        said, heard = [clips[n].text for n in numbers], [found[n] for n in numbers]
        errors: ErrorCounts = word_errors(said, heard)
        rates[name] = 100 * errors.rate
        for kind in () if name != "all" else ("deletions", "insertions", "substitutions"):
            rates[kind] = 100 * getattr(errors, kind) / errors.length
        if entities:
            of_entities = entity_errors(said, heard, [clips[n].entities for n in numbers])
            rates |= {f"entities, {name}": 100 * of_entities.entity_wer, f"F1, {name}": 100 * of_entities.matches.f1}
    return rates
