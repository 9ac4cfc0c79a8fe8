"""Keep the tokens of the hypotheses of many streams. The cost of a step doesn't grow with the length of a stream.

All hypotheses of a stream begin with the same tokens. `hand_over` removes these tokens, with their times, from the history. The
history keeps only the remaining tokens of each hypothesis (its tail), so a step rewrites only tails.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..engines.native import Function, NativeCoreError, Struct

# A token, with the layout of `Token` in csrc/history.hpp. `start` is the token's first frame, `end` the frame after its last
# frame. `before` is the sum of the confidences of all frames before `start`, `after` is the same sum for all frames before
# `end`. A transducer's token has a single confidence c, so `before` is 0 and `after` is c.
TOKEN = np.dtype([("id", np.int64), ("start", np.int64), ("end", np.int64), ("before", np.float64), ("after", np.float64)])


class Spoken(NamedTuple):
    """Tokens as arrays of the same shape: ids, first frames, end frames (exclusive), and confidences."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    confidences: np.ndarray


class Tails(Struct):
    """Arrays of a `History` for the native core, see `History.with_room`."""


class _Links(Struct):
    """The trace of a search, for the native core. For each frame or step, `links` says where each hypothesis came from, and
    `labels` has the label that the hypothesis got. `live` says which places of the beam hold a hypothesis at the end.
    """

    @classmethod
    def of(cls, links: np.ndarray, labels: np.ndarray, live: np.ndarray, length: int) -> _Links:
        return cls(links=_as(np.int32, links), labels=_as(np.int32, labels), live=_as(np.bool_, live), length=length)


_label = Function("ngpulm_history_label")
_frames = Function("ngpulm_history_frames")
_steps = Function("ngpulm_history_steps")
_hand_over = Function("ngpulm_history_hand_over")


def _as(dtype: Any, values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=dtype)


