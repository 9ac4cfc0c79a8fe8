"""Cut recordings of transducers where nothing is said, and put together what is found of the pieces.

A prediction network that has learned from single sentences expects nothing after one; neither does an LM of single sentences.
So each piece is decoded as a recording of its own. A pause is where the model hears nothing, though it has said nothing yet: a
run of frames whose blank is likelier than all tokens together before the first token.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..search.networks.model import TransducerModel

QUIET = 0.5  # probability of the blank
FRAMES_AT_ONCE, PIECES_AT_ONCE = 1024, 64


class Paths(NamedTuple):
    """Hold what was found for `B` rows, `N` paths each, best first; on the CPU. Entries after a path's last step mean nothing.

    Args:
        counts: int64 `[B, N]`, number of steps; -1 where there is no path.
        labels, frames, durations: int64 `[B, N, S]`, of each step: the class, a token or the blank; the frame; and the frames
            that the search moved on after it.
        scores: float64 `[B, N, 4]`: what was maximised (but for the division by the length), and the acoustic, LM and phrase
            scores, see `hf_ngpulm.Hypothesis`.
        confidences: float32 `[B, N, S]` of the frames of tokens, if asked for.
    """

    counts: Tensor
    labels: Tensor
    frames: Tensor
    durations: Tensor
    scores: Tensor
    confidences: Tensor | None


class Piece(NamedTuple):
    """A part of a row of a batch: the frames from `first` until before `last`."""

    row: int
    first: int
    last: int


def pieces_of(model: TransducerModel, frames: Tensor, lengths: Tensor, least: int) -> list[Piece]:
    """Return the pieces of a batch, of each row in their order; they are cut in the middle of pauses.

    Args:
        frames: `[B, T, D]`, of the encoder.
        lengths: integers `[B]`.
        least: frames that a pause has at least. What a row begins or ends with is none.
    """
    found = []
    for row, length in enumerate(lengths.tolist()):
        cuts = [0, *_cuts(_quiet(model, frames[row, :length]), least), length]
        found += [Piece(row, first, last) for first, last in pairwise(cuts)]
    return found


def _cuts(quiet: list[bool], least: int) -> Iterator[int]:
    place = 0
    for is_quiet, run in groupby(quiet):
        size = sum(1 for _ in run)
        if is_quiet and size >= least and place > 0 and place + size < len(quiet):
            yield place + size // 2
        place += size


def _quiet(model: TransducerModel, frames: Tensor) -> list[bool]:
    found: list[bool] = []
    for part in frames.split(FRAMES_AT_ONCE) if len(frames) else ():
        begin, _ = model.start(1, part)
        logits = model.join(part, begin.expand(len(part), -1))[:, : model.vocab_size]
        found += (torch.softmax(logits.float(), -1)[:, model.blank_id] > QUIET).tolist()
    return found


def by_pieces(
    pieces: list[Piece],
    frames: Tensor,
    search: Callable[[Tensor, list[Piece]], tuple[Paths, Tensor]],
    num_rows: int,
) -> Paths:
    """Return the paths of a batch that was searched piece by piece, such as are of one size together.

    Args:
        frames: `[B, T, D]`.
        search: from the frames of pieces, `[P, T, D]`, and these, to their paths and how good each is beside the others of its
            piece, float64 `[P, N]`.
        num_rows: B.
    """
    order = sorted(range(len(pieces)), key=lambda i: pieces[i].last - pieces[i].first)
    found: dict[int, tuple[Paths, Tensor]] = {}
    for first in range(0, len(order), PIECES_AT_ONCE):
        group = order[first : first + PIECES_AT_ONCE]
        parts = [frames[pieces[i].row, pieces[i].first : pieces[i].last] for i in group]
        paths, ranks = search(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True), [pieces[i] for i in group])
        for place, i in enumerate(group):
            found[i] = _of_piece(paths, place), ranks[place]
    of_rows: list[list[int]] = [[] for _ in range(num_rows)]
    for i, piece in enumerate(pieces):
        of_rows[piece.row].append(i)
    return _padded([_joined([(*found[i], pieces[i].first) for i in of_row]) for of_row in of_rows])


def _of_piece(paths: Paths, place: int) -> Paths:
    return Paths(
        paths.counts[place],
        paths.labels[place],
        paths.frames[place],
        paths.durations[place],
        paths.scores[place],
        None if paths.confidences is None else paths.confidences[place],
    )


def _joined(parts: list[tuple[Paths, Tensor, int]]) -> list[Paths]:
    """Return the best ways to put paths of pieces together, each as the only one of its row.

    Args:
        parts: of each piece the paths, how good each is, and the piece's first frame.
    """
    most = len(parts[0][0].counts)
    ways: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for paths, ranks, _ in parts:
        values = [(n, value) for n, (count, value) in enumerate(zip(paths.counts.tolist(), ranks.tolist())) if count >= 0]
        further = ((rank + value, (*way, n)) for rank, way in ways for n, value in values)
        ways = heapq.nlargest(most, further, key=lambda way: way[0])
    found = []
    for _, way in ways:
        chosen = [(paths, n, int(paths.counts[n]), first) for n, (paths, _, first) in zip(way, parts)]
        found.append(
            Paths(
                counts=torch.tensor(sum(count for _, _, count, _ in chosen)),
                labels=torch.cat([paths.labels[n, :count] for paths, n, count, _ in chosen]),
                frames=torch.cat([paths.frames[n, :count] + first for paths, n, count, first in chosen]),
                durations=torch.cat([paths.durations[n, :count] for paths, n, count, _ in chosen]),
                scores=torch.stack([paths.scores[n] for paths, n, _, _ in chosen]).sum(0),
                confidences=_of_all([(paths.confidences, n, count) for paths, n, count, _ in chosen]),
            )
        )
    return found


def _of_all(parts: list[tuple[Tensor | None, int, int]]) -> Tensor | None:
    there = [part[n, :count] for part, n, count in parts if part is not None]
    return torch.cat(there) if there else None


def _padded(rows: list[list[Paths]]) -> Paths:
    """Return the paths of rows as one batch."""
    most = max(map(len, rows))
    longest = max(int(path.counts) for row in rows for path in row)
    like = rows[0][0]
    shape = len(rows), most, longest
    labels, frames, durations = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    counts = torch.full(shape[:2], -1)
    scores = torch.full((*shape[:2], 4), -torch.inf, dtype=torch.float64)
    confidences = None if like.confidences is None else torch.zeros(shape)
    for i, row in enumerate(rows):
        for n, path in enumerate(row):
            size = int(path.counts)
            counts[i, n], scores[i, n] = size, path.scores
            labels[i, n, :size], frames[i, n, :size], durations[i, n, :size] = path.labels, path.frames, path.durations
            if confidences is not None and path.confidences is not None:
                confidences[i, n, :size] = path.confidences
    return Paths(counts, labels, frames, durations, scores, confidences)
