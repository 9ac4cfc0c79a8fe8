"""Cut recordings at pauses, decode the pieces with a transducer, and join the results.

If a prediction network or an LM was trained on single sentences, it expects no words after the end of a sentence. Later words
are then lost. So each piece is decoded like a separate recording. A frame is quiet if the blank is more probable than all
tokens together, given the prediction network's initial state. A pause is a run of quiet frames.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..search.networks.model import TransducerModel
from .partials import Spoken
from .sessions.transducer import TransducerPath

QUIET = 0.5  # probability of the blank
FRAMES_AT_ONCE, PIECES_AT_ONCE = 1024, 64


class Piece(NamedTuple):
    """Hold a part of a batch's row: the frames `first .. last - 1`."""

    row: int
    first: int
    last: int


def frames_of_pause(pause_seconds: float, frame_seconds: float | None) -> int:
    """Return the minimum length of a pause, in frames. `frame_seconds`: the decoder's value for the duration of a frame."""
    assert frame_seconds is not None  # checked when the decoder was made
    return max(1, math.ceil(pause_seconds / frame_seconds - 1e-6))


def pieces_of(model: TransducerModel, frames: Tensor, lengths: Tensor, least: int) -> list[Piece]:
    """Return the pieces of a batch, row by row in time order. Rows are cut in the middle of pauses.

    Args:
        frames: `[B, T, D]`, encoder frames.
        lengths: integers `[B]`.
        least: minimum length of a pause in frames. Quiet frames at the beginning or end of a row don't count as a pause.
    """
    pieces = []
    for row, length in enumerate(lengths.tolist()):
        cuts = [0, *_cuts(_quiet(model, frames[row, :length]), least), length]
        pieces += [Piece(row, first, last) for first, last in pairwise(cuts)]
    return pieces


def _cuts(quiet: list[bool], least: int) -> Iterator[int]:
    place = 0
    for is_quiet, run in groupby(quiet):
        size = sum(1 for _ in run)
        if is_quiet and size >= least and place > 0 and place + size < len(quiet):
            yield place + size // 2
        place += size


def _quiet(model: TransducerModel, frames: Tensor) -> list[bool]:
    quiet: list[bool] = []
    for chunk in frames.split(FRAMES_AT_ONCE) if len(frames) else ():
        begin, _ = model.start(1, chunk)
        logits = model.join(chunk, begin.expand(len(chunk), -1))[:, : model.vocab_size]
        quiet += (torch.softmax(logits.float(), -1)[:, model.blank_id] > QUIET).tolist()
    return quiet


def by_pieces(
    pieces: list[Piece],
    frames: Tensor,
    search: Callable[[Tensor, list[Piece]], list[list[TransducerPath]]],
    num_rows: int,
    rank: Callable[[TransducerPath], float],
    most: int,
) -> list[list[TransducerPath]]:
    """Search a batch piece by piece and return the paths of its rows. Pieces of similar length are searched together.

    Args:
        frames: `[B, T, D]`.
        search: function that takes the frames `[P, T, D]` of P pieces, and the pieces. It returns each piece's paths.
        num_rows: B.
        rank: score by which the paths of a piece are compared.
        most: maximum number of paths per row.
    """
    order = sorted(range(len(pieces)), key=lambda i: pieces[i].last - pieces[i].first)
    paths: dict[int, list[TransducerPath]] = {}
    for first in range(0, len(order), PIECES_AT_ONCE):
        group = order[first : first + PIECES_AT_ONCE]
        parts = [frames[pieces[i].row, pieces[i].first : pieces[i].last] for i in group]
        paths.update(zip(group, search(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True), [pieces[i] for i in group])))
    of_rows: list[list[tuple[int, list[TransducerPath]]]] = [[] for _ in range(num_rows)]
    for i, piece in enumerate(pieces):
        of_rows[piece.row].append((piece.first, paths[i]))
    return [_joined(parts, rank, most) for parts in of_rows]


def _joined(
    parts: list[tuple[int, list[TransducerPath]]], rank: Callable[[TransducerPath], float], most: int
) -> list[TransducerPath]:
    """Return the best combinations of one path per piece. `parts` holds the first frame and the paths of each piece."""
    ways: list[tuple[float, tuple[TransducerPath, ...]]] = [(0.0, ())]
    for _, paths in parts:  # pieces are independent: the best `most` of a prefix are enough
        ranks = [rank(path) for path in paths]
        further = ((total + value, (*way, path)) for total, way in ways for value, path in zip(ranks, paths))
        ways = heapq.nlargest(most, further, key=lambda way: way[0])
    firsts = [first for first, _ in parts]
    return [TransducerPath(np.sum([path.scores for path in way], axis=0).tolist(), _in_a_row(firsts, way)) for _, way in ways]


def _in_a_row(firsts: list[int], paths: Sequence[TransducerPath]) -> Spoken:
    """Concatenate the paths of pieces, and add each piece's first frame (`firsts`) to the frames of its steps."""
    steps = [path.steps for path in paths]
    ids, starts, ends, confidences = map(np.concatenate, zip(*steps))
    shifts = np.repeat(firsts, [len(each.ids) for each in steps])
    return Spoken(ids, starts + shifts, ends + shifts, confidences)
