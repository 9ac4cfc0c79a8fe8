"""Define `BlockStream`, which decodes a batch whose frames arrive in blocks. Offline decoding uses a single block."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.batches import Outputs, checked_frames, tensor_of
from ...errors import InvalidLogitsError
from ..decoder import refuse_broken
from ..hypotheses import Hypothesis
from .ctc import CTCSlots
from .session import Follower

KEPT_BYTES = 1 << 24


class BlockStream:
    """Decode a batch block by block. `CTCDecoder.stream` and `GraphDecoder.stream` return this object.

    `add` takes frames in blocks of any size, `set_context` changes phrases between blocks, and `partials` and `hypotheses`
    return results at any time. Block sizes don't change the results. The search's memory doesn't grow with the number of
    frames: only the transcripts grow.

    Args:
        slots: the search, with a slot for each row.
    """

    def __init__(self, slots: CTCSlots) -> None:
        self.slots, self.decoder = slots, slots.decoder
        self.batch_size = len(slots.frames)
        self.device = slots.models.states.device
        self._follower = Follower(slots)
        self._rows = np.arange(self.batch_size)
        self._is_fed = False

    def begin(self) -> None:
        """Begin new utterances and reuse the memory."""
        self._is_fed = False
        self.slots.begin_all()

    @property
    def is_small(self) -> bool:
        """Return whether the stream is small enough to keep its memory for the next batch."""
        return self.slots.history.tails.nbytes < KEPT_BYTES

    @property
    def frames(self) -> list[int]:
        """Return the number of decoded frames of each row."""
        return self.slots.frames.tolist()

    def set_context(self, row: int, phrases: Any) -> None:
        """Switch a row to other phrases from the next frame on.

        Unfinished matches of the old phrases end and repay their bonus.

        Args:
            row: the row's number.
            phrases: one context, in any form that the decoder accepts; None for no phrases.

        Raises:
            ValueError: there is no such row, or the phrases are invalid.
        """
        if not 0 <= row < self.batch_size:
            raise ValueError(f"row should lie in 0..{self.batch_size - 1}, got {row!r}")
        self._follower.follow(np.array([row]), [self.decoder.followed(phrases, *self.decoder.fused_with(row))])

    def add(self, logits: Outputs, lengths: Outputs | None = None) -> None:
        """Decode more frames.

        Args:
            logits: `[B, T, C]`, the model's outputs or log-probabilities: a tensor, an array or lists.
            lengths: integers `[B]`, number of frames of each row (default T).

        Raises:
            InvalidLogitsError: the logits hold NaN or infinity, are probabilities, or have a wrong shape. The stream is
                unchanged.
            ValueError: the lengths don't fit the logits.
        """
        logits = tensor_of(logits, "logits")
        lengths = check_logits(logits, lengths, self.decoder.blank_id)
        refuse_probabilities(logits, lengths)
        if logits.shape[0] != self.batch_size:
            raise ValueError(f"the logits have {logits.shape[0]} rows, the stream was opened for {self.batch_size}")
        if self.slots.classes not in (None, logits.shape[2]):
            raise InvalidLogitsError(f"the logits have {logits.shape[2]} classes, but {self.slots.classes} in earlier blocks")
        self.add_checked(logits, lengths)

    def add_checked(self, logits: Tensor, lengths: Tensor) -> None:
        """Decode more frames that `check_logits` has validated."""
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
        if self._is_fed:  # after a single block, reading the tails costs less
            self.slots.put_aside(self._rows)
        self._is_fed = True

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return up to `num_return_sequences` hypotheses per row, the best one first, as if the utterances ended now."""
        return self.decoder.rescored(self.searched())

    def searched(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each row as the search found them, without a rescorer."""
        return self.slots.searched(slice(None))

    def partials(self) -> list[Hypothesis]:
        """Return the best hypothesis of each row so far, without the score of `</s>`."""
        return [best for (best,) in self.slots.written(self._rows, self.slots.ranked(slice(None), False, 1))]


def check_logits(logits: Tensor, lengths: Outputs | None, blank_id: int) -> Tensor:
    """Validate logits `[B, T, C]` and return the lengths of their rows, int32 `[B]`. Raises InvalidLogitsError if the shape or
    type is wrong, or if `blank_id` isn't a class. Raises ValueError if the lengths don't fit the logits.
    """
    checked = checked_frames(logits, lengths, "logits", "C")
    if blank_id >= logits.shape[2]:
        raise InvalidLogitsError(f"the blank has the id {blank_id}, but the logits have only {logits.shape[2]} classes")
    return checked.to(torch.int32)


def check_utterances(logits: Tensor, lengths: Outputs | None, blank_id: int) -> Tensor:
    """Validate the logits of whole utterances and return their lengths, int32 `[B]`. Errors are as for `check_logits`.

    If `lengths` is None, the padding at the end of a row doesn't count. A frame is padding if all its classes have the same
    value. No model returns such frames.
    """
    checked = check_logits(logits, lengths, blank_id)
    if lengths is not None or not logits.shape[1]:
        return checked
    # In most batches, two classes of the last frames show that there is no padding. A GPU checks all frames instead, so that
    # the host needn't wait for the comparison.
    if logits.device.type == "cpu" and not bool((logits[:, -1, 0] == logits[:, -1, -1]).any()):
        return checked
    first = logits[..., :1]
    is_padding = (logits == first).all(-1) & first[..., 0].isfinite()
    ends = torch.arange(1, logits.shape[1] + 1, dtype=torch.int32, device=logits.device)
    return ends.masked_fill(is_padding, 0).amax(1)


def refuse_probabilities(logits: Tensor, lengths: Tensor) -> None:
    """Refuse probabilities (outputs of a softmax) in place of logits. Raises InvalidLogitsError if all values are at least 0,
    and each frame sums to 1.
    """
    if not logits.numel() or bool(logits[:, 0].amin(1).max() < 0):  # nearly all batches end here
        return
    rows = [frames[:length] for frames, length in zip(logits, lengths.tolist()) if length]
    sums = [frames.sum(-1, dtype=torch.float32) for frames in rows]  # logits may have half precision
    if rows and all(bool(frames.min() >= 0) and bool(((of - 1).abs() < 1e-2).all()) for frames, of in zip(rows, sums)):
        raise InvalidLogitsError("these are probabilities (every frame sums to 1); pass the logits, or probabilities.log()")
