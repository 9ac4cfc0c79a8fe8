"""Find the files that a command reads, name the files that it writes, and refuse to overwrite existing files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from . import library

KINDS = ("txt", "srt", "vtt", "json")  # kinds of transcript files


def audio_of(arguments: Iterable[str]) -> dict[str, str]:
    """Return the name of each audio file, by its path. A name is relative to the given folder or pattern.

    Args:
        arguments: files, folders (including subfolders), and patterns such as `calls/**/*.wav`.

    Raises:
        ValueError: a folder has no audio.
        FileNotFoundError: a pattern matches no file. (A missing file causes an error only when it is read.)
    """
    names: dict[str, str] = {}
    for text in arguments:
        if os.path.isdir(text):
            files, root = library.audio_files(Path(text)), Path(text)
            if not files:
                raise ValueError(
                    f"{text}: a folder without audio files ({', '.join(library.EXTENSIONS)}); name the files in it"
                )
        elif glob.has_magic(text) and not os.path.exists(text):
            root = Path(*takewhile(lambda part: not glob.has_magic(part), Path(text).parts))
            matching = sorted(Path(path) for path in glob.glob(text, recursive=True) if os.path.isfile(path))
            files = [path for path in matching if path.suffix.lower() in library.EXTENSIONS or text.endswith(path.suffix)]
            if not files:
                raise FileNotFoundError(f"{text}: no audio file matches this pattern")
        else:
            names[text] = os.path.basename(text)
            continue
        names |= {str(path): path.relative_to(root).as_posix() for path in files}
    return names


def transcript_files(output: str, kind: str | None, audio: dict[str, str]) -> tuple[str, list[Path]]:
    """Return the kind of the transcript files, and the path of each recording's transcript file.

    Args:
        output: a file or a folder. The ending of a file may name the kind.
        kind: one of `KINDS`; required if the file's ending doesn't name the kind.
        audio: result of `audio_of`.

    Raises:
        ValueError: the ending is unknown. Or there are several recordings, but `output` is one file. Or two recordings would
            have the same file.
    """
    ending = Path(output).suffix[1:].lower()
    is_folder = os.path.isdir(output) or output.endswith(("/", os.sep)) or not ending
    if not is_folder and len(audio) == 1:
        if kind is None and ending not in KINDS:
            raise ValueError(f"--output {output}: should end in {', '.join(KINDS)}; otherwise add --format")
        return kind or ending, [Path(output)]
    if not is_folder and ending in KINDS:
        raise ValueError(
            f"--output {output} is one file, but there are {len(audio)} recordings; name a folder: --output FOLDER --format "
            f"{ending}"
        )
    kind = kind or "txt"
    files: dict[Path, str] = {}
    for path, name in audio.items():
        file = Path(output, name).with_suffix(f".{kind}")
        if file in files:
            raise ValueError(f"{file}: would be written for both {files[file]} and {path}; transcribe them separately")
        files[file] = path
    return kind, list(files)


def refuse_existing(paths: Sequence[str | os.PathLike[str]], overwrite: bool) -> None:
    """Raise FileExistsError if `overwrite` is false, and a path is an existing file or an existing folder with a model."""
    if overwrite:
        return
    for path in map(Path, paths):
        inside = [path / name for name in (library.CONFIG_FILE, library.WEIGHTS_FILE)] if path.is_dir() else [path]
        there = next((file for file in inside if file.exists()), None)
        if there is not None:
            raise FileExistsError(f"{there} exists already; write somewhere else, or add --overwrite")