class History:
    """Tails of the hypotheses of `S` streams, with `K` hypotheses per stream.

    Args:
        goes_on: whether the next frame may continue a hypothesis's last token (CTC). If so, this token stays in the history.

    Attributes:
        sizes: int64 `[S, K]`, number of tokens of each tail.
        common: int64 `[S]`, number of leading tokens that all tails of a stream have in common.
    """

    def __init__(self, streams: int, num_beams: int, goes_on: bool) -> None:
        self.goes_on = goes_on
        self.sizes = np.zeros((streams, num_beams), dtype=np.int64)
        self.tails = np.zeros((streams, num_beams, 0), dtype=TOKEN)
        self._native: Tails | None = None
        self.common = np.zeros(streams, dtype=np.int64)

    def begin(self, stream: int) -> None:
        self.sizes[stream] = self.common[stream] = 0

    def begin_all(self) -> None:
        self.sizes[...] = self.common[...] = 0

    def with_room(self, rows: np.ndarray | None, more: int) -> Tails:
        """Make room for `more` tokens in each tail of the streams `rows` (None means all streams). Return the arrays that hold
        the tails.
        """
        needed = int((self.sizes if rows is None else self.sizes[rows]).max(initial=0)) + more
        room = self.tails.shape[2]
        if needed > room or self._native is None:
            grown = np.zeros((*self.sizes.shape, max(needed, 2 * room, 16)), dtype=TOKEN)
            if room:
                grown[:, :, :room] = self.tails
            self.tails = grown
            self._native = Tails(sizes=self.sizes, tokens=grown, num_beams=grown.shape[1], room=grown.shape[2])
        return self._native

    def label(
        self, rows: np.ndarray, labels: np.ndarray, lengths: np.ndarray, firsts: np.ndarray, last: np.ndarray,
        sums: np.ndarray, confidences: np.ndarray | None, blank: int,
    ) -> None:  # fmt: skip
        """Append the tokens of greedy CTC search.

        Args:
            rows: int64 `[N]`, the streams.
            labels, lengths: `[N, T]` and `[N]`, labels of the new frames, and each row's number of new frames.
            firsts: int64 `[S]`, index of each stream's first new frame.
            last: int32 `[S]`, label of the frame before the first new frame. The method updates it.
            sums: float64 `[S]`, sum of the confidences of all frames before the first new frame. The method updates it.
            confidences: float32 `[N, T]`, confidences of the new frames; None if they aren't measured.
        """
        try:
            tails = self.with_room(rows, labels.shape[1])
        except NativeCoreError:  # greedy search on a GPU works without the native core
            self._label_slowly(rows, labels, lengths, firsts, last, sums, confidences, blank)
            return
        _label(
            len(rows), _as(np.int64, rows), _as(np.int32, labels), _as(np.int32, lengths), labels.shape[1], firsts, last, sums,
            _measured(confidences), blank, tails,
        )  # fmt: skip

    def _label_slowly(
        self, rows: np.ndarray, labels: np.ndarray, lengths: np.ndarray, firsts: np.ndarray, last: np.ndarray,
        sums: np.ndarray, confidences: np.ndarray | None, blank: int,
    ) -> None:  # fmt: skip
        for n, row in enumerate(rows.tolist()):
            for t, label in enumerate(labels[n, : lengths[n]].tolist()):
                frame, before = int(firsts[row]) + t, float(sums[row])
                sums[row] += 0.0 if confidences is None else confidences[n, t]
                if label != blank and label == last[row]:
                    token = self.tails[row, 0, self.sizes[row, 0] - 1]
                    token["end"], token["after"] = frame + 1, sums[row]
                elif label != blank:
                    self.tails[row, 0, self.sizes[row, 0]] = (label, frame, frame + 1, before, sums[row])
                    self.sizes[row, 0] += 1
                last[row] = label

    def follow_frames(
        self, rows: np.ndarray, links: np.ndarray, labels: np.ndarray, lengths: np.ndarray, firsts: np.ndarray,
        sums: np.ndarray, confidences: np.ndarray | None, live: np.ndarray,
    ) -> None:  # fmt: skip
        """Append the tokens of CTC beam search.

        Args:
            rows, lengths, firsts, sums, confidences: as for `label`.
            links, labels: `[N, T, K]`, see `BeamFrames`.
            live: bool `[S, K]`, whether each place holds a hypothesis after the last frame.
        """
        _frames(
            len(rows), _as(np.int64, rows), _Links.of(links, labels, live, labels.shape[1]), _as(np.int32, lengths), firsts,
            sums, _measured(confidences), self.with_room(rows, labels.shape[1]),
        )  # fmt: skip

    def follow_steps(self, rows: np.ndarray, steps: list[np.ndarray], times: np.ndarray, live: np.ndarray, blank: int) -> None:
        """Append the tokens of a transducer's search.

        Args:
            rows: int64 `[N]`, the streams.
            steps: the trace that `TransducerSearch.steps` returns. Each array has the shape `[steps, S, K]`.
            times: int64 `[S, K]`, frame of each hypothesis before the first step.
            live: bool `[S, K]`, whether each place holds a hypothesis after the last step.
            blank: the blank class, which isn't appended.
        """
        links, labels, moves, confidences = steps
        _steps(
            len(rows), _as(np.int64, rows), len(self.sizes), _Links.of(links, labels, live, len(links)), _as(np.int32, moves),
            _as(np.float32, confidences), _as(np.int64, times), blank, self.with_room(rows, len(links)),
        )  # fmt: skip

    def tails_of(self, rows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, Spoken]:
        """Return one tail per row: the numbers of tokens `[N]`, and the tokens `[N, L]`.

        `rows`, `[N]`: the stream of each tail. `places`, `[N]`: the place of the tail's hypothesis in the stream's beam.
        """
        sizes = self.sizes[rows, places]
        return sizes, self._spoken(self.tails[rows, places, : int(sizes.max(initial=0))])

    def _spoken(self, tokens: np.ndarray) -> Spoken:
        confidences = tokens["after"] - tokens["before"]
        if self.goes_on:
            confidences /= np.maximum(tokens["end"] - tokens["start"], 1)
        return Spoken(tokens["id"], tokens["start"], tokens["end"], confidences)

    def hand_over(self, rows: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, Spoken]:
        """Remove the first tokens that all live hypotheses of a row have in common. Return how many tokens were removed from
        each row. Also return the removed tokens, one row after the other. `live` is bool `[S, K]`.
        """
        counts, total = np.zeros(len(rows), dtype=np.int64), 0
        handed = np.empty(int(self.sizes[rows].max(axis=1, initial=0).sum()), dtype=TOKEN)
        if len(handed):
            total = _hand_over(
                len(rows), _as(np.int64, rows), _as(np.bool_, live), self.goes_on, counts, self.common, handed,
                self.with_room(None, 0),
            )  # fmt: skip
        else:
            self.common[rows] = 0
        return counts, self._spoken(handed[:total])


def _measured(confidences: np.ndarray | None) -> np.ndarray | None:
    return None if confidences is None else _as(np.float32, confidences)
