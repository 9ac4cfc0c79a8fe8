"""Keep partial results: transcripts of utterances that are still being decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..search.history import Spoken
from .hypotheses import Hypothesis, Word, Writing


class Transcript:
    """Keep the tokens with which all hypotheses of an utterance begin. Tokens are only appended, never removed."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing
        self.ids: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.confidences: list[float] = []
        # The last two words of the transcript begin at tokens `_before` and `_at`. `_text` is the text of all tokens before
        # `_at`. `_between` is the text of the tokens from `_before` to `_at`.
        self._before, self._at, self._text, self._between = 0, 0, "", ""

    def extend(self, ids: list[int], starts: list[int], ends: list[int], confidences: list[float]) -> None:
        self.ids += ids
        self.starts += starts
        self.ends += ends
        self.confidences += confidences

    def hypothesis(self, count: int, tail: Spoken, frames: int, scores: Sequence[float]) -> Hypothesis:
        """Return a hypothesis: the first `count` tokens of the transcript, followed by the tokens of `tail`.

        `frames` is the number of frames of the utterance. `scores` are as for `Writing.hypothesis`.
        """
        columns: tuple[list[Any], ...] = (self.ids, self.starts, self.ends, self.confidences)
        ids, starts, ends, confidences = ([*column[:count], *more.tolist()] for column, more in zip(columns, tail))
        return self.writing.hypothesis(scores, ids, starts, [min(end, frames) for end in ends], confidences)

    def followed_by(self, tail: list[Any], frames: int, scores: Sequence[float]) -> Hypothesis:
        """Return a hypothesis: all tokens of the transcript, followed by the tokens of `tail`.

        `tail` is four lists: ids, first frames, end frames and confidences of the further tokens. `frames` is the number of
        frames of the utterance. `scores` are as for `Writing.hypothesis`.
        """
        if self.ids:
            kept: tuple[list[Any], ...] = (self.ids, self.starts, [min(end, frames) for end in self.ends], self.confidences)
            tail = [[*part, *more] for part, more in zip(kept, tail)]
        return self.writing.hypothesis(scores, *tail)

    def text(self, count: int, more: Sequence[int]) -> str:
        """Return the text of the first `count` tokens followed by the tokens `more`.

        Only the transcript's last two words and `more` are turned into text again, so the cost doesn't grow with the utterance.
        One word isn't enough, because a word's text (its spaces) can depend on the word before it.
        """
        splitter = self.writing.splitter
        if splitter is None or self._at > count:  # an earlier partial, from before `_at` moved on
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
        """Return the text that the tokens `more` add after `_text`; None if these tokens change earlier text."""
        whole = self.writing.text([*self.ids[self._before : self._at], *more])
        return whole[len(self._between) :] if whole.startswith(self._between) else None


@dataclass(frozen=True)
class Partial:
    """Hold the best hypothesis of a stream after a step. Times are relative to the utterance's start.

    Args:
        score: the search's total score (natural log), without the LM's score of `</s>`.
        frames: number of frames of the utterance so far.
        stable: number of leading tokens that can no longer change, because all hypotheses share these tokens. Greedy CTC
            doesn't count a last token that the next frame may continue.
        endpoint: whether the utterance seems to have ended (see `StreamingDecoder`).
    """

    score: float
    frames: int
    stable: int
    endpoint: bool
    _transcript: Transcript = field(repr=False, compare=False)
    _count: int = field(repr=False, compare=False)  # tokens of `_transcript` at that step
    _tails: Spoken = field(repr=False, compare=False)  # the tails of all streams of the step, `[N, L]`
    _tail: tuple[int, int] = field(repr=False, compare=False)  # this stream's row in `_tails`, and its number of tokens

    def _of_tail(self) -> Spoken:
        place, size = self._tail
        return Spoken(*(array[place, :size] for array in self._tails))

    @cached_property
    def token_ids(self) -> list[int]:
        """Return the token ids."""
        return [*self._transcript.ids[: self._count], *self._of_tail().ids.tolist()]

    @cached_property
    def text(self) -> str:
        """Return the transcript."""
        return self._transcript.text(self._count, self._of_tail().ids.tolist())

    @cached_property
    def stable_text(self) -> str:
        """Return the text of the tokens that can no longer change."""
        if not self.stable:
            return ""
        return self._transcript.text(self._count, self._of_tail().ids[: self.stable - self._count].tolist())

    @cached_property
    def hypothesis(self) -> Hypothesis:
        """Return the transcript as a hypothesis. Only the total score is known; the other scores are 0."""
        return self._transcript.hypothesis(self._count, self._of_tail(), self.frames, (self.score, 0.0, 0.0, 0.0))

    @property
    def words(self) -> list[Word]:
        """Return the words with their times and confidences; an unknown time or confidence is None."""
        return self.hypothesis.words

    @property
    def pause(self) -> int | None:
        """Return the number of frames since the end of the last token; None before the first token."""
        ends = [*self._transcript.ends[: self._count][-1:], *self._of_tail().ends.tolist()]
        return max(0, self.frames - ends[-1]) if ends else None
