"""Read recordings from manifests, folders of audio, and datasets."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..common.checks import check, whole
from ..common.extras import needed
from ..text.sources import FIELDS, choose_field, numbered_lines
from .recordings import Recording, Recordings, listed, unique

AUDIO_FIELDS = ("audio", "audio_filepath", "file_name", "path", "file", "wav")
EXTENSIONS = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".au", ".caf", ".w64", ".sph")
METADATA = ("metadata.jsonl", "metadata.csv")
TABLES = (".tsv", ".csv")
MANIFESTS = (".jsonl", ".json", ".ndjson", *TABLES)
SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")  # in folders saved by datasets
_DATASET_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


class Fields(NamedTuple):
    """Hold the names of the fields or columns of a manifest. None selects the usual names."""

    audio: str | None
    text: str | None
    entities: str


class Row(NamedTuple):
    """Hold a row of a manifest or dataset."""

    values: dict[str, Any]
    where: str  # the row's place, for error messages
    folder: Path  # base of relative paths


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
    """Return the recordings and transcripts of a manifest, folder or dataset.

    Args:
        source: one of these:

            - a manifest: JSON lines (`.jsonl`, `.json`, `.ndjson`) or a table with a header (`.tsv`, `.csv`). Fields: the audio
              ("audio", "audio_filepath" as in NeMo, "file_name", "path", "file" or "wav"; paths are relative to the manifest),
              the transcript (see `text_field`), and optionally "entities" (a list; in tables a JSON list, or phrases separated
              by ";"), "id", and NeMo's "offset" and "duration" in seconds
            - a folder of audio files, also in subfolders, with `metadata.jsonl` or `metadata.csv` (Hugging Face's audiofolder),
              LibriSpeech's `*.trans.txt`, or a `.txt` beside each file
            - a folder saved by `datasets`, a Parquet file, or a folder of Parquet files
            - the id of a dataset on the Hub, `org/name` or `org/name:config`
        split: split of a dataset; by default "test", or the only split. For a folder of audio, a subfolder.
        config: configuration of a dataset on the Hub.
        audio_field, text_field, entities_field: names of fields or columns. By default the transcript is the first existing
            field of "text", "sentence", "transcription", "transcript", "normalized_text", "raw_transcription".
        limit: maximum number of recordings; None reads all recordings.

    Raises:
        FileNotFoundError: there is no such file, and `source` can't be the id of a dataset.
        ValueError: the source has no recordings, or a field is missing or invalid. The message names the place.
    """
    if limit is not None:
        check("limit", limit, whole())
    name, path, fields = os.fspath(source), Path(source), Fields(audio_field, text_field, entities_field)
    ending = path.suffix.lower()
    if path.is_file() and ending != ".parquet":
        if split is not None or config is not None:
            raise ValueError(f"{name}: a manifest has no split or config; leave them out")
        if ending not in MANIFESTS:
            raise ValueError(
                f"{name}: should be a manifest ({', '.join(MANIFESTS)}), a Parquet file, a folder of audio or a dataset's id"
            )
        return listed(name, (_recording(row, fields) for row in _rows_of(path)), limit)
    if not path.exists() and (not _DATASET_ID.fullmatch(name) or ending in (*MANIFESTS, ".parquet")):
        raise FileNotFoundError(f"{name}: no such file (and no id of a dataset on the Hub, which looks like org/name)")
    files = _files_in(path) if path.is_dir() else []
    is_parquet = any(file.suffix.lower() == ".parquet" for file in files) and not any(map(_is_audio, files))
    if not path.is_dir() or is_parquet or any((path / file).exists() for file in SAVED):
        return _dataset(name, fields, split, config, limit)
    if config is not None:
        raise ValueError(f"{name}: a folder of audio has no config, got {config!r}; leave it out")
    if split is not None:
        if not (path / split).is_dir():
            raise ValueError(f"{name}: has no folder {split!r}, which the split would be")
        path, files = path / split, _files_in(path / split)
    return listed(name, _recordings_beside(path, files, fields), limit)


# Rows of manifests


def _rows_of(path: Path) -> Iterator[Row]:
    kind = _rows_of_table if path.suffix.lower() in TABLES else _rows_of_json
    for place, values in kind(path):
        where = f"{path}, {place}"
        if not isinstance(values, dict):
            raise ValueError(f"{where}: expected an object with the audio and its transcript, got {str(values)[:60]!r}")
        yield Row(values, where, path.parent)


def _rows_of_json(path: Path) -> Iterator[tuple[str, Any]]:
    lines = numbered_lines(str(path), None)
    for number, line in lines:
        if number == 1 and line.lstrip().startswith("["):
            text = line + "".join(following for _, following in lines)
            yield from ((f"entry {i}", values) for i, values in enumerate(_json(text, str(path)), start=1))
            return
        yield f"line {number}", _json(line, f"{path}, line {number}")


def _rows_of_table(path: Path) -> Iterator[tuple[str, Any]]:
    # In tab-separated files, quotes are part of the text.
    kind: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix.lower() == ".tsv" else {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, **kind)
            for row in reader:
                if None in row or None in row.values():
                    raise ValueError(f"{path}, line {reader.line_num}: not as many fields as the header has")
                yield f"line {reader.line_num}", row
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: can't be read as a table: {error}") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None


def _recording(row: Row, fields: Fields, root: Path | None = None) -> Recording:
    """Return the recording of a manifest's row. If the row has no id, the id is the path relative to `root`. If `root` is
    None, the id is the unchanged path.
    """
    values = row.values
    candidates = AUDIO_FIELDS if fields.audio is None else (fields.audio,)
    name = next((values[field] for field in candidates if field in values), None)
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"{row.where}: none of the fields {', '.join(candidates)} has a file's name; there are "
            f"{', '.join(map(repr, values)) or 'none'}. Name the one with the audio (audio_field)"
        )
    offset, duration = _span(row)
    identity = values.get("id")
    if identity in (None, ""):
        identity = name if root is None else (row.folder / name).relative_to(root).as_posix()
        identity += f"@{offset:g}" if offset else ""
    path = row.folder / Path(name).expanduser()
    return Recording(str(identity), path, None, _text(row, fields), _entities(row, fields), offset, duration)


def _span(row: Row) -> tuple[float, float | None]:
    """Return the offset and the duration of a row's recording. If a row has a duration but no offset, the duration is the
    length of the whole file, as in NeMo's manifests. In this case the returned duration is None.
    """
    offset, duration = (_seconds(row, field) for field in ("offset", "duration"))
    return offset or 0.0, duration if offset is not None else None


def _text(row: Row, fields: Fields) -> str | None:
    if fields.text is None and not any(field in row.values for field in FIELDS):
        return None
    text = row.values[choose_field(list(row.values), fields.text, row.where)]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{row.where}: the transcript isn't text, but {str(text)[:60]!r}")
    return text


def _entities(row: Row, fields: Fields) -> tuple[str, ...]:
    values, where = row.values, row.where
    phrases = values.get(fields.entities)
    if phrases is None and fields.entities != "entities" and fields.entities not in values:
        raise ValueError(f"{where}: no field {fields.entities!r} with entities; there are {', '.join(map(repr, values))}")
    if isinstance(phrases, str):  # in a table
        phrases = _json(phrases, where) if phrases.lstrip().startswith("[") else phrases.split(";")
    phrases = [] if phrases is None else phrases
    if not isinstance(phrases, list | tuple | np.ndarray) or not all(isinstance(phrase, str) for phrase in phrases):
        raise ValueError(f"{where}: entities should be a list of texts, got {str(phrases)[:60]!r}")
    return tuple(phrase.strip() for phrase in phrases if phrase.strip())


def _seconds(row: Row, name: str) -> float | None:
    value = row.values.get(name)
    if value in (None, ""):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{row.where}: {name} should be seconds, 0 or more, got {value!r}")
    return seconds


# Folders of audio


def audio_files(folder: Path) -> list[Path]:
    """Return the audio files in a folder and its subfolders, sorted by name. The extension identifies audio files."""
    return list(filter(_is_audio, _files_in(folder)))


def _files_in(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted by name. Hidden files and folders are ignored."""
    paths = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [Path(root, name) for name in sorted(files) if not name.startswith(".")]
    return paths


def _is_audio(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS


def _recordings_beside(folder: Path, files: list[Path], fields: Fields) -> Iterator[Recording]:
    metadata = [file for file in files if file.name in METADATA]
    if metadata:
        yield from (_recording(row, fields, folder) for file in metadata for row in _rows_of(file))
        return
    if fields != Fields(None, None, "entities"):
        raise ValueError(f"{folder}: has no {' or '.join(METADATA)} whose fields could be named; leave their names out")
    transcripts: dict[Path, str] = {}
    for file in files:
        if file.name.endswith(".trans.txt"):  # LibriSpeech: "1089-134686-0000 HE HOPED THERE WOULD BE STEW" a line
            for _, line in numbered_lines(str(file), None):
                name, _, said = line.strip().partition(" ")
                transcripts[file.parent / name] = said.strip()
    for file in filter(_is_audio, files):
        text, beside = transcripts.get(file.with_suffix("")), file.with_suffix(".txt")
        if text is None and beside.is_file():
            text = " ".join(line.strip() for _, line in numbered_lines(str(beside), None))
        yield Recording(file.relative_to(folder).as_posix(), file, None, text)


# Datasets


def _dataset(name: str, fields: Fields, split: str | None, config: str | None, limit: int | None) -> Recordings:
    """Return the recordings of a dataset. The dataset is on the Hub, in a folder saved by `datasets`, or in Parquet files."""
    with needed("eval", "datasets"):
        import datasets

    try:
        rows = _rows_of_dataset(name, split, config)
    except datasets.exceptions.DatasetsError as error:
        raise ValueError(f"{name}: can't be read as a dataset: {error}") from None
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    if not len(rows):
        raise ValueError(f"{name}: holds no recordings")
    fingerprint, columns = rows._fingerprint, rows.column_names
    of_audio = [name for name, feature in rows.features.items() if isinstance(feature, datasets.Audio)]
    usual = (column for column in (*of_audio, *AUDIO_FIELDS) if column in columns)
    audio = next(usual, None) if fields.audio is None else fields.audio
    if audio is None or audio not in columns:
        raise ValueError(f"{name}: no column with audio ({audio or 'audio_field'}); there are {', '.join(columns)}")
    if audio in of_audio:
        rows = rows.cast_column(audio, datasets.Audio(decode=False))  # decoding would need torchcodec
    if fields.text is not None:
        choose_field(list(columns), fields.text, name)
    taken: set[str] = set()
    ids = rows["id"] if "id" in columns else [None] * len(rows)
    names = [unique(str(i if given is None else given), taken) for i, given in enumerate(ids)]
    folder = Path(name) if Path(name).is_dir() else Path(name).parent
    texts = rows.remove_columns([audio])

    def made(number: int, values: dict[str, Any]) -> Recording:
        row = Row(values, f"{name}, row {number}", folder)
        content = _content(row, audio) if audio in values else (b"", None)
        return Recording(names[number], *content, _text(row, fields), _entities(row, fields), *_span(row))

    def described(number: int) -> Recording:
        return made(number, texts[number] if texts.column_names else {})

    return Recordings(name, rows, fingerprint, made, described)


def _rows_of_dataset(name: str, split: str | None, config: str | None) -> Any:
    with needed("eval", "datasets"):
        import datasets

    path = Path(name)
    if not path.exists():
        repo, _, after_colon = name.partition(":")
        if after_colon and config not in (None, after_colon):
            raise ValueError(f"{name}: names the config {after_colon!r}, but config={config!r} was given")
        return datasets.load_dataset(repo, config or after_colon or None, split=split or "test")
    if config is not None:
        raise ValueError(f"{name}: only a dataset on the Hub has a config, got {config!r}; leave it out")
    if path.is_file():
        if split is not None:
            raise ValueError(f"{name}: a single file has no splits; leave {split!r} out")
        return datasets.load_dataset("parquet", data_files=name, split="train")
    rows = datasets.load_dataset(name) if any(path.rglob("*.parquet")) else datasets.load_from_disk(name)
    if not isinstance(rows, datasets.DatasetDict):
        if split is not None:
            raise ValueError(f"{name}: has no splits; leave {split!r} out")
        return rows
    chosen = split or ("test" if "test" in rows else next(iter(rows)) if len(rows) == 1 else None)
    if chosen is None or chosen not in rows:
        wanted = f"no split {chosen!r}" if chosen else "several splits"
        raise ValueError(f"{name}: {wanted}; name one of {', '.join(rows)} (split)")
    return rows[chosen]


def _content(row: Row, column: str) -> tuple[Path | np.ndarray | bytes, int | None]:
    """Return the audio in a row's cell, and the sampling rate. If the audio isn't an array of samples, the rate is None. Raises
    ValueError if the cell has no audio.
    """
    value = row.values[column]
    cell = value if isinstance(value, dict) else {"path" if isinstance(value, str) else "bytes": value}
    if isinstance(cell.get("bytes"), bytes):
        return cell["bytes"], None
    if cell.get("path"):
        return row.folder / cell["path"], None
    if cell.get("array") is not None:
        return np.asarray(cell["array"]), cell.get("sampling_rate")
    raise ValueError(
        f"{row.where}: holds no audio (bytes, a path, or an array with its sampling_rate), but {str(value)[:60]!r}"
    )
