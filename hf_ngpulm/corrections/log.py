"""Define `CorrectionLog`, a private file of corrections. Phrases and a language model are learned from the corrections."""

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

MOST_CHARACTERS = 500  # most characters of a text; longer texts take too long to compare
MODE = 0o600


class Correction(NamedTuple):
    """Hold one correction."""

    heard: str  # the recogniser's text
    meant: str  # the text that the user meant

    @property
    def is_mishearing(self) -> bool:
        """Return whether both texts sound alike. If not, the user has rewritten the text, and nothing is learned."""
        return sound_alike(self.heard, self.meant)


class CorrectionLog:
    """Keep a user's corrections in a private file, and learn from the corrections.

        log = CorrectionLog("corrections.jsonl")
        log.add("call anna koval ska", "call Anna Kowalska")
        asr = pipeline("automatic-speech-recognition", model=..., corrections=log)
        decoder = CTCDecoder(processor, phrases=log.phrases(), lm=log.language_model(lm, processor))

    The file has a line of JSON for each correction, `{"heard": "...", "meant": "..."}`, and may be edited. Only its owner may
    read it (mode 0600). A correction is on the disk when `add` returns. If the process is killed before `add` returns, at most
    the new line is incomplete. Reading an incomplete last line gives a warning, and the next `add` or `undo` removes it.
    Several processes may add to a file (on Windows only one).

    Args:
        path: the file; it needn't exist.

    Raises:
        ValueError: a line of the file isn't a correction; the message names the line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._read: tuple[Any, list[Correction]] = (None, [])
        self._counts: dict[str, tuple[TextCounts, list[tuple[int, ...]]]] = {}
        self._lessons: dict[Correction, Lesson] = {}  # cached, because comparing texts is slow
        self._learned: dict[str, tuple[Any, Any]] = {}  # the last results, each with the key that it belongs to
        _ = self.corrections

    def __repr__(self) -> str:
        return f"CorrectionLog({os.fspath(self.path)!r}, corrections={len(self.corrections)})"

    def __len__(self) -> int:
        return len(self.corrections)

    @property
    def corrections(self) -> list[Correction]:
        """Return all corrections in the file. The file is read again if it has changed."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self._read = (None, [])
            return []
        version = status.st_mtime_ns, status.st_size, status.st_ino
        if self._read[0] != version:
            with open(self.path, "rb") as file:
                if fcntl is not None:  # wait until another process has written its line
                    fcntl.flock(file, fcntl.LOCK_SH)
                self._read = version, self._parsed(file.read())
        return list(self._read[1])

    def add(self, heard: str, meant: str) -> Correction:
        """Add a correction. If both texts are equal, the correction records that the recogniser was right.

        Raises:
            ValueError: a text is too long, or `meant` is empty.
            OSError: the file can't be written.
        """
        correction = Correction(_checked("heard", heard), _checked("meant", meant))
        if not correction.meant:
            raise ValueError("meant is empty; give the correct text")
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
        """Remove the last correction from the file, and return this correction.

        Raises:
            ValueError: the file has no correction.
        """
        if not self.path.exists():
            raise ValueError(f"{self.path}: has no correction to undo")
        with self._locked() as file:
            content = _content(file)
            corrections = self._parsed(content)
            if not corrections:
                raise ValueError(f"{self.path}: has no correction to undo")
            # Cut off the last line that is neither blank nor incomplete.
            kept = content[: _whole(content)].rstrip()
            os.ftruncate(file, kept.rfind(b"\n") + 1)
            os.fsync(file)
        return corrections[-1]

    def phrases(self, times: int = TIMES) -> list[Phrase]:
        """Return the phrases that can be learned. Mishearings of a phrase are the phrase's aliases; see `learned_phrases`.

        Each correction is compared once, which takes milliseconds at most.
        """
        mishearings = self._mishearings()
        key = tuple(mishearings), times
        last, phrases = self._learned.get("phrases", (None, None))
        if last != key:
            phrases = phrases_of([self._lessons[correction] for correction in mishearings], times)
            self._learned["phrases"] = key, phrases
        return list(phrases)

    def language_model(self, base: Any = None, tokenizer: Any = None, weight: float | None = None) -> Any:
        """Return a mixture of a language model and a small model that is trained on the meant texts; see `NGramLM.learn`.

        The counts of the small model are cached, so that another correction costs milliseconds. If nothing was learned, return
        `base`.

        Args:
            base: an `NGramLM` or a `LogLinear`. A word-level model or a continued model can't be mixed. Such a model is
                combined with the small model in a `LogLinear`, with the same weights. If `base` is None, the result is the
                small model alone, with the weight `TextCounts.evidence`, at most 1.
            tokenizer: the recogniser's tokenizer, or a processor that has it.
            weight: share of the small model in the mixture. By default, it is the share with which other texts predict each
                text best.

        Raises:
            ValueError: there is no tokenizer.
            TokenizerMismatchError: the language model was made for another tokenizer.
        """
        tokenizer = tokenizer_of(tokenizer)
        models = parts_of(base)
        for model, _ in models:
            model.check_tokenizer(tokenizer)
        vocabulary = Vocabulary.of(tokenizer, models[0][0].vocab_size if models else None)
        meant = tuple(pair.meant for pair in self._mishearings())
        key = meant, weight, vocabulary.fingerprint
        last, learned = self._learned.get("lm", (None, None))
        if last is not None and last[0] is base and last[1] == key:
            return learned
        counts = self._counted(meant, tokenizer, vocabulary)
        learned = self._mixed(base, models, counts, vocabulary, weight) if meant else base
        self._learned["lm"] = (base, key), learned
        return learned

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
        """Compare the texts of up to `most` new corrections in advance. Return whether no new correction is left."""
        new = [each for each in dict.fromkeys(self.corrections) if each not in self._lessons]
        self._lessons |= {each: Lesson.of(*each) for each in new[:most]}
        return len(new) <= most

    def _mishearings(self) -> list[Correction]:
        """Return the corrections whose texts sound alike. Also store the lessons of all corrections in `_lessons`."""
        corrections = self.corrections
        self._lessons = {each: self._lessons.get(each) or Lesson.of(*each) for each in corrections}
        return [correction for correction in corrections if self._lessons[correction].is_mishearing]

    def _counted(self, meant: Sequence[str], tokenizer: Any, vocabulary: Vocabulary) -> TextCounts:
        """Return the counts of texts. If the first texts are the same as in the last call, these texts aren't counted again."""
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
                f"{self.path}:{number}: the last line is incomplete, as after a crash, and is ignored: "
                f"{content[whole:][:80].decode(errors='replace')!r}",
                stacklevel=3,
            )
        corrections = []
        for number, line in enumerate(content[:whole].split(b"\n"), 1):
            if line.strip():
                try:
                    corrections.append(_parsed_line(line))
                except ValueError as error:
                    raise ValueError(f"{self.path}:{number}: {error}") from None
        return corrections

    @contextmanager
    def _locked(self, flags: int = 0) -> Iterator[int]:
        """Lock the file against other processes, and yield the file's descriptor. Only the file's owner may read the file."""
        if flags:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | flags | getattr(os, "O_BINARY", 0), MODE)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
                os.fchmod(file, MODE)
            self._read = (None, [])  # the file's time is too coarse to show every change
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
    """Return the correction in a line. Raises ValueError if the line has another form."""
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
        raise ValueError(f"{name} may have at most {MOST_CHARACTERS} characters, got {len(text)}; give one sentence at a time")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name} has half of a surrogate pair in it, which isn't text: {text!a}; correct it")
    return text
