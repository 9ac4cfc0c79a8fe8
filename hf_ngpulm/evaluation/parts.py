"""What several processes have found so far, in files that a kill can't spoil.

`results.jsonl.parts/` holds a file for each process: a first line with the settings, then a line for each recording. A process
appends the lines of a batch at once and hands them to the system; only it writes to its file, which it has locked. A line that
a kill cut short is dropped. What is done is known from all files together, whichever process, of however many, wrote them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any


class SettingsMismatchError(ValueError):
    """Results that are there are of other settings than those asked for."""


class Parts:
    """The files of one evaluation.

    Args:
        output: the file that all results will go to; the parts lie beside it.
        settings: what results depend on; those of other settings are never mixed in.
        rank: of this process.
    """

    def __init__(self, output: str | os.PathLike[str], settings: dict[str, Any], rank: int = 0) -> None:
        self.output, self.settings, self.rank = Path(output), settings, rank
        self.folder = self.output.with_name(self.output.name + ".parts")
        self.path = self.folder / f"{rank:05}.jsonl"
        self._file: IO[bytes] | None = None
        self._read: dict[Path, int] = {}  # bytes of each file that were read

    def found(self) -> Iterator[dict[str, Any]]:
        """Yield what has come into any of the files since the last call.

        Raises:
            SettingsMismatchError: a file is of other settings.
            ValueError: a file is no such part.
        """
        for path in sorted(self.folder.glob("[0-9]*.jsonl")) if self.folder.is_dir() else ():
            with open(path, "rb") as file:
                begin = self._read.get(path, 0)
                file.seek(begin)
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read[path] = begin + len(whole)
            for number, line in enumerate(whole.splitlines()):
                try:
                    record = json.loads(line)
                    if begin == 0 and number == 0:
                        self.check(record["settings"], path)
                        continue
                except (ValueError, KeyError, TypeError) as error:
                    if isinstance(error, SettingsMismatchError):
                        raise
                    raise ValueError(
                        f"{path}: not a part of an evaluation, or damaged ({error}); remove the folder to begin anew"
                    ) from None
                yield record

    def check(self, settings: dict[str, Any], path: Path) -> None:
        """Refuse results of other settings."""
        if fingerprint_of(settings) == fingerprint_of(self.settings):
            return
        ours, theirs = json.loads(json.dumps(self.settings)), settings
        names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        told = "; ".join(f"{name} is {_short(theirs.get(name))} there and {_short(ours.get(name))} here" for name in names)
        place, remedy = (self.folder, "the folder") if path.parent == self.folder else (path, "the file")
        raise SettingsMismatchError(
            f"{path}: holds results of other settings ({told}); name another output, or remove {remedy} {place} to begin anew"
        )

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Append the records of a batch, whole."""
        if self._file is None:
            self._file = self._opened()
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        self._file.write(lines.encode())
        self._file.flush()

    def _opened(self) -> IO[bytes]:
        """Open this process's file, locked, without a line that was cut short."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "a+b")  # noqa: SIM115
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # Windows has no such locks
        except OSError:
            file.close()
            raise ValueError(f"{self.path}: another process is writing to it; let it end, or name another output") from None
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
        if not whole:
            file.write((json.dumps({"settings": self.settings}, ensure_ascii=False) + "\n").encode())
            file.flush()
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Take the files away, once all is in the output."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def fingerprint_of(settings: dict[str, Any]) -> str:
    """Return a short name of settings; others have another one."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()


def digest_of(tensors: Iterable[tuple[str, Any]]) -> str:
    """Return a short name of a model's numbers: of names, shapes, and samples from all over each tensor.

    Reading all numbers of a large model would take seconds; other training changes every one of them.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        step = max(flat.numel() // 512, 1)
        digest.update(f"{name} {list(tensor.shape)}".encode())
        digest.update(flat[::step][:1024].double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
