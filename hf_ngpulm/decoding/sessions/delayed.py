"""Let a rescorer take part in a search: delayed fusion (arXiv 2501.09258).

Every few frames, the complete words of each hypothesis are scored, and the hypothesis's place in the beam depends on them from
then on. What was added leaves the scores at the end, where the whole texts are scored as without delayed fusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..hypotheses import Hypothesis
from ..second_pass import per_row

if TYPE_CHECKING:
    from .session import Found, Slots


class DelayedFusion:
    """Score the hypotheses of slots while they are searched.

    Attributes:
        every: number of frames after which hypotheses are scored anew, counted from an utterance's first frame.
        added: float64 `[S, K]`, what was added to the scores of the hypotheses that had each place at the last time.
    """

    def __init__(self, slots: Slots, every: int) -> None:
        self.slots, self.every = slots, every
        count = len(slots.frames)
        rescorer, *weights = slots.decoder.options.second_pass
        self.weights, self.bonuses = (np.array(per_row(name, each, count)) for name, each in zip(("weight", "bonus"), weights))
        self.texts = rescorer.growing(count)
        self.added = np.zeros(slots.history.sizes.shape)

    def begin(self, slot: int) -> None:
        self.texts.begin(slot)
        self.added[slot] = 0.0

    def begin_all(self) -> None:
        for slot in range(len(self.added)):
            self.begin(slot)

    def share(self, slots: np.ndarray) -> np.ndarray:
        """Return what has been added to the scores of the present hypotheses of some slots, `[N, K]`."""
        return np.take_along_axis(self.added[slots], self.slots.history.origins[slots], axis=1)

    def left(self, frames: np.ndarray) -> np.ndarray:
        """Return the number of frames until utterances of so many frames are scored the next time."""
        return self.every - frames % self.every

    def rescore(self, slots: np.ndarray) -> np.ndarray:
        """Score the hypotheses of some slots, and return what is to be added to their scores, `[N, K]`.

        A hypothesis with one more complete word than another has paid for it to the rescorer already. For a fair comparison
        each word also gets the average score of the row's words.
        """
        live = self.slots.live()[slots]
        rows, places = np.nonzero(live)
        texts: list[list[str]] = [[] for _ in slots]
        for row, text in zip(rows.tolist(), self._texts(slots[rows], places)):
            texts[row].append(" ".join(text.split()[:-1]))  # tokens may continue the last word
        scores = self.texts.scores(slots.tolist(), texts)
        new = np.zeros(live.shape)
        for row, (slot, of_row, words) in enumerate(zip(slots.tolist(), scores, (map(_words, each) for each in texts))):
            counts, values = np.array([*words]), np.array(of_row)
            average = values.sum() / max(1, counts.sum())
            new[row, live[row]] = self.weights[slot] * (values - average * counts) + self.bonuses[slot] * counts
        more = np.where(live, new - self.share(slots), 0.0)
        self.added[slots] = new
        self.slots.history.mark(slots)
        return more

    def ended(self, slots: np.ndarray, ranked: Sequence[Sequence[Found]]) -> list[list[Found]]:
        """Return ranked hypotheses of some slots with their scores without what was added."""
        return [
            [found._replace(scores=(found.scores[0] - share[found.place], *found.scores[1:])) if found.place >= 0 else found
             for found in of_slot]
            for share, of_slot in zip(self.share(slots).tolist(), ranked)
        ]  # fmt: skip

    def finish(self, slots: np.ndarray, hypotheses: Sequence[Sequence[Hypothesis]]) -> None:
        """Let the rescorer score the whole texts of ended utterances; it remembers the scores for the second pass."""
        self.texts.scores(slots.tolist(), [[each.text for each in of_slot] for of_slot in hypotheses], ended=True)

    def _texts(self, slots: np.ndarray, places: np.ndarray) -> list[str]:
        sizes, tails = self.slots.history.tails_of(slots, places)
        shared = [self.slots.transcripts[slot] for slot in slots.tolist()]
        more = (tail[:size] for tail, size in zip(tails.ids.tolist(), sizes.tolist()))
        return [transcript.text(len(transcript.ids), tail) for transcript, tail in zip(shared, more)]


def _words(text: str) -> int:
    return len(text.split())
