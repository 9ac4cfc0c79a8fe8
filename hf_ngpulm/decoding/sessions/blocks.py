"""Batches whose frames come in blocks: a session with a slot for each row. Offline decoding is one that is fed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.batches import Outputs, checked_lengths, tensor_of
from ...errors import InvalidLogitsError
from ...phrases import Booster
from ..hypotheses import Hypothesis
from ..partials import Spoken, Transcript
from .ctc import CTCSlots, confidences_of
from .session import Follower

# Makes of phrases what a row follows, and says with what weight.
ContextOf = Callable[[int, Any], tuple[Booster | None, float]]


class BlockStream:
    """A batch that is being decoded. Made by `CTCDecoder.stream` and `GraphDecoder.stream`.

    Frames come in blocks of any size (`add`), phrases may change between any two of them (`set_context`), and what has been
    said can be asked for at any time. The result doesn't depend on how the frames are cut, and what is kept doesn't grow with
    their number: all hypotheses begin alike, and of that only the tokens are kept.

    Args:
        slots: the search, a slot for each row.
        context_of: of the decoder.
    """

    def __init__(self, slots: CTCSlots, context_of: ContextOf) -> None:
        self.slots, self.decoder = slots, slots.decoder
        self.batch_size = len(slots.frames)
        self.device = slots.models.states.device
        self._context_of = context_of
        self._follower = Follower(self.decoder.fusion, slots)
        self._rows = np.arange(self.batch_size)
        self._transcripts = [
            Transcript(self.decoder.splitter, self.decoder.frame_seconds, self.decoder.confidence is not None)
            for _ in range(self.batch_size)
        ]

    @property
    def frames(self) -> list[int]:
        """Return how many frames of each row have been decoded."""
        return self.slots.frames.tolist()

    def set_context(self, row: int, phrases: Any) -> None:
        """Have a row go on with other phrases, which begin at the next frame.

        Matches in progress of the old ones are given up, and what they have earned is taken back.

        Args:
            row: its number.
            phrases: one context, as the decoder takes it; None for none.

        Raises:
            ValueError: no such row, or phrases that can't be followed.
        """
        if not 0 <= row < self.batch_size:
            raise ValueError(f"row should lie in 0..{self.batch_size - 1}, got {row!r}")
        booster, weight = self._context_of(row, phrases)
        if booster is None and not self.slots.has_phrases:
            return
        is_empty = (self.slots.history.sizes[row] == 0) & (not self._transcripts[row].ids)
        self._follower.follow(np.array([row]), [booster], torch.tensor([weight]), is_empty[None])

    def add(self, logits: Outputs, lengths: Outputs | None = None) -> None:
        """Decode more frames.

        Args:
            logits: `[B, T, C]`, the model's outputs (log-probabilities will do): a tensor, an array or lists.
            lengths: integers `[B]`, frames of each row; all T if left out.

        Raises:
            InvalidLogitsError: NaN or infinite logits, or a wrong shape. The stream stays as it was.
            ValueError: lengths that don't fit the logits.
        """
        logits = tensor_of(logits, "logits")
        lengths = check_logits(logits, lengths, self.decoder.blank_id)
        if logits.shape[0] != self.batch_size:
            raise ValueError(f"the logits have {logits.shape[0]} rows, the stream was opened for {self.batch_size}")
        if self.slots.classes not in (None, logits.shape[2]):
            raise InvalidLogitsError(f"the logits have {logits.shape[2]} classes, before they had {self.slots.classes}")
        self.add_checked(logits, lengths)

    def add_checked(self, logits: Tensor, lengths: Tensor) -> None:
        """Decode more frames, which `check_logits` has seen."""
        logits, lengths = logits.detach().to(self.device), lengths.to(self.device)
        self.slots.classes = logits.shape[2]
        size = self.slots.block_frames or max(1, logits.shape[1])
        if logits.shape[1] > size:  # a frame of a later block may be broken
            bad = ~torch.isfinite(torch.logsumexp(logits.float(), -1))
            bad &= torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
            refuse_broken(torch.where(bad.any(1), bad.int().argmax(1), -1))
        for first in range(0, logits.shape[1], size):
            block = logits[:, first : first + size]
            self._search(block, (lengths - first).clamp(0, block.shape[1]).to(torch.int32))

    def _search(self, logits: Tensor, lengths: Tensor) -> None:
        slots, everything = self.slots, slice(None)
        found = slots.search(everything, slots.models, logits, lengths)
        refuse_broken(found.bad_frames)
        confidences = confidences_of(logits, lengths, self.decoder.confidence)
        counts = lengths.cpu().numpy()
        slots.accept(self._rows, everything, found, counts, confidences)
        slots.frames += counts
        common, spoken = slots.history.hand_over(self._rows, slots.live())
        columns = [column.tolist() for column in spoken]
        first = 0
        for transcript, count in zip(self._transcripts, common.tolist()):
            if count:
                transcript.extend(*(column[first : first + count] for column in columns))
                first += count

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return for each row up to `num_return_sequences` hypotheses, the best one first, as if its utterance ended here."""
        return self._ranked(self.decoder.score_eos, self.decoder.num_return_sequences)

    def partials(self) -> list[Hypothesis]:
        """Return the best hypothesis of each row so far, where more may come: `</s>` doesn't count."""
        return [best for (best,) in self._ranked(False, 1)]

    def _ranked(self, score_eos: bool, most: int) -> list[list[Hypothesis]]:
        ranked = self.slots.ranked(slice(None), score_eos, most)
        rows = self._rows.repeat([len(found) for found in ranked])
        places = np.array([hypothesis.place for found in ranked for hypothesis in found], dtype=np.int64)
        sizes, tails = self.slots.history.tails_of(rows, places)
        listed: list[list[Hypothesis]] = []
        at = 0
        for transcript, frames, found in zip(self._transcripts, self.frames, ranked):
            listed.append([])
            for hypothesis in found:
                tail = Spoken(*(array[at, : sizes[at]] for array in tails))
                listed[-1].append(transcript.hypothesis(len(transcript.ids), tail, frames, *hypothesis[1:]))
                at += 1
        return listed


def check_logits(logits: Tensor, lengths: Outputs | None, blank_id: int) -> Tensor:
    """Return the lengths of the rows of some logits `[B, T, C]`, int32 `[B]`.

    Raises:
        InvalidLogitsError: a wrong shape or type, or no class that the blank could be.
        ValueError: lengths that don't fit the logits.
    """
    if logits.dim() != 3 or not logits.dtype.is_floating_point:
        raise InvalidLogitsError(
            f"logits should be floating point of the shape [B, T, C], got {logits.dtype} {tuple(logits.shape)}"
        )
    batch_size, frames, classes = logits.shape
    if blank_id >= classes:
        raise InvalidLogitsError(f"the blank has the id {blank_id}, but the logits have only {classes} classes")
    return checked_lengths(lengths, batch_size, frames, logits.device).to(torch.int32)


def refuse_broken(bad_frames: Tensor | np.ndarray) -> None:
    """Raise for the first row with a bad frame (not -1), before anything of the block is kept.

    Raises:
        InvalidLogitsError: names it.
    """
    for row, frame in enumerate(bad_frames.tolist()):
        if frame >= 0:
            raise InvalidLogitsError(
                f"the logits of row {row} hold NaN or infinity at frame {frame}: the model's output is broken "
                "(an overflow in half precision, or broken weights or audio)"
            )
