"""Define the slots and rules of CTC decoders. A slot holds the search of one stream, or of one row of a batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...fusion.rows import RowModels
from ...search.confidence import frame_confidence
from ...search.ctc_beam import BeamRules
from ...search.ctc_greedy import LabelRules
from ..hypotheses import Hypothesis
from .delayed import DelayedFusion
from .session import Found, Slots

# Cost of continuing a label under the rule "stay", per unit of LM weight: about the LM's cost of an average token. Without this
# cost, continuing a label would be cheaper than any new token, because only new tokens pay an LM score.
STAY_COST = 3.0
# Frames per block. After each block the tokens that all hypotheses share leave the history.
BLOCK_FRAMES = 256


class CTCSlots(Slots):
    """Base class of the slots of greedy search, beam search and graph search."""

    goes_on = True
    block_frames: int | None = None  # largest number of frames per search; None: no limit

    def __init__(self, decoder: Any, models: RowModels, num_beams: int) -> None:
        super().__init__(decoder, models, num_beams)
        self.classes: int | None = None
        # Sums of the confidences of all frames of each slot's utterance.
        self.sums = np.zeros(len(models.states))

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.sums[slot] = 0.0

    def refusal(self, chunk: Tensor) -> str | None:
        if chunk.dim() != 2 or not chunk.dtype.is_floating_point or (self.classes or chunk.shape[1]) != chunk.shape[1]:
            of_width = "C" if self.classes is None else str(self.classes)
            return f"should be logits, floating point of the shape [T, {of_width}], got {chunk.dtype} {tuple(chunk.shape)}"
        if self.decoder.blank_id >= chunk.shape[1]:
            return f"has only {chunk.shape[1]} classes, but the blank has the id {self.decoder.blank_id}"
        return None

    def step(self, slots: np.ndarray, chunks: Sequence[Tensor]) -> np.ndarray:
        lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int32)
        logits = torch.nn.utils.rnn.pad_sequence([chunk.detach() for chunk in chunks], batch_first=True)
        # If all slots are given in order, the search works in place instead of on copies.
        everything = np.array_equal(slots, np.arange(len(self.frames)))
        bad_frames = self.feed(None if everything else slots, logits, torch.from_numpy(lengths).to(logits.device), lengths)
        return np.where(bad_frames < 0, -1, self.frames[slots] + bad_frames)

    def feed(self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, counts: np.ndarray) -> np.ndarray:
        """Decode frames of some slots.

        Args:
            slots: int64 `[N]`, the slots' numbers; None for all slots.
            logits: `[N, T, C]`.
            lengths, counts: int32 `[N]`, number of frames of each slot; `lengths` is on the device, `counts` is on the CPU.

        Returns:
            int32 `[N]`, each slot's first frame with NaN or infinity, or -1 if all frames are finite. A slot with such a frame
            doesn't change.
        """
        self.classes = logits.shape[2]
        if self.delayed is not None:
            return self._feed_delayed(self.delayed, slots, logits, counts)
        return self._feed(slots, logits, lengths, counts)

    def _feed_delayed(self, delayed: DelayedFusion, slots: np.ndarray | None, logits: Tensor, counts: np.ndarray) -> np.ndarray:
        """Decode frames, and let the rescorer score the hypotheses at each turn of the rescorer."""
        rows, counts = np.arange(len(self.frames)) if slots is None else slots, counts.astype(np.int32)
        is_bad = ~torch.isfinite(torch.logsumexp(logits.float(), -1)).cpu().numpy()
        is_bad &= np.arange(logits.shape[1]) < counts[:, None]
        bad_frames = np.where(is_bad.any(1), is_bad.argmax(1), -1).astype(np.int32)
        left, done = np.where(bad_frames < 0, counts, 0), np.zeros_like(counts)
        while left.any():
            taken = np.minimum(left, delayed.turns[rows] - self.frames[rows]).astype(np.int32)
            places = np.minimum(done[:, None] + np.arange(taken.max()), logits.shape[1] - 1)
            piece = logits[np.arange(len(rows))[:, None], places]
            self._feed(slots, piece, torch.from_numpy(taken).to(logits.device), taken)
            left, done = left - taken, done + taken
            due = rows[self.frames[rows] == delayed.turns[rows]]
            if len(due):
                self.add_fused(due, (delayed.shares(due) - self.shares(delayed, due)).astype(np.float32))
        return bad_frames

    def shares(self, delayed: DelayedFusion, slots: np.ndarray) -> np.ndarray:
        """Return the rescorer's shares in the scores of the hypotheses of some slots, `[N, K]`.

        A hypothesis may take its alignment from its parent without the parent's scores, so a share can't be passed on from
        parents. Instead, the scores of the acoustics, n-gram models, phrases and token bonuses are subtracted from the
        hypothesis's score. The remaining score is the share.
        """
        fused, weighted = self.not_acoustic(slots)
        live = self.live()[slots]
        shares = np.where(live, fused - weighted, 0.0)
        unscored_classes = self.unscored()[slots]
        if unscored_classes.any():
            rows, places = np.nonzero(live)
            first = self.models.vocab_size
            for row, place, slot, (count, tail) in zip(rows, places, slots[rows], delayed.ids(slots[rows], places)):
                tokens = [*self.transcripts[slot].ids[:count], *tail]
                shares[row, place] -= unscored_classes[row] * sum(token >= first for token in tokens)
        return shares

    def _feed(self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, counts: np.ndarray) -> np.ndarray:
        """Run `feed` without a rescorer."""
        measure = self.decoder.options.measure
        confidences = None if measure is None else self.confidences(logits, lengths, measure)
        bad_frames = self.search(slots, logits, lengths, counts, confidences)
        rows = slice(None) if slots is None else slots
        self.frames[rows] += np.where(bad_frames < 0, counts, 0)
        return bad_frames

    def confidences(self, logits: Tensor, lengths: Tensor, measure: str) -> Tensor:
        """Return the confidence of each frame, float32 `[N, T]`; padding has arbitrary values."""
        # Without padding; and on a GPU, where computing it for padding costs less than separating the rows.
        if logits.device.type != "cpu" or not len(lengths) or int(lengths.min()) == logits.shape[1]:
            return frame_confidence(logits, measure)
        confidences = torch.zeros(logits.shape[:2])
        inside = torch.arange(logits.shape[1]) < lengths[:, None]
        frames = torch.cat([of_row[:length].detach().float() for of_row, length in zip(logits, lengths.tolist())])
        confidences[inside] = frame_confidence(frames[None], measure)[0]
        return confidences

    @abstractmethod
    def search(
        self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, counts: np.ndarray, confidences: Tensor | None
    ) -> np.ndarray:
        """Run the search for `feed`, without counting frames. `confidences` is float32 `[N, T]`, or None."""

    def add_fused(self, slots: np.ndarray, more: np.ndarray) -> None:
        """Add scores, float32 `[N, K]`, to the hypotheses of some slots in a beam search."""

    def standing(self, slots: np.ndarray) -> np.ndarray:
        """Return the scores by which a beam search prunes the hypotheses of some slots, `[N, K]`."""
        raise TypeError("greedy search has no such scores")

    def not_acoustic(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the non-acoustic scores of the hypotheses of some slots in a beam search.

        Returns:
            Two arrays of sums, float64 `[N, K]` each. The first adds all non-acoustic scores. The second adds only the scores
            of LMs, phrases and token bonuses.
        """
        raise TypeError("greedy search has no such scores")

    def unscored(self) -> np.ndarray:
        """Return each slot's weighted score for classes that aren't tokens of the LM, `[S]`. It replaces the LM score."""
        return unscored(self.models).cpu().numpy()

    def ended(self, slots: np.ndarray, ranked: list[list[Found]]) -> list[list[Found]]:
        if self.delayed is None:
            return ranked
        return [
            [found._replace(scores=(found.scores[0] - shares[found.place], *found.scores[1:])) for found in of_slot]
            for shares, of_slot in zip(self.shares(self.delayed, slots).tolist(), ranked)
        ]

    def finish(self, slot: int) -> list[Hypothesis]:
        return [hypothesis for hypothesis in super().finish(slot) if hypothesis.score > -np.inf]


