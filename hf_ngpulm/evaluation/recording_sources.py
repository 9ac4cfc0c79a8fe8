"""Where recordings come from: manifests, folders of audio, and datasets."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..text.sources import FIELDS, choose_field, numbered_lines
from .recordings import Recording, Recordings

AUDIO_FIELDS = ("audio", "audio_filepath", "file_name", "path", "file", "wav")
EXTENSIONS = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".au", ".caf", ".w64", ".sph")
METADATA = ("metadata.jsonl", "metadata.csv")
JSON_LINES = (".jsonl", ".json", ".ndjson")
TABLES = (".tsv", ".csv")
_DATASET_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


class Fields(NamedTuple):
    """Names of fields or columns; None where the usual ones are looked for."""

    audio: str | None
    text: str | None
    entities: str


class Row(NamedTuple):
    """A line of a manifest, with the place that errors name, and the folder of relative paths."""

    values: dict[str, Any]
    where: str
    folder: Path


def read_recordings(
    source: str | os.PathLike[str],
    *,
    split: str | None = None,
    config: str | None = None,
    audio_field: str | None = None,
    text_field: str | None = None,
    entities_field: str = "entities",
    limit: int | None = None,
) -> Recordings:
    """Return recordings and their transcripts, of whatever holds them.

    Args:
        source: one of
            a manifest: JSON lines (`.jsonl`, `.json`, `.ndjson`) or a table with a header (`.tsv`, `.csv`). Fields: the audio
            ("audio", or NeMo's "audio_filepath", "file_name", "path", "file", "wav"; relative paths lie beside the manifest),
            the transcript (see `text_field`), and, where there are any, entities (a list; in tables separated by ";" or a
            JSON list), "id", and NeMo's "offset" and "duration" in seconds;
            a folder of audio files, also in folders within, with `metadata.jsonl` or `metadata.csv` as Hugging Face's
            audiofolder has it, LibriSpeech's `*.trans.txt`, or a `.txt` beside each file;
            a folder saved by `datasets`, a Parquet file, or a folder of these;
            the id of a dataset on the Hub, `org/name` or `org/name:config`.
        split: of a dataset on the Hub or in a folder; "test" by default if there is one, or the only one. Of a folder of
            audio: the folder within.
        config: of a dataset on the Hub.
        audio_field, text_field, entities_field: fields or columns. By default the transcript is the first there is of "text",
            "sentence", "transcription", "transcript", "normalized_text", "raw_transcription".
        limit: only the first so many.

    Raises:
        FileNotFoundError: there is no such file, nor could it be a dataset.
        ValueError: no recordings, a field that is missing or isn't what it should be: names the place.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit should be a whole number above 0, got {limit!r}")
    fields = Fields(audio_field, text_field, entities_field)
    return recordings_of(os.fspath(source), fields, split, config, limit)


def recordings_of(name: str, fields: Fields, split: str | None, config: str | None, limit: int | None) -> Recordings:
    """Return the recordings of a source."""
    path = Path(name)
    if path.is_file() and path.suffix.lower() != ".parquet":
        if split is not None or config is not None:
            raise ValueError(f"{name}: a manifest has no split or config; leave them out")
        if path.suffix.lower() not in (*JSON_LINES, *TABLES):
            raise ValueError(
                f"{name}: should be a manifest ({', '.join((*JSON_LINES, *TABLES))}), a Parquet file, a folder of audio or the "
                "id of a dataset"
            )
        return _listed(name, _recordings_in(_rows_of(path), fields), limit)
    if not path.is_dir() and not path.is_file():
        if not _DATASET_ID.fullmatch(name) or path.suffix.lower() in (*JSON_LINES, *TABLES, ".parquet"):
            raise FileNotFoundError(f"{name}: no such file (and no id of a dataset on the Hub, which looks like org/name)")
        return _dataset(name, fields, split, config, limit)
    if path.is_file() or any((path / file).exists() for file in ("dataset_dict.json", "dataset_info.json", "state.json")):
        return _dataset(name, fields, split, config, limit)
    files = _files_in(path)
    if any(file.suffix.lower() == ".parquet" for file in files) and not any(map(_is_audio, files)):
        return _dataset(name, fields, split, config, limit)
    if config is not None:
        raise ValueError(f"{name}: a folder of audio has no config, got {config!r}; leave it out")
    if split is not None:
        if not (path / split).is_dir():
            raise ValueError(f"{name}: has no folder {split!r}, which the split would be")
        path, files = path / split, _files_in(path / split)
    return _listed(name, _recordings_beside(path, files, fields), limit)


# Manifests


def _listed(name: str, found: Iterable[Recording], limit: int | None) -> Recordings:
    """Return recordings with ids of which none occurs twice, and their fingerprint."""
    rows: list[Recording] = []
    taken: set[str] = set()
    digest = hashlib.blake2b(digest_size=16)
    for recording in found:
        if len(rows) == limit:
            break
        unique = _unique(recording.id, taken)
        if unique != recording.id:
            recording = Recording(**{**vars(recording), "id": unique})
        rows.append(recording)
        audio = os.path.basename(str(recording.audio))
        digest.update(repr((unique, audio, recording.offset, recording.duration, recording.entities)).encode())
    if not rows:
        raise ValueError(f"{name}: holds no recordings")
    return Recordings(name, rows, digest.hexdigest())


def _unique(name: str, taken: set[str]) -> str:
    """Return a name, or for the second of that name "name#2"; then taken."""
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}#{number}"
    taken.add(unique)
    return unique


