"""Batches whose frames come in blocks: a session with a slot for each row. Offline decoding is one that is fed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.batches import Outputs, checked_lengths, tensor_of
from ...errors import InvalidLogitsError
from ..decoder import refuse_broken
from ..hypotheses import Hypothesis
from .ctc import CTCSlots
from .session import Follower

KEPT_BYTES = 1 << 24


class BlockStream:
    """A batch that is being decoded. Made by `CTCDecoder.stream` and `GraphDecoder.stream`.

    Frames come in blocks of any size (`add`), phrases may change between any two of them (`set_context`), and what has been
    said can be asked for at any time. The result doesn't depend on how the frames are cut, and what is kept doesn't grow with
    their number: all hypotheses begin alike, and of that only the tokens are kept.

    Args:
        slots: the search, a slot for each row.
    """

    def __init__(self, slots: CTCSlots) -> None:
        self.slots, self.decoder = slots, slots.decoder
        self.batch_size = len(slots.frames)
        self.device = slots.models.states.device
        self._follower = Follower(slots)
        self._rows = np.arange(self.batch_size)
        self._is_fed = False

    def begin(self) -> None:
        """Begin anew, in the same memory."""
        self._is_fed = False
        self.slots.begin_all()

    @property
    def is_small(self) -> bool:
        """Return whether its memory may stay for another batch."""
        return self.slots.history.tails.nbytes < KEPT_BYTES

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
        self._follower.follow(np.array([row]), [self.decoder.followed(phrases, *self.decoder.fused_with(row))])

    def add(self, logits: Outputs, lengths: Outputs | None = None) -> None:
        """Decode more frames.

        Args:
            logits: `[B, T, C]`, the model's outputs (log-probabilities will do): a tensor, an array or lists.
            lengths: integers `[B]`, frames of each row; all T if left out.

        Raises:
            InvalidLogitsError: NaN or infinite logits, probabilities, or a wrong shape. The stream stays as it was.
            ValueError: lengths that don't fit the logits.
        """
        logits = tensor_of(logits, "logits")
        lengths = check_logits(logits, lengths, self.decoder.blank_id)
        refuse_probabilities(logits, lengths)
        if logits.shape[0] != self.batch_size:
            raise ValueError(f"the logits have {logits.shape[0]} rows, the stream was opened for {self.batch_size}")
        if self.slots.classes not in (None, logits.shape[2]):
            raise InvalidLogitsError(f"the logits have {logits.shape[2]} classes, before they had {self.slots.classes}")
        self.add_checked(logits, lengths)

    def add_checked(self, logits: Tensor, lengths: Tensor) -> None:
        """Decode more frames, which `check_logits` has seen."""
        logits, lengths = logits.detach().to(self.device), lengths.to(self.device)
        frames = logits.shape[1]
        size = self.slots.block_frames or max(1, frames)
        if frames <= size and not self._is_fed:
            self._search(logits, lengths.to(torch.int32))
            return
        if frames:  # a broken one must be found before any is searched
            bad = ~torch.isfinite(torch.logsumexp(logits.float(), -1))
            bad &= torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
            refuse_broken(torch.where(bad.any(1), bad.int().argmax(1), -1))
        for first in range(0, frames, size):
            block = logits[:, first : first + size]
            self._search(block, (lengths - first).clamp(0, block.shape[1]).to(torch.int32))

    def _search(self, logits: Tensor, lengths: Tensor) -> None:
        bad_frames = self.slots.feed(None, logits, lengths, lengths.cpu().numpy())
        if (bad_frames >= 0).any():
            self.begin()
            refuse_broken(bad_frames)
        if self._is_fed:  # what is fed once is read from the tails, which costs less
            self.slots.put_aside(self._rows)
        self._is_fed = True

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return for each row up to `num_return_sequences` hypotheses, the best one first, as if its utterance ended here."""
        options = self.decoder.options
        return self._ranked(options.score_eos, options.num_return_sequences)

    def partials(self) -> list[Hypothesis]:
        """Return the best hypothesis of each row so far, where more may come: `</s>` doesn't count."""
        return [best for (best,) in self._ranked(False, 1)]

    def _ranked(self, score_eos: bool, most: int) -> list[list[Hypothesis]]:
        return self.slots.written(self._rows, self.slots.ranked(slice(None), score_eos, most))


def check_logits(logits: Tensor, lengths: Outputs | None, blank_id: int) -> Tensor:
    """Return the lengths of the rows of some logits `[B, T, C]`, int32 `[B]`.

    Raises:
        InvalidLogitsError: a wrong shape or type, or no class that the blank could be.
        ValueError: lengths that don't fit the logits.
    """
    if logits.dim() != 3 or not logits.dtype.is_floating_point:
        problem = f"logits should be floating point of the shape [B, T, C], got {logits.dtype} {tuple(logits.shape)}"
        if logits.dim() == 2:
            problem += "; of one utterance add a batch dimension: logits[None]"
        raise InvalidLogitsError(problem)
    batch_size, frames, classes = logits.shape
    if blank_id >= classes:
        raise InvalidLogitsError(f"the blank has the id {blank_id}, but the logits have only {classes} classes")
    return checked_lengths(lengths, batch_size, frames, logits.device).to(torch.int32)


def check_utterances(logits: Tensor, lengths: Outputs | None, blank_id: int) -> Tensor:
    """Return the lengths of whole utterances, int32 `[B]`. Where none are given, padding at the end doesn't count: frames whose
    classes all have one and the same number, as no model's outputs have. Raises what `check_logits` raises."""
    checked = check_logits(logits, lengths, blank_id)
    if lengths is not None or not logits.shape[1]:
        return checked
    # Two classes of the last frames tell of most batches that they have no padding. A GPU looks at all: the host needn't wait.
    if logits.device.type == "cpu" and not bool((logits[:, -1, 0] == logits[:, -1, -1]).any()):
        return checked
    first = logits[..., :1]
    is_padding = (logits == first).all(-1) & first[..., 0].isfinite()
    ends = torch.arange(1, logits.shape[1] + 1, dtype=torch.int32, device=logits.device)
    return ends.masked_fill(is_padding, 0).amax(1)


def refuse_probabilities(logits: Tensor, lengths: Tensor) -> None:
    """Refuse what `softmax` made of a model's outputs.

    Raises:
        InvalidLogitsError: in all frames they are at least 0 and sum to 1.
    """
    if not logits.numel() or bool(logits[:, 0].amin(1).lt(0).all()):  # as in nearly all batches
        return
    rows = [frames[:length] for frames, length in zip(logits, lengths.tolist()) if length]
    sums = [frames.sum(-1, dtype=torch.float32) for frames in rows]  # of half precision maybe
    if rows and all(bool(frames.min() >= 0) and bool(((of - 1).abs() < 1e-2).all()) for frames, of in zip(rows, sums)):
        raise InvalidLogitsError(
            "these are probabilities, for all frames sum to 1; pass the logits, or the logarithms: probabilities.log()"
        )
