"""Find phrases that could replace words of a CTC transcript, and score token sequences against CTC outputs.

The method follows Andrusenko et al., "Fast context-biasing for CTC and transducer ASR models with CTC-based word spotter"
(Interspeech 2024, arXiv 2406.07096). A transcript has an alignment, which labels each frame with a token or the blank. A phrase
may replace some words of the transcript, or be inserted between two words. So a phrase begins and ends at frames between words
of the alignment. The phrase's score is the natural log of a likelihood ratio: the score of the phrase's best alignment to its
frames, minus the score of the transcript's alignment to the same frames. So logits need not be normalised.

A spot is a phrase that may replace certain words. The phrase may end at several frames between words. For each end, only the
best beginning counts. The spot's score is the best score of all ends.

The search walks through the tree of all spellings. It drops partial spellings that score less than `needed - slack`. If
`needed` is negative, a partial spelling with n of the N tokens must instead score at least `needed * n / N - slack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...engines.choice import engine_module, engine_name

SLACK, MOST = 2.0, 32


class Spot(NamedTuple):
    """A phrase that may replace the transcript's tokens `first .. last - 1`, at the frames `start .. end - 1`.

    `spelling` is the index of the phrase's spelling in the tree, `score` the phrase's score.
    """

    spelling: int
    first: int
    last: int
    start: int
    end: int
    score: float


@dataclass(frozen=True, eq=False)
class SpellingTree:
    """Spellings as a tree, whose nodes are numbered breadth first. Node 0 is the root. The children of node n are the nodes
    `firsts[n] .. firsts[n + 1] - 1`, in the order of their tokens.
    """

    spellings: Sequence[Sequence[int]]
    firsts: np.ndarray  # int32 [nodes + 1]
    tokens: np.ndarray  # int32 [nodes], token that leads to a node; -1 for the root
    ends: np.ndarray  # int32 [nodes], index of the spelling that ends at a node (the first of equal spellings), or -1
    bounds: np.ndarray  # float32 [nodes], lowest score with which the search continues from a node
    needed: np.ndarray  # float32 [spellings], lowest score of a spot, before `slack` is subtracted
    begins: np.ndarray  # bool [C], whether a word ends before this class
    delimiter: int  # the class between words, which is part of no word; -1 without one
    slack: float
    kept: dict[int, Any] = field(default_factory=dict, repr=False)  # by number of classes, for the core

    @classmethod
    def of(
        cls, spellings: Sequence[Sequence[int]], needed: Sequence[float] | np.ndarray, begins: np.ndarray, delimiter: int = -1,
        slack: float = SLACK,
    ) -> SpellingTree:  # fmt: skip
        """Return the tree of spellings. No spelling may be empty. The other arguments are attributes of the tree."""
        sizes = np.array([len(each) for each in spellings], dtype=np.int64)
        longest = int(sizes.max(initial=0))
        padded = np.full((len(spellings), longest), -1, dtype=np.int32)
        padded[np.arange(longest) < sizes[:, None]] = [token for each in spellings for token in each]
        order = np.lexsort(padded.T[::-1]) if longest else np.zeros(0, dtype=np.int64)
        padded, sizes = padded[order], sizes[order]
        least = np.asarray(needed, dtype=np.float64)
        least_of, shares = least[order], least[order] / np.maximum(sizes, 1)
        differs = np.zeros(len(order), dtype=bool)
        differs[:1] = True
        parents, all_parents = np.zeros(len(order), dtype=np.int64), [np.zeros(0, dtype=np.int64)]
        tokens, ends = [np.array([-1])], [np.array([-1])]
        bounds, count = [np.array([0.0])], 1
        for depth in range(longest):
            differs[1:] |= padded[1:, depth] != padded[:-1, depth]
            inside = sizes > depth
            (rows,) = np.nonzero(differs & inside)
            numbers = count - 1 + np.cumsum(differs & inside)  # the node of each spelling at this depth
            of_depth = np.full(len(rows), -1)
            (complete,) = np.nonzero(sizes == depth + 1)
            of_depth[(numbers[complete] - count)[::-1]] = order[complete][::-1]
            lowest = np.where(inside, np.maximum(least_of, shares * (depth + 1)), np.inf)
            tokens.append(padded[rows, depth])
            ends.append(of_depth)
            bounds.append(np.minimum.reduceat(lowest, rows) - slack)
            all_parents.append(parents[rows])
            parents, count = numbers, count + len(rows)
        firsts = 1 + np.concatenate([[0], np.cumsum(np.bincount(np.concatenate(all_parents), minlength=count))])
        of_tokens, of_ends = (np.concatenate(each).astype(np.int32) for each in (tokens, ends))
        of_bounds, of_needs = (each.astype(np.float32) for each in (np.concatenate(bounds), least))
        return cls(spellings, firsts.astype(np.int32), of_tokens, of_ends, of_bounds, of_needs, begins, delimiter, slack)


class Aligned(NamedTuple):
    """A transcript with its alignment: the tokens, each token's first frame, and the frame after each token's last frame."""

    tokens: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]


def spotted(
    logits: Tensor, lengths: Tensor, blank: int, tree: SpellingTree, transcripts: Sequence[Aligned], most: int = MOST,
    engine: str = "auto",
) -> list[list[Spot]]:  # fmt: skip
    """Return up to `most` spots of each row, in descending order of score minus `needed`. The search runs on the CPU.

    Args:
        logits: `[B, T, C]`, of any precision; need not be normalised.
        lengths: integers `[B]`, number of frames of each row.
        tree: spellings of the phrases.
        transcripts: one transcript per row.
        engine: "reference"; any other engine means the native core.
    """
    return _engine(engine).spotted(logits.cpu(), lengths.cpu(), blank, tree, transcripts, most)


def forced(
    logits: Tensor, lengths: Tensor, blank: int, rows: Sequence[int], readings: Sequence[Sequence[int]], engine: str = "auto"
) -> np.ndarray:
    """For each token sequence, sum the probabilities of all alignments. Return the logs of these sums, float64 `[N]`. A
    sequence that doesn't fit into the frames gets -inf.

    If the logits aren't normalised, all values of a row are shifted by the same constant. The computation runs on the CPU.

    Args:
        logits, lengths: as for `spotted`.
        rows: N indices, the row of the logits that belongs to each token sequence.
        readings: N token sequences.
    """
    return _engine(engine).forced(logits.cpu(), lengths.cpu(), blank, rows, readings)


def aligned(logits: Tensor, tokens: Sequence[int], blank: int) -> tuple[list[int], list[int]]:
    """Return each token's first frame, and the frame after each token's last frame, in the best alignment to logits `[T, C]`.

    Raises ValueError if the tokens don't fit into the frames.
    """
    labels = [blank, *(label for token in tokens for label in (token, blank))]
    scores, before = np.full(len(labels) + 2, -np.inf), []
    scores[2] = 0.0  # two more entries in front, so that the first labels can also be shifted by one or two
    skips = [place % 2 == 1 and place > 1 and labels[place] != labels[place - 2] for place in range(len(labels))]
    of_labels = logits.double().numpy()[:, labels]
    for number, frame in enumerate(of_labels):
        steps = np.stack([scores[2:], scores[1:-1], np.where(skips, scores[:-2], -np.inf)])
        if not number:
            steps[1:, 2:] = -np.inf
        before.append(steps.argmax(0))
        scores[2:] = steps.max(0) + frame
    place = len(labels) - 1 - int(scores[-2] > scores[-1]) if tokens else 0
    if not scores[2 + place] > -np.inf:
        raise ValueError(f"{len(tokens)} tokens don't fit into {len(logits)} frames")
    starts, ends = [0] * len(tokens), [0] * len(tokens)
    for number in range(len(logits) - 1, -1, -1):
        if place % 2:
            starts[place // 2] = number
            ends[place // 2] = max(ends[place // 2], number + 1)
        place -= int(before[number][place])
    return starts, ends


def _engine(name: str) -> Any:
    is_reference = engine_name(name, torch.device("cpu")) == "reference"
    return engine_module(__package__, "reference" if is_reference else "cpu")
