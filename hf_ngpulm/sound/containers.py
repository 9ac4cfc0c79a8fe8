"""Read WebM and MP4 files, which browsers and phones record. A separate process (`unpack`) decodes them."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

UNPACK = Path(__file__).with_name("unpack.py")
PATIENCE, LOOK_SECONDS = 15.0, 0.2  # most seconds behind real time; seconds between checks of this
HEAD = 12  # bytes that identify a container


def container_of(head: bytes) -> str | None:
    """Detect a file's container format from its first bytes. Return FFmpeg's name of the format; None for other files."""
    return "matroska" if head.startswith(b"\x1aE\xdf\xa3") else "mov" if head[4:8] == b"ftyp" else None


class Unpacked:
    """Read the audio of a WebM or MP4 file from the beginning to the end, like a `soundfile.SoundFile`, within a `with` block.

    `frames` is None, because the length is known only at the end.

    Args:
        source: a path, or an open binary file.
        form: a result of `container_of`.
        name: the file's name in error messages.
        give_up: function that is called while `read` waits for samples. It returns True if the samples are no longer needed.

    Raises:
        ValueError: PyAV is missing, the file has no audio or is damaged, or decoding falls more than `PATIENCE` seconds behind
            real time. `read` also raises this error.
    """

    channels, frames = 1, None

    def __init__(
        self, source: str | os.PathLike[str] | IO[bytes], form: str, name: str, give_up: Callable[[], bool] = lambda: False
    ) -> None:
        if importlib.util.find_spec("av") is None:
            raise ValueError(f"{name}: WebM and MP4 files need PyAV; pip install av")
        self.name, self.give_up, self._patience = name, give_up, PATIENCE
        with _on_disk(source) as file:
            command = [sys.executable, "-I", str(UNPACK), form]
            self._process = subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            with self._watched():
                head = self._out.readline(100)
            if not head:
                self._check()
                raise ValueError(f"{name}: holds no samples")
            self.samplerate = int(head)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def read(self, frames: int, dtype: str = "float32", always_2d: bool = True) -> np.ndarray:
        """Return the next samples, float32 `[frames, 1]`. At the end of the file there may be fewer."""
        with self._watched():
            data = self._out.read(4 * frames)
        self._patience = min(PATIENCE, self._patience + len(data) / 4 / self.samplerate)
        if len(data) < 4 * frames:
            self._check()
        return np.frombuffer(data, dtype="<f4").reshape(-1, 1)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def _out(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Kill the process if its output takes too long, or if `give_up` returns True."""
        begin, done = time.monotonic(), threading.Event()

        def watch() -> None:
            while not done.wait(LOOK_SECONDS):
                if time.monotonic() - begin > self._patience or self.give_up():
                    self._process.kill()

        watching = threading.Thread(target=watch, name="hf-ngpulm-unpacking", daemon=True)
        watching.start()
        try:
            yield
        finally:
            done.set()
            watching.join()
            self._patience -= time.monotonic() - begin

    def _check(self) -> None:
        """Wait for the process, whose output has ended. Raise `ValueError` if the process failed."""
        assert self._process.stderr is not None
        message, code = self._process.stderr.read(1000).decode(errors="replace").strip(), self._process.wait()
        if code < 0:
            message = "decoding takes too much time or memory"
        if code:
            raise ValueError(
                f"{self.name}: can't be read as audio: {message.splitlines()[-1] if message else 'the decoder failed'}"
            )


def _on_disk(source: str | os.PathLike[str] | IO[bytes]) -> IO[bytes]:
    """Return the source or a copy, as a file that a process can inherit. Closing this file doesn't close the source."""
    if isinstance(source, str | os.PathLike):
        return open(source, "rb")
    try:
        source.flush()
        return open(os.dup(source.fileno()), "rb")
    except (io.UnsupportedOperation, ValueError):
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        source.seek(0)
        shutil.copyfileobj(source, copy)
        copy.flush()
        return copy
