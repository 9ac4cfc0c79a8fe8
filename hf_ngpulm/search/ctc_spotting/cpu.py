"""Find phrases in CTC outputs on the CPU, with the native core (`csrc/ctc_spotting.cpp`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from torch import Tensor

from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from ..ctc_rows import Frames
from . import Aligned, SpellingTree, Spot


class NgpulmSpellingTree(Struct):
    """`SpellingTree` and `Borders` for the native core."""


class NgpulmTranscripts(Struct):
    """The transcripts and alignments (`Aligned`) of all rows, one after the other, for the native core."""


class NgpulmSpots(Struct):
    """Arrays to which the native core writes the spots of all rows."""


_spot, _forced = Function("ngpulm_ctc_spot"), Function("ngpulm_ctc_forced")


def spotted(
    logits: Tensor, lengths: Tensor, blank: int, tree: SpellingTree, transcripts: Sequence[Aligned], most: int
) -> list[list[Spot]]:
    count, _, classes = logits.shape
    of_tree = tree.kept.get(classes)
    if of_tree is None:
        if len(tree.begins) != classes or int(tree.tokens.max(initial=-1)) >= classes:
            raise ValueError(f"the phrases are for {len(tree.begins)} classes, but the logits have {classes}")
        names = ("firsts", "tokens", "ends", "bounds", "needed", "delimiter", "slack")
        of_tree = tree.kept[classes] = NgpulmSpellingTree(
            **{name: getattr(tree, name) for name in names}, begins=tree.begins.view(np.uint8), num_nodes=len(tree.tokens)
        )
    offsets = _offsets([each.tokens for each in transcripts])
    tokens = _flat(each[name] for name in range(3) for each in transcripts)
    of_rows = NgpulmTranscripts(offsets=offsets, tokens=tokens, size=int(offsets[-1]))
    places, scores = np.empty((count, most, 5), dtype=np.int32), np.empty((count, most), dtype=np.float32)
    counts = np.zeros(count, dtype=np.int32)
    frames = Frames.of(logits, lengths, blank)
    spots = NgpulmSpots(places=places, scores=scores, counts=counts, most=most)
    on_rows(
        _spot, (frames, of_tree, of_rows, spots), count, logits.shape[1] * classes,
        "the transcript of row {} doesn't fit its frames".format,
    )  # fmt: skip
    spots_of_rows: list[list[Spot]] = [[] for _ in range(count)]
    for row in np.nonzero(counts)[0].tolist():
        each = zip(places[row, : counts[row]].tolist(), scores[row].tolist())
        spots_of_rows[row] = [Spot._make((*place, score)) for place, score in each]
    return spots_of_rows


def forced(logits: Tensor, lengths: Tensor, blank: int, rows: Sequence[int], readings: Sequence[Sequence[int]]) -> np.ndarray:
    scores = np.empty(len(readings))
    frames = Frames.of(logits, lengths, blank)
    of_rows = np.array(rows, dtype=np.int64)
    if len(of_rows) and not 0 <= of_rows.min() <= of_rows.max() < len(logits):
        raise IndexError(f"rows should lie in 0..{len(logits) - 1}, got {of_rows.min()}..{of_rows.max()}")
    arguments = (frames, of_rows, _offsets(readings), _flat(readings), scores)
    on_rows(_forced, arguments, len(readings), 64 * logits.shape[1], "reading {} has tokens that are no classes".format)
    return scores


def _offsets(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)


def _flat(rows: Iterable[Sequence[int]]) -> np.ndarray:
    return np.array(list(chain.from_iterable(rows)), dtype=np.int32)
