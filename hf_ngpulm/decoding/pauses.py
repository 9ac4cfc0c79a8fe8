"""Cut recordings of transducers where nothing is said, and put together what is found of the pieces.

A prediction network that has learned from single sentences expects nothing after one; neither does an LM of single sentences.
So each piece is decoded as a recording of its own. A pause is where the model hears nothing, though it has said nothing yet: a
run of frames whose blank is likelier than all tokens together before the first token.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..search.networks.model import TransducerModel
from .partials import Spoken
from .sessions.transducer import Path

QUIET = 0.5  # probability of the blank
FRAMES_AT_ONCE, PIECES_AT_ONCE = 1024, 64


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
    search: Callable[[Tensor, list[Piece]], list[list[Path]]],
    num_rows: int,
    rank: Callable[[Path], float],
    most: int,
) -> list[list[Path]]:
    """Return the paths of a batch that is searched piece by piece, pieces of about one size together.

    Args:
        frames: `[B, T, D]`.
        search: from the frames of pieces, `[P, T, D]`, and these, to the paths of each.
        num_rows: B.
        rank: how good a path is beside others of its piece.
        most: paths of a row, at most.
    """
    order = sorted(range(len(pieces)), key=lambda i: pieces[i].last - pieces[i].first)
    paths: dict[int, list[Path]] = {}
    for first in range(0, len(order), PIECES_AT_ONCE):
        group = order[first : first + PIECES_AT_ONCE]
        parts = [frames[pieces[i].row, pieces[i].first : pieces[i].last] for i in group]
        paths.update(zip(group, search(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True), [pieces[i] for i in group])))
    of_rows: list[list[tuple[int, list[Path]]]] = [[] for _ in range(num_rows)]
    for i, piece in enumerate(pieces):
        of_rows[piece.row].append((piece.first, paths[i]))
    return [_joined(parts, rank, most) for parts in of_rows]


def _joined(parts: list[tuple[int, list[Path]]], rank: Callable[[Path], float], most: int) -> list[Path]:
    """Return the best ways to put paths of pieces together, given the first frame of each piece."""
    ways: list[tuple[float, tuple[Path, ...]]] = [(0.0, ())]
    for _, paths in parts:
        ranks = [rank(path) for path in paths]
        further = ((total + value, (*way, path)) for total, way in ways for value, path in zip(ranks, paths))
        ways = heapq.nlargest(most, further, key=lambda way: way[0])
    firsts = [first for first, _ in parts]
    return [Path(np.sum([path.scores for path in way], axis=0).tolist(), _in_a_row(firsts, way)) for _, way in ways]


def _in_a_row(firsts: list[int], paths: Sequence[Path]) -> Spoken:
    """Return the steps of paths one after the other, each from its first frame on."""
    steps = [path.steps for path in paths]
    ids, starts, ends, confidences = map(np.concatenate, zip(*steps))
    shifts = np.repeat(firsts, [len(part.ids) for part in steps])
    return Spoken(ids, starts + shifts, ends + shifts, confidences)
