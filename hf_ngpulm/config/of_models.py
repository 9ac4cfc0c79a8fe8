"""Store values that were fitted to speech recognisers in files, such as thresholds and calibrations of confidences:

    {"thresholds": [
      {"model": "nvidia/parakeet-ctc-0.6b", "model_type": "parakeet_ctc", "model_fingerprint": "5b1e...", "offset": 4.6, ...}
    ]}

A file may have several lists with different names. A list has one entry per recogniser.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.checks import NAME, Kind, check_entries
from ..common.files import write_beside
from ..errors import NGramFormatError
from .tuned import MOST_ENTRIES, ModelIdentity

_NAMES = ("model", "model_type", "model_fingerprint")
Path_ = str | os.PathLike[str]


def read_of_models(path: Path_, name: str, kinds: Mapping[str, Kind]) -> list[tuple[ModelIdentity, dict[str, Any]]]:
    """Return the entries of a list in a file. An entry names a recogniser and its fitted values. `name`: the list's name, such
    as "thresholds". `kinds`: the permitted values, by the values' names.

    Raises:
        NGramFormatError: the file has no such list, or a value isn't permitted.
    """
    entries = _content(path).get(name)
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        raise NGramFormatError(f"{path}: has no {name} of recognisers, as hf-ngpulm tune --save-to writes them")
    for entry in entries:
        if not isinstance(entry, dict):
            raise NGramFormatError(f"{path}: {name} should list objects, has {str(entry)[:80]!r}")
        check_entries(entry, {**dict.fromkeys(_NAMES, NAME), **kinds}, str(path), f"{name}: ")
    return [(ModelIdentity(*(entry[key] for key in _NAMES)), {key: entry[key] for key in kinds}) for entry in entries]


def save_of_model(path: Path_, name: str, kinds: Mapping[str, Kind], model: ModelIdentity, values: Mapping[str, Any]) -> None:
    """Write a recogniser's fitted values to a list in a file. Other content stays. `name`, `kinds`: see `read_of_models`.

    Raises:
        NGramFormatError: the existing file wasn't written by this function.
    """
    content = _content(path) if os.path.exists(path) else {}
    others = read_of_models(path, name, kinds) if name in content else []
    kept = [*(pair for pair in others if not pair[0].is_same(model)), (model, values)][-MOST_ENTRIES:]
    content[name] = [
        {**dict(zip(_NAMES, (each.name, each.model_type, each.fingerprint))), **{key: of[key] for key in kinds}}
        for each, of in kept
    ]
    with write_beside(path) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def refuse_other(path: Path_) -> None:
    """Check before long work that `save_of_model` will be able to write to a path.

    Raises:
        NGramFormatError: the existing file wasn't written by `save_of_model`.
        ValueError: the path is a folder, or its parent folder doesn't exist.
    """
    if os.path.isdir(path) or not Path(path).absolute().parent.is_dir():
        raise ValueError(f"{os.fspath(path)} should be a file in a folder that exists; name another, or make the folder")
    if os.path.exists(path):
        _content(path)


def found_for(path: Path_, name: str, kinds: Mapping[str, Kind], model: Any) -> dict[str, Any]:
    """Return the fitted values of a recogniser. Raises ValueError if the file has no values for this recogniser."""
    found, own = read_of_models(path, name, kinds), ModelIdentity.of(model)
    fitting = [values for each, values in found if each.is_same(own)]
    if not fitting:
        names = ", ".join(each.name for each, _ in found) or "no recogniser"
        raise ValueError(
            f"{os.fspath(path)}: has {name} for {names}, none for {own.name}; fit them with hf-ngpulm tune --save-to"
        )
    return fitting[-1]


def _content(path: Path_) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise NGramFormatError(f"{path}: isn't a file that hf-ngpulm tune --save-to writes for recognisers")
    return content
