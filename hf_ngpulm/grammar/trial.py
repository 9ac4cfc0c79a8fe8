"""Compile untrusted grammars on trial, in a process of their own with limits on time and memory.

A few lines can stand for a grammar that takes hours or gigabytes to compile, and no check of its text tells. The process holds
a tokenizer; each grammar is compiled in a fork of it, which the system ends at the limits. Only the grammar's size comes back:
what has passed can be compiled anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import GrammarError

PATIENCE = 60.0  # seconds until an answer, whoever else keeps the processor busy
_TOLD = 300  # characters of a message
_START = f"import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {__name__} import main; main(*sys.argv[1:])"


class Cost(NamedTuple):
    """Hold what compiling a grammar takes: its parts (arcs of words and tokens, spellings), and seconds of CPU time."""

    parts: int
    seconds: float


class Trial:
    """Compile grammars on trial for one tokenizer. The process starts at the first call, in some seconds.

    Args:
        tokenizer: the recogniser's.
        seconds: the most CPU time for a grammar.
        parts: the most parts that a grammar may have (see `Cost`).
        memory: the most bytes that compiling one may take.
    """

    def __init__(self, tokenizer: Any, seconds: float, parts: int, memory: int = 512 << 20) -> None:
        self.tokenizer, self.seconds, self.parts, self.memory = tokenizer, seconds, parts, memory
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, text: str) -> Cost:
        """Return what a grammar costs (see `Grammar.from_text`). One thread at a time may call this.

        Raises:
            GrammarError: the grammar is invalid, too large, takes too long to compile, or has words that the recogniser can't
                write.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        watch = threading.Timer(PATIENCE, self._kill)
        watch.start()
        try:
            self._process.stdin.write(json.dumps({"text": text}).encode() + b"\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
        except OSError:
            said = b""
        finally:
            watch.cancel()
        if not said.endswith(b"\n"):
            self.close()
        told: dict[str, Any] = json.loads(said) if said.endswith(b"\n") else {"error": self._too_much}
        if "error" in told:
            raise GrammarError(told["error"])
        if told["parts"] > self.parts:
            raise GrammarError(
                f"the grammar has {told['parts']:,} parts (arcs and spellings); at most {self.parts:,} are taken"
            )
        return Cost(**told)

    def close(self) -> None:
        """End the process and its fork, also during a call."""
        if self._process is not None:
            self._kill()
            self._process.wait()

    def _kill(self) -> None:
        # A fork that went on would keep the pipe of the answers open, and the call waiting.
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def _too_much(self) -> str:
        return (
            f"compiling the grammar takes more than {self.seconds:g} s or {self.memory >> 20} MiB; write fewer alternatives, "
            "optional parts and wildcards in a row, or lists"
        )

    def _start(self) -> None:
        if not hasattr(os, "fork"):
            raise GrammarError("this system can't limit what compiling a grammar takes; send a list of sentences")
        with tempfile.TemporaryDirectory(prefix="hf-ngpulm-") as folder:
            self.tokenizer.save_pretrained(folder)
            settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            # Isolated, so that it imports nothing from the working folder or by variables, but what this process would.
            command = [sys.executable, "-I", "-c", _START, json.dumps([*filter(None, sys.path)])]
            command += [folder, str(self.seconds), str(self.memory), self._too_much]
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, env={**os.environ, **settings}, start_new_session=True, **pipes)
            assert self._process.stdout is not None
            if not self._process.stdout.readline():
                raise RuntimeError(f"the process for grammars doesn't start: {' '.join(command[:3])}")


def main(folder: str, seconds: str, memory: str, too_much: str) -> None:
    """Read grammars from standard input, and write an answer to each to standard output, until the input ends.

    A grammar is a line of JSON, `{"text": ...}`. Its answer is one, too: the fields of a `Cost`, or `{"error": ...}`. The first
    line that is written says only that the process is ready.

    Args:
        folder: has the tokenizer.
        seconds: the most CPU time for a grammar.
        memory: the most bytes that compiling one may take.
        too_much: the error for a grammar beyond these limits.
    """
    from transformers import AutoTokenizer

    from .grammar import Grammar

    # What libraries print must not get into the answers.
    answers, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with contextlib.suppress(GrammarError):
        Grammar.from_phrases(["a"]).compiled(tokenizer)  # what this prepares is there in all forks
    os.write(answers, b"ready\n")
    for line in sys.stdin.buffer:
        fork = os.fork()
        if not fork:
            try:
                _limit(float(seconds), int(memory))
                told = _tried(json.loads(line)["text"], tokenizer, too_much)
                for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                    signal.setitimer(timer, 0)
                os.write(answers, json.dumps(told).encode() + b"\n")
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(fork, 0)[1]:
            os.write(answers, json.dumps({"error": too_much}).encode() + b"\n")


def _limit(seconds: float, memory: int) -> None:
    """Limit this process. The system ends it after `seconds` of CPU time, or `PATIENCE` seconds in all. It gets at most
    `memory` more bytes than it has, and can't write files.
    """
    import resource

    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)  # also if nobody is left to end it
    limits = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    with contextlib.suppress(OSError):  # macOS has no such file
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits[resource.RLIMIT_AS] = pages * os.sysconf("SC_PAGE_SIZE") + memory
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))


def _tried(text: str, tokenizer: Any, too_much: str) -> dict[str, Any]:
    from .grammar import Grammar

    begin = os.times()
    try:
        grammar = Grammar.from_text(text)
        compiled = grammar.compiled(tokenizer, strict=True)
    except MemoryError:
        return {"error": too_much}
    except (GrammarError, ImportError) as error:
        return {"error": str(error)[:_TOLD]}
    except Exception as error:
        return {"error": f"the grammar can't be read: {type(error).__name__}: {error}"[:_TOLD]}
    spellings = sum(map(len, compiled.symbols.spellings.values()))
    parts = compiled.network.count + compiled.tensors.num_arcs + spellings
    return {"parts": parts, "seconds": round(os.times().user - begin.user, 3)}