def _rows_of(path: Path) -> Iterator[Row]:
    if path.suffix.lower() in TABLES:
        tabs = path.suffix.lower() == ".tsv"
        try:
            with open(path, encoding="utf-8-sig", newline="") as file:
                # Within tab-separated values quotes are what they are in the text.
                reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.DictReader(file)
                for row in reader:
                    if None in row or None in row.values():
                        raise ValueError(f"{path}, line {reader.line_num}: not as many fields as the header has")
                    yield Row(row, f"{path}, line {reader.line_num}", path.parent)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: can't be read as a table: {error}") from None
        return
    lines = numbered_lines(str(path), None)
    for number, line in lines:
        where = f"{path}, line {number}"
        if number == 1 and line.lstrip().startswith("["):
            text = line + "".join(following for _, following in lines)
            for i, values in enumerate(_json(text, str(path)), start=1):
                yield Row(_object(values, f"{path}, entry {i}"), f"{path}, entry {i}", path.parent)
            return
        yield Row(_object(_json(line, where), where), where, path.parent)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object with the audio and its transcript, got {str(value)[:60]!r}")
    return value


def _recordings_in(rows: Iterable[Row], fields: Fields, root: Path | None = None) -> Iterator[Recording]:
    """Yield recordings of a manifest's rows; `root` is what the ids of unnamed ones are relative to, if it isn't the
    manifest."""
    for row in rows:
        values = row.values
        candidates = AUDIO_FIELDS if fields.audio is None else (fields.audio,)
        name = next((values[field] for field in candidates if field in values), None)
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"{row.where}: none of the fields {', '.join(candidates)} has a file's name; there are "
                f"{', '.join(map(repr, values)) or 'none'}. Name the one with the audio (audio_field)"
            )
        offset = _seconds(values.get("offset"), "offset", row.where)
        duration = _seconds(values.get("duration"), "duration", row.where)
        path = row.folder / Path(name).expanduser()
        if values.get("id") not in (None, ""):
            identity = str(values["id"])
        else:
            identity = name if root is None else (row.folder / name).relative_to(root).as_posix()
            identity += f"@{offset:g}" if offset else ""
        # A duration without an offset is of the whole file, in NeMo's manifests too.
        part = duration if offset is not None else None
        text, entities = _text(values, fields, row.where), _entities(values, fields, row.where)
        yield Recording(identity, path, None, text, entities, offset or 0.0, part)


def _text(values: dict[str, Any], fields: Fields, where: str) -> str | None:
    if fields.text is None and not any(field in values for field in FIELDS):
        return None
    text = values[choose_field(list(values), fields.text, where)]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{where}: the transcript isn't text, but {str(text)[:60]!r}")
    return text


def _entities(values: dict[str, Any], fields: Fields, where: str) -> tuple[str, ...]:
    found = values.get(fields.entities)
    if found is None and fields.entities != "entities" and fields.entities not in values:
        raise ValueError(f"{where}: no field {fields.entities!r} with entities; there are {', '.join(map(repr, values))}")
    if isinstance(found, str):  # in a table
        found = _json(found, where) if found.lstrip().startswith("[") else [part for part in found.split(";") if part.strip()]
    found = [] if found is None else found
    if not isinstance(found, list | tuple | np.ndarray) or not all(isinstance(phrase, str) for phrase in found):
        raise ValueError(f"{where}: entities should be a list of texts, got {str(found)[:60]!r}")
    return tuple(phrase.strip() for phrase in found if phrase.strip())


def _seconds(value: Any, name: str, where: str) -> float | None:
    if value in (None, ""):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {name} should be seconds, 0 or more, got {value!r}")
    return seconds


# Folders of audio


def _files_in(folder: Path) -> list[Path]:
    """Return all files in a folder and those within it but for hidden ones, in the order of their names."""
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name) for name in sorted(files) if not name.startswith(".")]
    return found


