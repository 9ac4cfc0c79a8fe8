"""Compute word and character error rates from the edits between references and hypotheses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ..common.extras import needed
from ..text.normalisation import Normaliser, normaliser

Normalisation = str | Normaliser | Iterable[str | Normaliser] | None
Counts = TypeVar("Counts", bound="Summed")


@dataclass(frozen=True)
class Summed:
    """Hold counts of one utterance, or sums over several utterances. A sum has the counts of each utterance in `utterances`."""

    @classmethod
    def together(cls: type[Counts], utterances: Iterable[Counts]) -> Counts:
        """Return the sums of counts over utterances."""
        each = tuple(utterances)
        *names, _ = (entry.name for entry in fields(cls))
        return cls(*(sum(getattr(counts, name) for counts in each) for name in names), each)  # type: ignore[call-arg]


@dataclass(frozen=True)
class ErrorCounts(Summed):
    """Hold the errors of one utterance, or sums over several utterances. The units are words or characters.

    Args:
        substitutions: number of the reference's units that were replaced.
        deletions: number of the reference's units that are missing.
        insertions: number of the hypothesis's units that were added.
        hits: number of the reference's units that were recognised.
        utterances: the counts of each utterance; empty for a single utterance.
    """

    substitutions: int
    deletions: int
    insertions: int
    hits: int
    utterances: tuple[ErrorCounts, ...] = field(default=(), repr=False)

    @property
    def errors(self) -> int:
        """Return the sum of substitutions, deletions and insertions."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def length(self) -> int:
        """Return the number of units (words or characters) in the reference."""
        return self.substitutions + self.deletions + self.hits

    @property
    def rate(self) -> float:
        """Return the errors per unit (word or character) of the reference. 0.1 means 10%. With insertions rates may exceed 1.

        For an empty reference, return the number of errors, as jiwer does. If the hypothesis is also empty, this number is 0.
        """
        return self.errors / max(self.length, 1)


def word_errors(references: Iterable[str], hypotheses: Iterable[str], normalise: Normalisation = None) -> ErrorCounts:
    """Return the word errors. The result's `rate` is the word error rate (WER).

    The alignment has the fewest edits from the reference to the hypothesis (Levenshtein 1966). If several alignments have
    equally few edits, jiwer chooses an alignment. This choice decides which edits are substitutions, deletions and insertions.

    Args:
        references, hypotheses: the transcripts and the recognised texts, one text per utterance.
        normalise: normalisation of both texts, see `hf_ngpulm.text.normaliser`. It is a name such as "lower",
            "lower,no-punctuation" or "whisper-en", a function, or a list of names and functions. Spaces separate words.

    Raises:
        ValueError: the lists differ in length, an item isn't text, or `normalise` has an unknown name.
    """
    with needed("eval", "error rates"):
        import jiwer

    return _counted(pairs(references, hypotheses, normalise), str.split, jiwer.process_words)


def character_errors(references: Iterable[str], hypotheses: Iterable[str], normalise: Normalisation = None) -> ErrorCounts:
    """Return the character errors. The result's `rate` is the character error rate (CER).

    Characters are Unicode code points. Each run of spaces between words counts as one character. See `word_errors`.
    """
    with needed("eval", "error rates"):
        import jiwer

    return _counted(pairs(references, hypotheses, normalise), list, jiwer.process_characters)


def pairs(references: Iterable[str], hypotheses: Iterable[str], normalise: Normalisation) -> list[tuple[str, str]]:
    """Check references and hypotheses. Return the normalised pair of each utterance. Raises ValueError if the lists differ in
    length, or an item isn't text.
    """
    said, heard = _texts("references", references), _texts("hypotheses", hypotheses)
    if len(said) != len(heard):
        raise ValueError(f"one hypothesis per reference is needed, got {len(said)} references and {len(heard)} hypotheses")
    clean = normaliser(normalise)
    return [(clean(reference), clean(hypothesis)) for reference, hypothesis in zip(said, heard)]


def share(part: float, whole: float) -> float:
    """Return `part / whole`; NaN if `whole` is 0."""
    return part / whole if whole else math.nan


def _texts(name: str, texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise ValueError(f"{name} should be a list of texts, got the text {texts!r}; put it into a list")
    listed = list(texts)
    for i, text in enumerate(listed):
        if not isinstance(text, str):
            raise ValueError(f"{name} should be texts, got {text!r} at {i}; give '' for an utterance without words")
    return listed


def _counted(texts: list[tuple[str, str]], units: Callable[[str], list[str]], process: Callable[..., Any]) -> ErrorCounts:
    spoken = [pair for pair in texts if pair[0]]  # jiwer before version 4 refuses empty references
    alignments = iter(process(*map(list, zip(*spoken))).alignments if spoken else ())
    return ErrorCounts.together(
        _counts_of(next(alignments)) if reference else ErrorCounts(0, 0, len(units(hypothesis)), 0)
        for reference, hypothesis in texts
    )


def _counts_of(alignment: Any) -> ErrorCounts:
    counts = {"substitute": 0, "delete": 0, "insert": 0, "equal": 0}
    for chunk in alignment:
        of_reference, of_hypothesis = chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx
        counts[chunk.type] += max(of_reference, of_hypothesis)
    return ErrorCounts(counts["substitute"], counts["delete"], counts["insert"], counts["equal"])
