"""Keep what hypotheses of many streams consist of, such that a step costs the same however long a stream has been open.

All hypotheses of a stream begin alike: what they have in common, with its times, has been handed over for good, and only the
rest of each, its tail, is kept and rewritten. Tails are as long as hypotheses differ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...engines.native import Function, Struct
from ..partials import Spoken


class _Tails(Struct):
    """See `History`."""


class _Links(Struct):
    """Hold where hypotheses come from, and what they get; `live` are those that there are."""

    @classmethod
    def of(cls, links: np.ndarray, labels: np.ndarray, live: np.ndarray, length: int) -> _Links:
        return cls(links=_as(np.int32, links), labels=_as(np.int32, labels), live=_as(np.bool_, live), length=length)


_label = Function("ngpulm_history_label")
_frames = Function("ngpulm_history_frames")
_steps = Function("ngpulm_history_steps")
_hand_over = Function("ngpulm_history_hand_over")


def _as(dtype: Any, values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=dtype)


class Tokens(NamedTuple):
    """Tokens with what is known of them, arrays of the same shape.

    Args:
        ids: int32.
        starts, ends: int64, the frame at which each begins, and the one after its last.
        before, after: float64, sums of the confidences of all frames before it, and of those and its own. A transducer's token
            has one confidence: 0 and that.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    before: np.ndarray
    after: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Tokens:
        return cls(
            np.zeros(shape, np.int32), np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
        )


class History:
    """Tails of the hypotheses of `S` streams, `K` each.

    Args:
        goes_on: whether a last token may go on for more frames (CTC), so that it can't be handed over yet.
    """

    def __init__(self, streams: int, num_beams: int, goes_on: bool) -> None:
        self.goes_on = goes_on
        self.sizes = np.zeros((streams, num_beams), dtype=np.int64)
        self.tails = Tokens.empty((streams, num_beams, 0))
        self._native: _Tails | None = None  # made with the first room: to open a session should cost little
        self._handed = Tokens.empty((0,))
        # Of each stream: tokens, after those that have been handed over, that all tails begin with.
        self.common = np.zeros(streams, dtype=np.int64)

    def _use(self, tails: Tokens) -> None:
        """Go on with other room for tails."""
        self.tails = tails
        _, num_beams, room = tails.ids.shape
        self._native = _Tails(sizes=self.sizes, **tails._asdict(), num_beams=num_beams, room=room)

    def begin(self, stream: int) -> None:
        self.sizes[stream] = self.common[stream] = 0

    def _room(self, rows: np.ndarray, more: int) -> None:
        """Have room for more tokens in some rows' tails."""
        needed = int(self.sizes[rows].max(initial=0)) + more
        room = self.tails.ids.shape[2]
        if needed > room or self._native is None:
            grown = Tokens.empty((*self.sizes.shape, max(needed, 2 * room)))
            for old, new in zip(self.tails, grown) if room else ():
                new[:, :, :room] = old
            self._use(grown)

    def label(
        self, rows: np.ndarray, labels: np.ndarray, lengths: np.ndarray, firsts: np.ndarray, last: np.ndarray,
        sums: np.ndarray, confidences: np.ndarray, blank: int,
    ) -> None:  # fmt: skip
        """Follow frames of greedy CTC search.

        Args:
            rows: int64 `[N]`.
            labels, lengths: `[N, T]` and `[N]`, labels of new frames.
            firsts: int64 `[S]`, number of the first of them.
            last: int64 `[S]`, the label before that; rewritten.
            sums: float64 `[S]`, of the confidences of the frames before; rewritten.
            confidences: float32 `[N, T]`.
        """
        self._room(rows, labels.shape[1])
        _label(
            len(rows), _as(np.int64, rows), _as(np.int32, labels), _as(np.int32, lengths), labels.shape[1], firsts, last, sums,
            _as(np.float32, confidences), blank, self._native,
        )  # fmt: skip

    def follow_frames(
        self, rows: np.ndarray, links: np.ndarray, labels: np.ndarray, lengths: np.ndarray, firsts: np.ndarray,
        sums: np.ndarray, confidences: np.ndarray, live: np.ndarray,
    ) -> None:  # fmt: skip
        """Follow frames of CTC beam search: links, labels `[N, T, K]`, see `hf_ngpulm.search.ctc_beam`; live: bool `[S, K]`."""
        self._room(rows, labels.shape[1])
        _frames(
            len(rows), _as(np.int64, rows), _Links.of(links, labels, live, labels.shape[1]), _as(np.int32, lengths), firsts,
            sums, _as(np.float32, confidences), self._native,
        )  # fmt: skip

    def follow_steps(self, rows: np.ndarray, steps: list[np.ndarray], times: np.ndarray, live: np.ndarray, blank: int) -> None:
        """Follow steps of a transducer's search.

        Args:
            steps: links, labels, moves and confidences `[steps, S, K]`.
            times: int64 `[S, K]`, frames at which the hypotheses were before.
            live: bool `[S, K]`, whether there is one now.
            blank: the class that isn't kept.
        """
        links, labels, moves, confidences = steps
        self._room(rows, len(links))
        _steps(
            len(rows), _as(np.int64, rows), len(self.sizes), _Links.of(links, labels, live, len(links)), _as(np.int32, moves),
            _as(np.float32, confidences), _as(np.int64, times), blank, self._native,
        )  # fmt: skip

    def tails_of(self, rows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, Spoken]:
        """Return the number of tokens `[N]` and the tokens `[N, L]` of a tail of each of some rows, as they are now."""
        sizes = self.sizes[rows, places]
        longest = int(sizes.max(initial=0))
        return sizes, self._spoken(Tokens(*(array[rows, places, :longest] for array in self.tails)))

    def _spoken(self, tokens: Tokens) -> Spoken:
        confidences = tokens.after - tokens.before
        if self.goes_on:
            confidences /= np.maximum(tokens.ends - tokens.starts, 1)
        return Spoken(tokens.ids, tokens.starts, tokens.ends, confidences)

    def hand_over(self, rows: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, Spoken]:
        """Return what all live hypotheses have had in common, with its times, since the last time; it leaves the tails.

        Returns:
            The number of tokens of each row, and the tokens of all rows.
        """
        counts = np.zeros(len(rows), dtype=np.int64)
        needed = int(self.sizes[rows].max(axis=1, initial=0).sum())
        if needed > len(self._handed.ids):
            self._handed = Tokens.empty((2 * needed,))
            self._native_handed = _Tails(
                sizes=self.sizes, **self._handed._asdict(), num_beams=1, room=len(self._handed.ids)
            )  # fmt: skip
        total = 0
        if needed:
            total = _hand_over(
                len(rows), _as(np.int64, rows), _as(np.bool_, live), self.goes_on, counts, self.common, self._native_handed,
                self._native,
            )  # fmt: skip
        else:
            self.common[rows] = 0
        return counts, self._spoken(Tokens(*(array[:total].copy() for array in self._handed)))
