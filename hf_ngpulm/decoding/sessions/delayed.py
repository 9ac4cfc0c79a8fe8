"""Let a rescorer take part in a search: delayed fusion (arXiv 2501.09258).

Every few frames, the complete words of each hypothesis are scored, and the hypothesis's place in the beam depends on them from
then on. What was added leaves the scores at the end, where the whole texts are scored as without delayed fusion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..hypotheses import Hypothesis
from ..second_pass import per_row
from .session import Found


class DelayedFusion:
    """Score the hypotheses of `CTCSlots` during the search.

    Attributes:
        every: number of frames after which hypotheses are scored anew, counted from an utterance's first frame.
    """

    def __init__(self, slots: Any, every: int) -> None:
        self.slots, self.every = slots, every
        count = len(slots.frames)
        rescorer, *weights = slots.decoder.options.second_pass
        self.weights, self.bonuses = (np.array(per_row(name, each, count)) for name, each in zip(("weight", "bonus"), weights))
        self.texts = rescorer.growing(count)

    def begin(self, slot: int) -> None:
        self.texts.begin(slot)

    def begin_all(self) -> None:
        for slot in range(len(self.slots.frames)):
            self.begin(slot)

    def left(self, frames: np.ndarray) -> np.ndarray:
        """Return the number of frames until utterances of so many frames are scored the next time."""
        return self.every - frames % self.every

    def rescore(self, slots: np.ndarray) -> np.ndarray:
        """Score the hypotheses of some slots, and return what is to be added to their scores, float32 `[N, K]`.

        A hypothesis with one more complete word than another has already paid for it. For a fair comparison, the average score
        of the slot's words is taken off each of its words.
        """
        live = self.slots.live()[slots]
        rows, places = np.nonzero(live)
        ids = self._ids(slots[rows], places)
        texts: list[list[str]] = [[] for _ in slots]
        for row, slot, (count, tail) in zip(rows.tolist(), slots[rows].tolist(), ids):
            text = self.slots.transcripts[slot].text(count, tail)
            texts[row].append(" ".join(text.split()[:-1]))  # more tokens may continue the last word
        added = np.zeros(live.shape)
        for row, (slot, scores, of_row) in enumerate(zip(slots, self.texts.scores(slots.tolist(), texts), texts)):
            values, counts = np.array(scores), np.array([len(text.split()) for text in of_row])
            average = values.sum() / max(1, counts.sum())
            added[row, live[row]] = self.weights[slot] * (values - average * counts) + self.bonuses[slot] * counts
        return np.where(live, added - self.share(slots), 0.0).astype(np.float32)

    def share(self, slots: np.ndarray) -> np.ndarray:
        """Return what has been added to the scores of the hypotheses of some slots, `[N, K]`.

        It is the part of the scores that neither acoustics, n-gram models, phrases nor bonuses for tokens explain. The links of
        the beam can't tell it, because a hypothesis can take over the alignment of its parent, but not its parent's scores.
        """
        fused, weighted = self.slots.not_acoustic(slots)
        live = self.slots.live()[slots]
        share = np.where(live, fused - weighted, 0.0)
        unscored = self.slots.unscored()[slots]
        if unscored.any():
            rows, places = np.nonzero(live)
            first = self.slots.models.vocab_size
            for row, place, slot, (count, tail) in zip(rows, places, slots[rows], self._ids(slots[rows], places)):
                tokens = [*self.slots.transcripts[slot].ids[:count], *tail]
                share[row, place] -= unscored[row] * sum(token >= first for token in tokens)
        return share

    def ended(self, slots: np.ndarray, ranked: Sequence[Sequence[Found]]) -> list[list[Found]]:
        """Return ranked hypotheses of some slots with their scores without what was added."""
        return [
            [found._replace(scores=(found.scores[0] - share[found.place], *found.scores[1:])) for found in of_slot]
            for share, of_slot in zip(self.share(slots).tolist(), ranked)
        ]

    def finish(self, slots: np.ndarray, hypotheses: Sequence[Sequence[Hypothesis]]) -> None:
        """Let the rescorer score the whole texts of ended utterances; it remembers the scores for the second pass."""
        self.texts.scores(slots.tolist(), [[each.text for each in of_slot] for of_slot in hypotheses], ended=True)

    def _ids(self, slots: np.ndarray, places: np.ndarray) -> Iterator[tuple[int, list[int]]]:
        """Yield the tokens of hypotheses: the number of those in the slot's transcript, and the others."""
        sizes, tails = self.slots.history.tails_of(slots, places)
        for slot, size, tail in zip(slots.tolist(), sizes.tolist(), tails.ids.tolist()):
            yield len(self.slots.transcripts[slot].ids), tail[:size]
