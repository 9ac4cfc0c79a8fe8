"""What hypotheses of many streams consist of, kept such that a step costs the same however long a stream has been open.

All hypotheses of a stream begin alike: what they have in common, with its times, has been handed over for good, and only the
rest of each, its tail, is kept and rewritten. Tails are as long as hypotheses differ. The native core rewrites them
(`csrc/history.cpp`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...engines.native import Function, Struct
from ..partials import Spoken


class _Tails(Struct):
    """Tokens as the core has them, of hypotheses `[S, K]` with so much `room` for each."""

    name = "NgpulmTails"
    members = """
        int64_t* sizes;
        int32_t* ids;
        int64_t* starts;
        int64_t* ends;
        double* before;
        double* after;
        int64_t num_beams;
        int64_t room;
    """


_label = Function(
    "int64_t ngpulm_history_label(const int64_t* rows, int64_t num_rows, const int32_t* labels, const int64_t* lengths,"
    " const float* confidences, int64_t width, const int64_t* firsts, int64_t* last_labels, double* sums, int64_t blank,"
    " const NgpulmTails* tails)",
    _Tails,
)
_follow_frames = Function(
    "int64_t ngpulm_history_follow_frames(const int64_t* rows, int64_t num_rows, const int32_t* links, const int32_t* labels,"
    " const int64_t* lengths, const float* confidences, int64_t width, const int64_t* firsts, double* sums,"
    " const uint8_t* live, const NgpulmTails* tails)",
    _Tails,
)
_follow_steps = Function(
    "int64_t ngpulm_history_follow_steps(const int64_t* rows, int64_t num_rows, const int64_t* links, const int64_t* labels,"
    " const int64_t* moves, const float* confidences, int64_t num_steps, int64_t num_streams, const int64_t* times,"
    " const uint8_t* live, int64_t blank, const NgpulmTails* tails)",
    _Tails,
)
_append_steps = Function(
    "int64_t ngpulm_history_append_steps(const int64_t* rows, const int64_t* labels, const int64_t* moves,"
    " const float* confidences, int64_t num_steps, int64_t* times, int64_t blank, const NgpulmTails* tails)",
    _Tails,
)
_hand_over = Function(
    "int64_t ngpulm_history_hand_over(const int64_t* rows, int64_t num_rows, const uint8_t* live, int64_t kept,"
    " int64_t* counts, int64_t* common, const NgpulmTails* out, const NgpulmTails* tails)",
    _Tails,
)


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
        self.tails = Tokens.empty((streams, num_beams, 16))
        # Of each stream: tokens, behind those that have been handed over, that all tails begin with.
        self.common = np.zeros(streams, dtype=np.int64)

    def begin(self, stream: int) -> None:
        self.sizes[stream] = self.common[stream] = 0

    def _room(self, rows: np.ndarray, more: int) -> None:
        """Have room for more tokens in some rows' tails."""
        needed = int(self.sizes[rows].max(initial=0)) + more
        room = self.tails.ids.shape[2]
        if needed > room:
            grown = Tokens.empty((*self.sizes.shape, max(needed, 2 * room)))
            for old, new in zip(self.tails, grown):
                new[:, :, :room] = old
            self.tails = grown

    def _native(self) -> _Tails:
        _, num_beams, room = self.tails.ids.shape
        return _Tails(sizes=self.sizes, **self.tails._asdict(), num_beams=num_beams, room=room)

    def label(
        self, rows: np.ndarray, labels: np.ndarray, lengths: np.ndarray, firsts: np.ndarray, last: np.ndarray,
        sums: np.ndarray, confidences: np.ndarray, blank: int,
    ) -> None:  # fmt: skip
        """Frames of greedy CTC search.

        Args:
            rows: int64 `[N]`.
            labels, lengths: `[N, T]` and `[N]`, labels of new frames.
            firsts: int64 `[S]`, number of the first of them.
            last: int64 `[S]`, the label before that; rewritten.
            sums: float64 `[S]`, of the confidences of the frames before; rewritten.
            confidences: float32 `[N, T]`.
        """
        width = labels.shape[1]
        self._room(rows, width)
        of_frames = (_numbers(labels, np.int32), _numbers(lengths), _numbers(confidences, np.float32), width)
        _label(_numbers(rows), len(rows), *of_frames, firsts, last, sums, blank, self._native())

    def follow_frames(
        self, rows: np.ndarray, links: np.ndarray, labels: np.ndarray, lengths: np.ndarray, firsts: np.ndarray,
        sums: np.ndarray, confidences: np.ndarray, live: np.ndarray,
    ) -> None:  # fmt: skip
        """Frames of CTC beam search: links and labels `[N, T, K]`, see `hf_ngpulm.search.ctc_beam`; live: bool `[S, K]`."""
        width = labels.shape[1]
        self._room(rows, width)
        of_frames = (
            _numbers(links, np.int32), _numbers(labels, np.int32), _numbers(lengths), _numbers(confidences, np.float32), width
        )  # fmt: skip
        _check(_follow_frames(_numbers(rows), len(rows), *of_frames, firsts, sums, _numbers(live, np.bool_), self._native()))

    def follow_steps(self, rows: np.ndarray, steps: list[np.ndarray], times: np.ndarray, live: np.ndarray, blank: int) -> None:
        """Steps of a transducer's beam search.

        Args:
            steps: links, labels, moves and confidences `[steps, S, K]`.
            times: int64 `[S, K]`, frames at which the hypotheses were before.
            live: bool `[S, K]`, whether there is one now.
        """
        num_steps, num_streams, _ = steps[0].shape
        self._room(rows, num_steps)
        of_steps = (*(_numbers(part) for part in steps[:3]), _numbers(steps[3], np.float32), num_steps, num_streams)
        of_streams = (_numbers(times), _numbers(live, np.bool_), blank, self._native())
        _check(_follow_steps(_numbers(rows), len(rows), *of_steps, *of_streams))

    def append_steps(self, steps: list[np.ndarray], times: np.ndarray, blank: int) -> None:
        """Steps of greedy transducer search: rows, labels, moves and confidences `[steps]`, in order within each row.

        Args:
            times: int64 `[S]`, frames at which the rows were before.
        """
        rows = steps[0]
        self._room(rows, int(np.bincount(rows).max(initial=0)) if len(rows) else 0)
        of_steps = (*(_numbers(part) for part in steps[:3]), _numbers(steps[3], np.float32), len(rows))
        _append_steps(*of_steps, np.array(times, dtype=np.int64), blank, self._native())

    def tails_of(self, rows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, Spoken]:
        """The number of tokens `[N]` and the tokens `[N, L]` of a tail of each of some rows, as they are now."""
        sizes = self.sizes[rows, places]
        longest = int(sizes.max(initial=0))
        return sizes, self._spoken(Tokens(*(array[rows, places, :longest] for array in self.tails)))

    def _spoken(self, tokens: Tokens) -> Spoken:
        confidences = tokens.after - tokens.before
        if self.goes_on:
            confidences /= np.maximum(tokens.ends - tokens.starts, 1)
        return Spoken(tokens.ids, tokens.starts, tokens.ends, confidences)

    def hand_over(self, rows: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, Spoken]:
        """What all live hypotheses have had in common, with its times, since the last time; it leaves the tails.

        Returns:
            The number of tokens of each row, and the tokens of all rows.
        """
        counts = np.zeros(len(rows), dtype=np.int64)
        out = Tokens.empty((int(self.sizes[rows].max(axis=1, initial=0).sum()),))
        written = _Tails(sizes=None, **out._asdict(), num_beams=0, room=0)
        given = (_numbers(rows), len(rows), _numbers(live, np.bool_), int(self.goes_on))
        _hand_over(*given, counts, self.common, written, self._native())
        return counts, self._spoken(Tokens(*(array[: counts.sum()] for array in out)))


def _numbers(values: np.ndarray, dtype: Any = np.int64) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=dtype)


def _check(bad_stream: int) -> None:
    if bad_stream >= 0:
        raise IndexError(f"stream {bad_stream} has links to hypotheses that it hasn't")