def weighted_scores(slots: CTCSlots, rows: np.ndarray, lm_scores: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return each hypothesis's weighted score by language models and phrases, plus its token bonuses: float64 `[N, K]`.

    Args:
        rows: int64 `[N]`, numbers of the slots.
        lm_scores: `[N, K, M]`, unweighted scores by each automaton.
        sizes: `[N, K]`, number of tokens of each hypothesis.
    """
    weights = slots.models.weights.cpu().double().numpy()[rows]
    bonuses = slots.decoder.token_bonuses(slots.models).cpu().double().numpy()[rows]
    return (weights[:, None] * lm_scores).sum(2) + bonuses[:, None] * sizes


def label_rules(decoder: Any, models: RowModels) -> LabelRules:
    """Return the rules of greedy search."""
    stay_costs = STAY_COST * models.lm_weights
    return LabelRules(models.weights, stay_costs, decoder.blank_id, models.vocab_size, decoder.options.repeats)


def beam_rules(decoder: Any, models: RowModels, classes: int) -> BeamRules:
    """Return the rules of beam search over logits of C = `classes`."""
    options, hashes = decoder.options, decoder.text_hashes(classes, models.states.device)
    return BeamRules(
        models.weights, decoder.token_bonuses(models), unscored(models), decoder.blank_id, models.vocab_size,
        options.beam_threshold, options.blank_threshold, hashes,
    )  # fmt: skip


def unscored(models: RowModels) -> Tensor:
    """Return each row's weighted score for classes that aren't tokens of the LM, float32 `[B]`. It replaces the LM score.

    The score is the log-probability of one of V equally likely tokens. With a score of 0, such classes would win.
    """
    return -math.log(max(models.vocab_size, 1)) * models.lm_weights
