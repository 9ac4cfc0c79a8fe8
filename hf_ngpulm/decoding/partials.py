"""Report what is known of an utterance while it is being decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..search.history import Spoken
from .hypotheses import Hypothesis, Word, Writing


class Transcript:
    """Keep what all hypotheses of an utterance have in common. It grows at its end only."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing
        self.ids: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.confidences: list[float] = []
        # Two words begin at tokens `before` and `at`; the text of all tokens before `at`, and that of those between the two.
        self._before, self._at, self._text, self._between = 0, 0, "", ""

    def extend(self, ids: list[int], starts: list[int], ends: list[int], confidences: list[float]) -> None:
        self.ids += ids
        self.starts += starts
        self.ends += ends
        self.confidences += confidences

    def hypothesis(self, count: int, tail: Spoken, frames: int, scores: Sequence[float]) -> Hypothesis:
        """Return the first `count` tokens, and those of a tail, of an utterance of so many frames; scores as for `Writing`."""
        kept: tuple[list[Any], ...] = (self.ids, self.starts, self.ends, self.confidences)
        ids, starts, ends, confidences = ([*part[:count], *more.tolist()] for part, more in zip(kept, tail))
        return self.writing.hypothesis(scores, ids, starts, [min(end, frames) for end in ends], confidences)

    def followed_by(self, tail: list[Any], frames: int, scores: Sequence[float]) -> Hypothesis:
        """Return all its tokens and those of a tail (lists of ids, starts, ends and confidences), in an utterance of so many
        frames; scores as for `Writing`."""
        if self.ids:
            kept: tuple[list[Any], ...] = (self.ids, self.starts, [min(end, frames) for end in self.ends], self.confidences)
            tail = [[*part, *more] for part, more in zip(kept, tail)]
        return self.writing.hypothesis(scores, *tail)

    def text(self, count: int, more: Sequence[int]) -> str:
        """Return the text of the first `count` tokens and some more.

        Only the end is read anew: from two words on that all hypotheses have, since how a word is written may depend on the one
        before it (spaces).
        """
        splitter = self.writing.splitter
        if splitter is None or self._at > count:  # the latter in an earlier partial
            return self.writing.text([*self.ids[:count], *more])
        added = self._added([*self.ids[self._at : count], *more])
        text = None if added is None else self._text + added
        begins = [self._at + first for first, _ in splitter.spans(self.ids[self._at : count])]
        if len(begins) > 1:
            added = self._added(self.ids[self._at : begins[-1]])
            if added is not None:
                self._before, self._at, self._text = begins[-2], begins[-1], self._text + added
                self._between = splitter.text(self.ids[self._before : self._at])
        return splitter.text([*self.ids[:count], *more]) if text is None else text

    def _added(self, more: Sequence[int]) -> str | None:
        """Return what some tokens after `at` add to the text; None if they change it."""
        whole = self.writing.text([*self.ids[self._before : self._at], *more])
        return whole[len(self._between) :] if whole.startswith(self._between) else None


@dataclass(frozen=True)
class Partial:
    """Report what a stream has said so far: its best hypothesis after a step. Times count from the utterance's start.

    Args:
        score: what the search maximises, without the LM's score of `</s>` (natural log).
        frames: of the utterance so far.
        stable: how many of the tokens can no longer change: what all hypotheses that are left begin with. A last token of
            greedy CTC that may still go on isn't among them.
        endpoint: whether the utterance seems to have ended (see `StreamingDecoder`).
    """

    score: float
    frames: int
    stable: int
    endpoint: bool
    _transcript: Transcript = field(repr=False, compare=False)
    _count: int = field(repr=False, compare=False)  # tokens that were handed over then
    _tails: Spoken = field(repr=False, compare=False)  # of several streams, `[N, L]`
    _tail: tuple[int, int] = field(repr=False, compare=False)  # place among them, and number of tokens

    def _of_tail(self) -> Spoken:
        place, size = self._tail
        return Spoken(*(array[place, :size] for array in self._tails))

    @cached_property
    def token_ids(self) -> list[int]:
        """The tokens."""
        return [*self._transcript.ids[: self._count], *self._of_tail().ids.tolist()]

    @cached_property
    def text(self) -> str:
        """The transcript."""
        return self._transcript.text(self._count, self._of_tail().ids.tolist())

    @cached_property
    def stable_text(self) -> str:
        """The text of the tokens that can no longer change."""
        return self._transcript.text(self._count, self._of_tail().ids[: self.stable - self._count].tolist())

    @cached_property
    def words(self) -> list[Word]:
        """The words with their times and confidences, as far as these are known."""
        return self._transcript.hypothesis(self._count, self._of_tail(), self.frames, (self.score, 0.0, 0.0, 0.0)).words
