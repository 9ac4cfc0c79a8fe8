"""What hypotheses of many streams consist of, kept such that a step costs the same however long a stream has been open.

All hypotheses of a stream begin alike: what they have in common, with its times, has been handed over for good, and only the
rest of each, its tail, is kept and rewritten. Tails are as long as hypotheses differ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...automaton.compiled import compiled
from ...search.ctc_beam import INSIDE
from ...search.transducer_beam import STILL
from ..partials import Spoken


class Tokens(NamedTuple):
    """Tokens with what is known of them, arrays of the same shape.

    Args:
        ids: int32.
        starts, ends: int64, the frame at which each begins, and the one behind its last.
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
        self._room(rows, labels.shape[1])
        _label(rows, labels, lengths, firsts, last, sums, confidences, blank, self.sizes, *self.tails)

    def follow_frames(
        self, rows: np.ndarray, links: np.ndarray, labels: np.ndarray, lengths: np.ndarray, firsts: np.ndarray,
        sums: np.ndarray, confidences: np.ndarray, live: np.ndarray,
    ) -> None:  # fmt: skip
        """Frames of CTC beam search: links and labels `[N, T, K]`, see `hf_ngpulm.search.ctc_beam`; live: bool `[S, K]`."""
        self._room(rows, labels.shape[1])
        _follow_frames(rows, links, labels, lengths, firsts, sums, confidences, live, self.sizes, *self.tails)

    def follow_steps(self, rows: np.ndarray, steps: list[np.ndarray], times: np.ndarray, live: np.ndarray, blank: int) -> None:
        """Steps of a transducer's beam search.

        Args:
            steps: links, labels, moves and confidences `[steps, S, K]`.
            times: int64 `[S, K]`, frames at which the hypotheses were before.
            live: bool `[S, K]`, whether there is one now.
        """
        self._room(rows, len(steps[0]))
        arrays = (*steps, times, live, blank, self.sizes, *self.tails)
        _follow_steps(rows, *arrays)

    def append_steps(self, steps: list[np.ndarray], times: np.ndarray, blank: int) -> None:
        """Steps of greedy transducer search: rows, labels, moves and confidences `[steps]`, in order within each row.

        Args:
            times: int64 `[S]`, frames at which the rows were before.
        """
        rows = steps[0]
        self._room(rows, int(np.bincount(rows).max(initial=0)) if len(rows) else 0)
        arrays = (*steps, times.copy(), blank, self.sizes, *self.tails)
        _append_steps(*arrays)

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
        _hand_over(rows, live, int(self.goes_on), counts, self.common, *out, self.sizes, *self.tails)
        return counts, self._spoken(Tokens(*(array[: counts.sum()] for array in out)))


@compiled
def _append(row, k, ids, starts, ends, before, after, sizes, label, start, end, sum_before, sum_after):
    at = sizes[row, k]
    ids[row, k, at], starts[row, k, at], ends[row, k, at] = label, start, end
    before[row, k, at], after[row, k, at] = sum_before, sum_after
    sizes[row, k] = at + 1


@compiled
def _label(rows, labels, lengths, firsts, last, sums, confidences, blank, sizes, ids, starts, ends, before, after):
    for i in range(rows.size):
        row = rows[i]
        for t in range(lengths[i]):
            frame, label, so_far = firsts[row] + t, labels[i, t], sums[row]
            sums[row] += confidences[i, t]
            if label == blank:
                last[row] = blank
            elif label == last[row]:
                at = sizes[row, 0] - 1
                ends[row, 0, at], after[row, 0, at] = frame + 1, sums[row]
            else:
                last[row] = label
                _append(row, 0, ids, starts, ends, before, after, sizes, label, frame, frame + 1, so_far, sums[row])


@compiled
def _copy_tails(row, origins, sizes, ids, starts, ends, before, after):
    """Have each hypothesis begin as that at another place (-1: none) did."""
    num_beams = origins.size
    moved = False
    for k in range(num_beams):
        moved |= origins[k] >= 0 and origins[k] != k
    if not moved:
        return
    longest = 0
    for k in range(num_beams):
        longest = max(longest, sizes[row, k])
    old_sizes, old_ids = sizes[row].copy(), ids[row, :, :longest].copy()
    old_starts, old_ends = starts[row, :, :longest].copy(), ends[row, :, :longest].copy()
    old_before, old_after = before[row, :, :longest].copy(), after[row, :, :longest].copy()
    for k in range(num_beams):
        origin = origins[k]
        if origin >= 0 and origin != k:
            sizes[row, k] = old_sizes[origin]
            for at in range(old_sizes[origin]):
                ids[row, k, at], starts[row, k, at] = old_ids[origin, at], old_starts[origin, at]
                ends[row, k, at] = old_ends[origin, at]
                before[row, k, at], after[row, k, at] = old_before[origin, at], old_after[origin, at]


