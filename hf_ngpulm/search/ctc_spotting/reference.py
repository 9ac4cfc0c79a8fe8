"""Find phrases in CTC outputs, and score token sequences. Phrases and places are processed one after the other.

This is the definition against which the native core is tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import ctc_loss

from . import Aligned, SpellingTree, Spot


def spotted(
    logits: Tensor, lengths: Tensor, blank: int, tree: SpellingTree, transcripts: Sequence[Aligned], most: int
) -> list[list[Spot]]:
    rows = []
    for row, length, transcript in zip(logits, lengths.tolist(), transcripts, strict=True):
        spots = sorted(_spots(row[:length].double(), blank, tree, transcript), key=lambda spot: (spot.score, -spot.end))
        best = {spot[:3]: spot for spot in spots}
        ordered = sorted(best.values(), key=lambda spot: (float(tree.needed[spot.spelling]) - spot.score, *spot[:3]))
        rows.append(ordered[:most])
    return rows


def _spots(logits: Tensor, blank: int, tree: SpellingTree, transcript: Aligned) -> Iterator[Spot]:
    tokens, starts, ends = transcript
    path = [blank] * len(logits)
    for token, start, end in zip(*transcript):
        path[start:end] = [token] * (end - start)
    relative = logits - logits[torch.arange(len(logits)), path][:, None]

    def lasts_on(frame: int) -> bool:
        return any(start < frame < end for start, end in zip(starts, ends))

    def after(frame: int) -> int:
        return sum(start < frame for start in starts)

    def ends_word(frame: int) -> bool:
        place = after(frame)
        return not lasts_on(frame) and (place in (0, len(tokens)) or bool(tree.begins[tokens[place]]))

    def starts_word(frame: int) -> bool:
        if tree.delimiter < 0:
            return ends_word(frame)
        place = after(frame)
        return not lasts_on(frame) and (place == 0 or tokens[place - 1] == tree.delimiter)

    seen = set()
    for number, spelling in enumerate(tree.spellings):
        if tuple(spelling) in seen:
            continue
        seen.add(tuple(spelling))
        best: dict[int, Spot] = {}  # by end: the spot with the best beginning
        for start in filter(starts_word, range(len(logits))):
            scores = {0: 0.0}  # by place in the sequence of a start, tokens and blanks
            for end in range(start + 1, len(logits) + 1):
                scores = dict(_next(scores, spelling, relative[end - 1].tolist(), blank, end - 1 == start))
                score = max(scores.get(place, -np.inf) for place in (2 * len(spelling) - 1, 2 * len(spelling)))
                if score > (best[end].score if end in best else -np.inf):
                    best[end] = Spot(number, after(start), after(end), start, end, score)
        least = tree.needed[number] - tree.slack
        yield from (spot for spot in best.values() if ends_word(spot.end) and spot.score >= least)


def _next(
    scores: dict[int, float], spelling: Sequence[int], frame: list[float], blank: int, is_first: bool
) -> Iterator[tuple[int, float]]:
    """Score one more frame. Yield a pair for each position in the phrase's alignment: the position, and its best score.

    Position 2i + 1 is token i, position 2i the blank after token i - 1. No phrase begins with a blank. `scores` are the scores
    before the frame, `frame` the logits, and `is_first` says whether the phrase may begin at this frame.
    """
    for place in range(1, 2 * len(spelling) + 1):
        token = spelling[(place - 1) // 2] if place % 2 else blank
        before = [place, place - 1] if place > 1 or is_first else [place]
        if place % 2 and place > 1 and spelling[(place - 3) // 2] != token:
            before.append(place - 2)
        best = max((scores[each] for each in before if each in scores), default=None)
        if best is not None:
            yield place, best + frame[token]


def forced(logits: Tensor, lengths: Tensor, blank: int, rows: Sequence[int], readings: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([_forced(logits[row, : lengths[row]], blank, reading) for row, reading in zip(rows, readings)])


def _forced(logits: Tensor, blank: int, reading: Sequence[int]) -> float:
    if not len(logits):
        return -np.inf if len(reading) else 0.0
    lengths, sizes = torch.tensor([len(logits)]), torch.tensor([len(reading)])
    return -float(ctc_loss(logits.double()[:, None], torch.tensor([list(reading)]), lengths, sizes, blank, reduction="none"))
