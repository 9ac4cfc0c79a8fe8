"""Store the results of an unfinished evaluation in files, so that a killed run can resume.

Each process has a file in the folder `results.jsonl.parts/`. The first line of a file has the settings. Each further line has
the result of a recording. A process appends all lines of a batch in one write. Together, the files of all processes show which
recordings are done. So a resumed run may have another number of processes. The incomplete last line of a killed process is
dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Records = dict[int, dict[str, Any]]  # results of recordings, by the recordings' numbers


class SettingsMismatchError(ValueError):
    """Report that existing results were made with other settings."""


class Parts:
    """Read and write the files of unfinished results beside an evaluation's `output`. All files have the same `settings`."""

    def __init__(self, output: str | os.PathLike[str], settings: dict[str, Any], rank: int = 0) -> None:
        self.output, self.settings = Path(output), settings
        self.folder = self.output.with_name(self.output.name + ".parts")
        self.path = self.folder / f"{rank:05}.jsonl"
        self._file: IO[bytes] | None = None

    def records(self) -> Records:
        """Return the records in all files. Raises SettingsMismatchError if a file has other settings. Raises ValueError if a
        file doesn't belong to an evaluation, or is damaged.
        """
        records: Records = {}
        for path in sorted(self.folder.glob("[0-9]*.jsonl")) if self.folder.is_dir() else ():
            content = path.read_bytes()
            lines = content[: content.rfind(b"\n") + 1].splitlines()
            try:
                if lines:  # a process may have just created the file
                    self.check(json.loads(lines[0])["settings"], path)
                for record in map(json.loads, lines[1:]):
                    records.setdefault(record["number"], record)
            except SettingsMismatchError:
                raise
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}: not a part of an evaluation, or damaged ({error}); remove the folder to begin anew"
                ) from None
        return records

    def check(self, settings: dict[str, Any], path: Path) -> None:
        """Raise SettingsMismatchError if results have other settings than this evaluation. `settings`: the settings of the
        results. `path`: the results' file.
        """
        ours, theirs = json.loads(json.dumps(self.settings)), settings
        if ours == theirs:
            return
        names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        changes = "; ".join(f"{name} is {_short(theirs.get(name))} there and {_short(ours.get(name))} here" for name in names)
        remedy = f"the folder {self.folder}" if path.parent == self.folder else f"the file {path}"
        raise SettingsMismatchError(
            f"{path}: holds results of other settings ({changes}); name another output, or remove {remedy} to begin anew"
        )

    def open(self) -> None:
        """Open and lock this process's file, and drop an incomplete last line. Raises ValueError if another process has locked
        the file.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self._file = open(self.path, "a+b")  # noqa: SIM115
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ValueError(f"{self.path}: another process is writing to it; let it end, or name another output") from None
        file.seek(0)
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
        if b"\n" not in content:
            self.write([{"settings": self.settings}])

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Append the records of a batch in one write."""
        assert self._file is not None
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        self._file.write(lines.encode())
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the folder after all results are in the output."""
        shutil.rmtree(self.folder, ignore_errors=True)


def fingerprint_of(settings: Any) -> str:
    """Return a fingerprint of JSON settings, 32 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
