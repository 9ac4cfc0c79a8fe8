"""Compile untrusted grammars on trial, in a separate process with limits on time and memory.

A grammar of a few lines can take hours or gigabytes to compile, and its text doesn't show that. The trial process holds a
tokenizer. It compiles each grammar in a fork, which the system kills at the limits. The process returns only the grammar's
cost. A grammar that has passed the trial can be compiled in any process.
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

PATIENCE = 60.0  # maximum wall-clock seconds for an answer
_TOLD = 300  # maximum number of characters of a message
_START = f"import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {__name__} import main; main(*sys.argv[1:])"


class Cost(NamedTuple):
    """The cost of compiling a grammar."""

    parts: int  # arcs between words, arcs between tokens, and spellings
    seconds: float  # of CPU time


class Trial:
    """Compile grammars on trial for one tokenizer. The first call starts the trial process, which takes some seconds.

    Args:
        tokenizer: the recogniser's tokenizer.
        seconds: maximum CPU time per grammar.
        parts: maximum number of parts of a grammar (see `Cost`).
        memory: maximum memory for compiling a grammar, in bytes.
    """

    def __init__(self, tokenizer: Any, seconds: float, parts: int, memory: int = 512 << 20) -> None:
        self.tokenizer, self.seconds, self.parts, self.memory = tokenizer, seconds, parts, memory
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, text: str) -> Cost:
        """Return the cost of a grammar; `text` is as for `Grammar.from_text`. Only one thread at a time may call this method.

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
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        finally:
            watch.cancel()
        if not line.endswith(b"\n"):
            self.close()
        answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"error": self._too_much}
        if "error" in answer:
            raise GrammarError(answer["error"])
        if answer["parts"] > self.parts:
            raise GrammarError(
                f"the grammar has {answer['parts']:,} parts (arcs and spellings); at most {self.parts:,} are allowed"
            )
        return Cost(**answer)

    def close(self) -> None:
        """End the process and its fork. This may happen during a call."""
        if self._process is not None:
            self._kill()
            self._process.wait()

    def _kill(self) -> None:
        # A fork that is still running would keep the pipe of answers open, so the call would never return.
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
    """Read grammars from standard input, and write an answer for each grammar to standard output, until the input ends.

    Each grammar is a line of JSON, `{"text": ...}`. Each answer is a line of JSON with the fields of a `Cost`, or
    `{"error": ...}`. The first output line only says that the process is ready.

    Args:
        folder: folder with the tokenizer.
        seconds: maximum CPU time per grammar.
        memory: maximum memory for compiling a grammar, in bytes.
        too_much: error message for a grammar beyond these limits.
    """
    from transformers import AutoTokenizer

    from .grammar import Grammar

    # Output that libraries print must not get into the answers.
    answers, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with contextlib.suppress(GrammarError):
        Grammar.from_phrases(["a"]).compiled(tokenizer)  # loads modules and tables that all forks share
    os.write(answers, b"ready\n")
    for line in sys.stdin.buffer:
        fork = os.fork()
        if not fork:
            try:
                _limit(float(seconds), int(memory))
                answer = _tried(json.loads(line)["text"], tokenizer, too_much)
                for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                    signal.setitimer(timer, 0)
                os.write(answers, json.dumps(answer).encode() + b"\n")
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(fork, 0)[1]:
            os.write(answers, json.dumps({"error": too_much}).encode() + b"\n")


def _limit(seconds: float, memory: int) -> None:
    """Limit this process. The system kills it after `seconds` of CPU time, or after `PATIENCE` seconds. It can allocate at most
    `memory` bytes beyond its present size, and can't write files.
    """
    import resource

    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)  # even if the parent process has died
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
    except (MemoryError, SystemError):  # out of memory, CPython at times loses the first and raises the second
        return {"error": too_much}
    except (GrammarError, ImportError) as error:
        return {"error": str(error)[:_TOLD]}
    except Exception as error:
        return {"error": f"the grammar can't be read: {type(error).__name__}: {error}"[:_TOLD]}
    spellings = sum(map(len, compiled.symbols.spellings.values()))
    parts = compiled.network.count + compiled.tensors.num_arcs + spellings
    return {"parts": parts, "seconds": round(os.times().user - begin.user, 3)}
