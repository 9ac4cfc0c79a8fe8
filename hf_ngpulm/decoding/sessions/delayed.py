"""Let a rescorer take part in a search: delayed fusion (arXiv 2501.09258).

Every few frames, the rescorer has a turn: it scores the complete words of the best hypotheses (`rescorer_best`). Until the next
turn, the rescorer's share is added to the scores of the hypotheses in the beam. Final scores have no such share. At the end,
the rescorer scores the whole texts, as without delayed fusion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..second_pass import per_row, share_of


class DelayedFusion:
    """Score the hypotheses of `Slots` during the search.

    Attributes:
        every: number of frames between two turns of the rescorer.
        turns: int64 `[S]`, for each slot: the time of the rescorer's next turn, in frames since the start of the utterance.
    """

    def __init__(self, slots: Any, every: int) -> None:
        self.slots, self.every = slots, every
        self.blank = slots.decoder.blank_id  # a transducer's history may have blanks
        count = len(slots.frames)
        rescorer, *weights = slots.decoder.options.second_pass
        self.best = slots.decoder.options.rescorer_best
        self.weights, self.bonuses = (np.array(per_row(name, each, count)) for name, each in zip(("weight", "bonus"), weights))
        self.texts = rescorer.growing(count)
        self.turns = np.full(count, every)

    def begin(self, slot: int) -> None:
        self.texts.begin(slot)
        self.turns[slot] = self.every

    def begin_all(self) -> None:
        for slot in range(len(self.turns)):
            self.begin(slot)

    def shares(self, slots: np.ndarray) -> np.ndarray:
        """Score the hypotheses of some slots at the rescorer's turn. Return the rescorer's share in each hypothesis's score,
        float64 `[N, K]` (see `share_of`).
        """
        self.turns[slots] += self.every
        live = self.slots.live()[slots]
        rows, places = np.nonzero(live)
        standing = self.slots.standing(slots)[live]
        texts: list[list[str]] = [[] for _ in slots]
        for row, slot, (count, tail) in zip(rows.tolist(), slots[rows].tolist(), self.ids(slots[rows], places)):
            text = self.slots.transcripts[slot].text(count, tail)
            texts[row].append(" ".join(text.split()[:-1]))  # more tokens may continue the last word
        shares, asked = np.zeros(live.shape), list[list[str]]()
        for row, of_row in enumerate(texts):
            order = np.argsort(-standing[rows == row], kind="stable").tolist()
            asked.append(list(dict.fromkeys(of_row[place] for place in order))[: self.best])
        for row, (slot, found, of_row) in enumerate(zip(slots, self._scores(slots.tolist(), asked), texts)):
            known = dict(zip(asked[row], found))
            scores = [known.get(text) for text in of_row]
            counts = [len(text.split()) for text in of_row]
            shares[row, live[row]] = share_of(scores, counts, self.weights[slot], self.bonuses[slot])
        return shares

    def _scores(self, slots: list[int], texts: list[list[str]]) -> list[list[float]]:
        """Return the rescorer's score of each text. `texts` has a list of texts for each slot. If the rescorer can't read one
        text of a slot, all texts of the slot score 0. The error is raised when the slot's utterance ends.
        """
        try:
            return self.texts.scores(slots, texts)
        except ValueError:
            if len(slots) == 1:
                return [[0.0] * len(texts[0])]
            return [self._scores([slot], [of_slot])[0] for slot, of_slot in zip(slots, texts)]

    def finish(self, slots: np.ndarray, texts: Sequence[Sequence[str]]) -> None:
        """Let the rescorer score the whole texts of ended utterances. The rescorer caches these scores for the second pass."""
        self.texts.scores(slots.tolist(), texts, ended=True)

    def ids(self, slots: np.ndarray, places: np.ndarray) -> Iterator[tuple[int, list[int]]]:
        """For each hypothesis, yield the number of tokens in the slot's transcript, and the hypothesis's tokens after the
        transcript. `slots`, `places`: each hypothesis's slot, and the hypothesis's index in the slot's beam.
        """
        sizes, tails = self.slots.history.tails_of(slots, places)
        for slot, size, tail in zip(slots.tolist(), sizes.tolist(), tails.ids.tolist()):
            yield len(self.slots.transcripts[slot].ids), [token for token in tail[:size] if token != self.blank]