@compiled
def _follow_frames(
    rows, links, labels, lengths, firsts, sums, confidences, live, sizes, ids, starts, ends, before, after
):  # fmt: skip
    num_beams = links.shape[2]
    places = np.empty((num_beams, links.shape[1]), dtype=np.int64)
    origins = np.empty(num_beams, dtype=np.int64)
    totals = np.empty(links.shape[1] + 1)
    for i in range(rows.size):
        row = rows[i]
        totals[0] = sums[row]
        for t in range(lengths[i]):
            totals[t + 1] = totals[t] + confidences[i, t]
        sums[row] = totals[lengths[i]]
        for k in range(num_beams):
            origins[k] = -1
            if live[row, k]:
                place = k
                for t in range(lengths[i] - 1, -1, -1):
                    places[k, t] = place
                    place = links[i, t, place]
                origins[k] = place
        _copy_tails(row, origins, sizes, ids, starts, ends, before, after)
        for k in range(num_beams):
            if not live[row, k]:
                sizes[row, k] = 0
                continue
            for t in range(lengths[i]):
                label, frame = labels[i, t, places[k, t]], firsts[row] + t
                if label >= 0:
                    _append(row, k, ids, starts, ends, before, after, sizes, label, frame, frame + 1, totals[t], totals[t + 1])
                elif label == INSIDE and sizes[row, k] > 0:
                    at = sizes[row, k] - 1
                    ends[row, k, at], after[row, k, at] = frame + 1, totals[t + 1]


@compiled
def _follow_steps(
    rows, links, labels, moves, confidences, times, live, blank, sizes, ids, starts, ends, before, after
):  # fmt: skip
    num_steps, _, num_beams = links.shape
    places = np.empty((num_beams, num_steps), dtype=np.int64)
    origins = np.empty(num_beams, dtype=np.int64)
    for i in range(rows.size):
        row = rows[i]
        for k in range(num_beams):
            origins[k] = -1
            if live[row, k]:
                place = k
                for step in range(num_steps - 1, -1, -1):
                    places[k, step] = place
                    place = links[step, row, place]
                origins[k] = place
        _copy_tails(row, origins, sizes, ids, starts, ends, before, after)
        for k in range(num_beams):
            if not live[row, k]:
                sizes[row, k] = 0
                continue
            time = times[row, origins[k]]
            for step in range(num_steps):
                place = places[k, step]
                label, move = labels[step, row, place], moves[step, row, place]
                if label == STILL:
                    continue
                if label != blank:
                    _append(
                        row, k, ids, starts, ends, before, after, sizes, label, time, time + max(move, 1), 0.0,
                        confidences[step, row, place],
                    )  # fmt: skip
                time += move


@compiled
def _append_steps(rows, labels, moves, confidences, times, blank, sizes, ids, starts, ends, before, after):
    for i in range(rows.size):
        row = rows[i]
        if labels[i] != blank:
            _append(
                row, 0, ids, starts, ends, before, after, sizes, labels[i], times[row], times[row] + max(moves[i], 1), 0.0,
                confidences[i],
            )  # fmt: skip
        times[row] += moves[i]


@compiled
def _hand_over(
    rows, live, kept, counts, common, out_ids, out_starts, out_ends, out_before, out_after,
    sizes, ids, starts, ends, before, after,
):  # fmt: skip
    count = 0
    for i in range(rows.size):
        row = rows[i]
        first = -1
        shortest = 0
        for k in range(live.shape[1]):
            if live[row, k]:
                shortest = sizes[row, k] if first < 0 else min(shortest, sizes[row, k])
                first = k if first < 0 else first
        same_ids = shortest
        same = max(shortest - kept, 0)
        for k in range(first + 1, live.shape[1]):
            if first >= 0 and live[row, k]:
                at = 0
                while at < same_ids and ids[row, k, at] == ids[row, first, at]:
                    at += 1
                same_ids = at
                at = 0
                while (
                    at < same
                    and ids[row, k, at] == ids[row, first, at]
                    and starts[row, k, at] == starts[row, first, at]
                    and ends[row, k, at] == ends[row, first, at]
                ):
                    at += 1
                same = at
        counts[i], common[row] = same, same_ids - same
        if same == 0:
            continue
        for at in range(same):
            out_ids[count], out_starts[count], out_ends[count] = (
                ids[row, first, at], starts[row, first, at], ends[row, first, at]
            )  # fmt: skip
            out_before[count], out_after[count] = before[row, first, at], after[row, first, at]
            count += 1
        for k in range(live.shape[1]):
            if live[row, k]:
                sizes[row, k] -= same
                for at in range(sizes[row, k]):
                    ids[row, k, at], starts[row, k, at] = ids[row, k, at + same], starts[row, k, at + same]
                    ends[row, k, at] = ends[row, k, at + same]
                    before[row, k, at], after[row, k, at] = before[row, k, at + same], after[row, k, at + same]
