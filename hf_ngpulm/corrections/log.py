"""Define `CorrectionLog`: a private file of corrections, and what is learned from them."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..common.checks import check
from ..common.files import fcntl
from ..language_model.learning import LEAST, SHARE, TextCounts, encoded_texts, model_of, weight_for, with_counts
from ..language_model.log_linear import LogLinear, parts_of
from ..language_model.model import NGramLM
from ..phrases.phrase import Phrase
from ..text.vocabulary import Vocabulary, tokenizer_of
from .lessons import TIMES, Lesson, phrases_of
from .replacements import sound_alike

MOST_CHARACTERS = 500  # of a text; longer ones take long to compare
MODE = 0o600


class Correction(NamedTuple):
    """Hold one correction: what the recogniser wrote, and what was meant."""

    heard: str
    meant: str

    @property
    def is_mishearing(self) -> bool:
        """Return whether both texts sound alike, so that something can be learned. Others are rewrites."""
        return sound_alike(self.heard, self.meant)


class CorrectionLog:
    """Keep a user's corrections in a private file, and learn from them.

        log = CorrectionLog("corrections.jsonl")
        log.add("call anna koval ska", "call Anna Kowalska")
        asr = pipeline("automatic-speech-recognition", model=..., corrections=log)
        decoder = CTCDecoder(processor, phrases=log.phrases(), lm=log.language_model(lm, processor))

    The file has a line of JSON for each correction, `{"heard": "...", "meant": "..."}`, and may be edited. Only its owner may
    read it (mode 0600). A correction is on the disk when `add` returns. If the process is killed meanwhile, at most the new
    line is incomplete. An incomplete last line is named in a warning, and the next `add` or `undo` removes it. Several
    processes may add to a file (on Windows only one).

    Args:
        path: the file; it needn't exist.

    Raises:
        ValueError: a line of the file isn't a correction; the message names it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._read: tuple[Any, list[Correction]] = (None, [])
        self._counts: dict[str, tuple[TextCounts, list[tuple[int, ...]]]] = {}
        self._lessons: dict[Correction, Lesson] = {}  # as it takes long to compare texts
        self._learned: dict[str, tuple[Any, Any]] = {}  # the last results, with what they were made for
        _ = self.corrections

    def __repr__(self) -> str:
        return f"CorrectionLog({os.fspath(self.path)!r}, corrections={len(self.corrections)})"

    def __len__(self) -> int:
        return len(self.corrections)

    @property
    def corrections(self) -> list[Correction]:
        """Return all corrections, as the file has them now."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self._read = (None, [])
            return []
        version = status.st_mtime_ns, status.st_size, status.st_ino
        if self._read[0] != version:
            with open(self.path, "rb") as file:
                if fcntl is not None:  # wait for a line that is being written
                    fcntl.flock(file, fcntl.LOCK_SH)
                self._read = version, self._parsed(file.read())
        return list(self._read[1])

    def add(self, heard: str, meant: str) -> Correction:
        """Add a correction; two equal texts say that the recogniser was right.

        Raises:
            ValueError: a text is too long, or nothing was meant. OSError: the file can't be written.
        """
        correction = Correction(_checked("heard", heard), _checked("meant", meant))
        if not correction.meant:
            raise ValueError("meant is empty; give the text as it should be")
        line = json.dumps(correction._asdict(), ensure_ascii=False).encode() + b"\n"
        with self._locked(os.O_CREAT) as file:
            content = _content(file)
            whole = _whole(content)
            if whole < len(content):
                os.ftruncate(file, whole)
            if whole and content[whole - 1 : whole] != b"\n":
                line = b"\n" + line
            os.lseek(file, 0, os.SEEK_END)
            while line:
                line = line[os.write(file, line) :]
            os.fsync(file)
        return correction

    def undo(self) -> Correction:
        """Take the last correction out of the file, which is then as it was before, and return it.

        Raises:
            ValueError: there is none.
        """
        if not self.path.exists():
            raise ValueError(f"{self.path}: has no correction to undo")
        with self._locked() as file:
            content = _content(file)
            corrections = self._parsed(content)
            if not corrections:
                raise ValueError(f"{self.path}: has no correction to undo")
            # The last line that isn't blank, and isn't incomplete.
            kept = content[: _whole(content)].rstrip()
            os.ftruncate(file, kept.rfind(b"\n") + 1)
            os.fsync(file)
        return corrections[-1]

    def phrases(self, times: int = TIMES) -> list[Phrase]:
        """Return the phrases that the corrections teach, with their mishearings as aliases; see `learned_phrases`.

        Each correction is compared once, which takes milliseconds at most.
        """
        mishearings = self._mishearings()
        key = tuple(mishearings), times
        last, found = self._learned.get("phrases", (None, None))
        if last != key:
            found = phrases_of([self._lessons[correction] for correction in mishearings], times)
            self._learned["phrases"] = key, found
        return list(found)

    def language_model(self, base: Any = None, tokenizer: Any = None, weight: float | None = None) -> Any:
        """Return a language model that knows what was meant: a mixture of the user's own with a small one; see `NGramLM.learn`.

        The counts of the small one are kept, so that a further correction costs milliseconds. If nothing was learned, this is
        the user's own.

        Args:
            base: an `NGramLM`, or a `LogLinear`. A model of words and a continued model can't be mixed: they are
                combined with the small one in a `LogLinear`, with the same weights. None for the small model alone. Its
                weight is then the log-probability (nats per token) that the texts gain from each other, at most 1.
            tokenizer: the recogniser's tokenizer, or a processor that has it.
            weight: share of the small model in the mixture; by default the one that predicts each text best from the others.

        Raises:
            ValueError: there is no tokenizer.
            TokenizerMismatchError: the tokenizer isn't the language model's.
        """
        tokenizer = tokenizer_of(tokenizer)
        models = parts_of(base)
        for model, _ in models:
            model.check_tokenizer(tokenizer)
        vocabulary = Vocabulary.of(tokenizer, models[0][0].vocab_size if models else None)
        meant = tuple(pair.meant for pair in self._mishearings())
        key = meant, weight, vocabulary.fingerprint
        last, found = self._learned.get("lm", (None, None))
        if last is not None and last[0] is base and last[1] == key:
            return found
        counts = self._counted(meant, tokenizer, vocabulary)
        found = self._mixed(base, models, counts, vocabulary, weight) if meant else base
        self._learned["lm"] = (base, key), found
        return found

    def _mixed(self, base: Any, models: Any, counts: TextCounts, vocabulary: Vocabulary, weight: float | None) -> Any:
        if base is None:
            share = min(max(counts.evidence(), 0.0), 1.0) if weight is None else check("weight", weight, SHARE)
            return LogLinear([NGramLM(model_of(counts, vocabulary))], [share]) if share >= LEAST else None
        share = weight_for(models[0][0], counts) if weight is None else check("weight", weight, SHARE)
        if share < LEAST:
            return base
        if isinstance(base, NGramLM) and base.config.words is None and base.config.continued is None:
            return with_counts(base, counts, share)
        small = NGramLM(model_of(counts, vocabulary))
        return LogLinear([*(lm for lm, _ in models), small], [*((1 - share) * own for _, own in models), share])

    def compare(self, most: int) -> bool:
        """Compare up to `most` of the corrections that are new. Return whether none is left; a method that learns would have to
        compare the rest first.
        """
        new = [each for each in dict.fromkeys(self.corrections) if each not in self._lessons]
        self._lessons |= {each: Lesson.of(*each) for each in new[:most]}
        return len(new) <= most

    def _mishearings(self) -> list[Correction]:
        """Return the corrections that something can be learned from; `_lessons` has all corrections."""
        corrections = self.corrections
        self._lessons = {each: self._lessons.get(each) or Lesson.of(*each) for each in corrections}
        return [correction for correction in corrections if self._lessons[correction].is_mishearing]

    def _counted(self, meant: Sequence[str], tokenizer: Any, vocabulary: Vocabulary) -> TextCounts:
        """Return the counts of texts; only the texts after the last common one are counted anew."""
        counts, before = self._counts.get(str(vocabulary.fingerprint), (TextCounts(vocabulary.size), []))
        now = [tuple(t for t in ids if t < vocabulary.size) for ids in encoded_texts(meant, tokenizer)]
        same = next((n for n, (a, b) in enumerate(zip(before, now)) if a != b), min(len(before), len(now)))
        for ids in before[same:]:
            counts.remove(ids)
        for ids in now[same:]:
            counts.add(ids)
        self._counts[str(vocabulary.fingerprint)] = counts, now
        return counts

    def _parsed(self, content: bytes) -> list[Correction]:
        whole = _whole(content)
        if whole < len(content):
            number = content[:whole].count(b"\n") + 1
            warnings.warn(
                f"{self.path}:{number}: the last line is incomplete, as after a crash, and is left out: "
                f"{content[whole:][:80].decode(errors='replace')!r}",
                stacklevel=3,
            )
        found = []
        for number, line in enumerate(content[:whole].split(b"\n"), 1):
            if line.strip():
                try:
                    found.append(_parsed_line(line))
                except ValueError as error:
                    raise ValueError(f"{self.path}:{number}: {error}") from None
        return found

    @contextmanager
    def _locked(self, flags: int = 0) -> Iterator[int]:
        """Yield the open file. Within the block no other process changes it. Only its owner may read it afterwards."""
        if flags:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | flags | getattr(os, "O_BINARY", 0), MODE)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
                os.fchmod(file, MODE)
            self._read = (None, [])  # the time of a file is too coarse to tell of every change
            yield file
        finally:
            os.close(file)


def _content(file: int) -> bytes:
    with os.fdopen(os.dup(file), "rb") as reader:
        reader.seek(0)
        return reader.read()


def _whole(content: bytes) -> int:
    """Return the length of a file's content without an incomplete last line."""
    last = content.rfind(b"\n") + 1
    if content[last:].strip():
        try:
            _parsed_line(content[last:])
        except ValueError:
            return last
    return len(content)


def _parsed_line(line: bytes) -> Correction:
    """Return a line's correction. Raises ValueError if it isn't one."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("heard"), str) or not isinstance(entry.get("meant"), str):
        shown = line[:80].decode(errors="replace")
        raise ValueError(f'a line should be {{"heard": "...", "meant": "..."}} in JSON, is {shown!r}; correct or delete it')
    return Correction(_checked("heard", entry["heard"]), _checked("meant", entry["meant"]))


def _checked(name: str, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name} should be a text, got {text!r}")
    text = " ".join(text.split())
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{name} has {len(text)} characters, {MOST_CHARACTERS} are the most; give one sentence at a time")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name} has half of a surrogate pair in it, which isn't text: {text!a}; write it anew")
    return text