def _is_audio(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS


def _recordings_beside(folder: Path, files: list[Path], fields: Fields) -> Iterator[Recording]:
    metadata = [file for file in files if file.name in METADATA]
    if metadata:
        for file in metadata:
            yield from _recordings_in(_rows_of(file), fields, folder)
        return
    if fields.audio is not None or fields.text is not None or fields.entities != "entities":
        raise ValueError(f"{folder}: has no {' or '.join(METADATA)} whose fields could be named; leave their names out")
    transcripts: dict[Path, str] = {}
    for file in files:
        if file.name.endswith(".trans.txt"):  # LibriSpeech: "1089-134686-0000 HE HOPED THERE WOULD BE STEW" a line
            for _, line in numbered_lines(str(file), None):
                name, _, said = line.strip().partition(" ")
                transcripts[file.parent / name] = said.strip()
    for file in files:
        if not _is_audio(file):
            continue
        text = transcripts.get(file.with_suffix(""))
        beside = file.with_suffix(".txt")
        if text is None and beside.is_file():
            text = " ".join(line.strip() for _, line in numbered_lines(str(beside), None))
        yield Recording(file.relative_to(folder).as_posix(), file, None, text)


# Datasets


def _dataset(name: str, fields: Fields, split: str | None, config: str | None, limit: int | None) -> Recordings:
    """Return a dataset on the Hub, saved in a folder, or in Parquet files."""
    import datasets

    path = Path(name)
    hub = not path.exists()
    if config is not None and not hub:
        raise ValueError(f"{name}: only a dataset on the Hub has a config, got {config!r}; leave it out")
    try:
        if hub:
            repo, _, after_colon = name.partition(":")
            if after_colon and config not in (None, after_colon):
                raise ValueError(f"{name}: names the config {after_colon!r}, but config={config!r} was given")
            rows: Any = datasets.load_dataset(repo, config or after_colon or None, split=split or "test")
        elif path.is_file():
            if split is not None:
                raise ValueError(f"{name}: a single file has no splits; leave {split!r} out")
            rows = datasets.load_dataset("parquet", data_files=str(path), split="train")
        elif any(path.rglob("*.parquet")):
            rows = datasets.load_dataset(str(path))
        else:
            rows = datasets.load_from_disk(str(path))
    except datasets.exceptions.DatasetsError as error:
        raise ValueError(f"{name}: can't be read as a dataset: {error}") from None
    if isinstance(rows, datasets.DatasetDict):
        rows = _split_of(rows, name, split)
    elif split is not None and not hub:
        raise ValueError(f"{name}: has no splits; leave {split!r} out")
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    if not len(rows):
        raise ValueError(f"{name}: holds no recordings")
    fingerprint = rows._fingerprint
    columns = rows.column_names
    audio = fields.audio
    if audio is None:
        of_audio = [name for name, feature in rows.features.items() if isinstance(feature, datasets.Audio)]
        audio = next((name for name in (*of_audio, *AUDIO_FIELDS) if name in columns), None)
    if audio is None or audio not in columns:
        raise ValueError(f"{name}: no column with audio ({audio or 'audio_field'}); there are {', '.join(columns)}")
    if isinstance(rows.features[audio], datasets.Audio):
        rows = rows.cast_column(audio, datasets.Audio(decode=False))  # decoding would need torchcodec
    if fields.text is not None or any(field in columns for field in FIELDS):
        choose_field(list(columns), fields.text, name)
    column, taken = audio, set[str]()
    names = [
        _unique(str(i if given is None else given), taken)
        for i, given in enumerate(rows["id"] if "id" in columns else range(len(rows)))
    ]

    def made(number: int, row: dict[str, Any]) -> Recording:
        where = f"{name}, row {number}"
        content, rate = _content(row[column], where, path if path.is_dir() else path.parent)
        return Recording(names[number], content, rate, _text(row, fields, where), _entities(row, fields, where))

    texts = rows.remove_columns([column])

    def described(number: int) -> Recording:
        row, where = texts[number] if texts.column_names else {}, f"{name}, row {number}"
        return Recording(names[number], b"", None, _text(row, fields, where), _entities(row, fields, where))

    return Recordings(name, rows, fingerprint, made, described)


def _split_of(rows: Any, name: str, split: str | None) -> Any:
    chosen = split or ("test" if "test" in rows else next(iter(rows)) if len(rows) == 1 else None)
    if chosen is None or chosen not in rows:
        wanted = f"no split {chosen!r}" if chosen else "several splits"
        raise ValueError(f"{name}: {wanted}; name one of {', '.join(rows)} (split)")
    return rows[chosen]


def _content(value: Any, where: str, folder: Path) -> tuple[Path | np.ndarray | bytes, int | None]:
    """Return audio out of a cell, and its rate if it is samples."""
    if isinstance(value, str):
        return folder / value, None
    if isinstance(value, bytes):
        return value, None
    if isinstance(value, dict):
        if value.get("bytes") is not None:
            return value["bytes"], None
        if value.get("path"):
            return folder / value["path"], None
        if value.get("array") is not None:
            return np.asarray(value["array"]), value.get("sampling_rate")
    raise ValueError(f"{where}: holds no audio (bytes, a path, or an array with its sampling_rate), but {str(value)[:60]!r}")
