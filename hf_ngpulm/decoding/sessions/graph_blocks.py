"""Decodings in progress: what a graph decoder keeps of a batch between one block of frames and the next."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...common.batches import Outputs, tensor_of
from ...errors import InvalidLogitsError
from ...fusion.fusion import Fusion
from ...phrases import Booster
from ...search.confidence import frame_confidence
from ..ctc import check_logits
from ..hypotheses import Hypothesis

if TYPE_CHECKING:
    from ...language_model.model import NGramLM
    from ..graph import GraphDecoder

# Frames that are searched before what all hypotheses have in common is put aside.
BLOCK_FRAMES = 256


class GraphStream:
    """A batch that is being decoded. Made by `GraphDecoder.stream`.

    Frames come in blocks of any size (`add`), phrases may change between any two of them (`set_context`), and what has been
    said can be asked for at any time. The result doesn't depend on how the frames are cut, and what is kept doesn't grow with
    their number: all hypotheses begin alike, and of that only the tokens are kept.
    """

    def __init__(self, decoder: GraphDecoder, batch_size: int, device: torch.device, phrases: Any) -> None:
        # Compiled loops aren't loaded before they are needed; and streams of all kinds need this decoder.
        from ..partials import Transcript
        from .graph import GraphSlots

        fusion = decoder.fusion
        self.decoder = decoder
        self.batch_size = batch_size
        self.device = device
        self._lms: list[NGramLM | None] = [*fusion.models * batch_size] if decoder.per_row is None else decoder.per_row
        self._lm_weights = decoder.lm_weights(batch_size)
        contexts = decoder.contexts.of_rows(phrases, self._lms, self._lm_weights)
        models = fusion.rows(batch_size, device, contexts if any(context is not None for context in contexts) else None)
        self.slots = GraphSlots(decoder, models)
        self._held: dict[int, Any] = {}  # by row, the phrases that it has switched to
        weakref.finalize(self, _release, fusion, self._held)
        self._rows = np.arange(batch_size)
        self._transcripts = [
            Transcript(decoder.splitter, decoder.frame_seconds, decoder.confidence is not None) for _ in range(batch_size)
        ]

    @property
    def frames(self) -> list[int]:
        """How many frames of each row have been decoded."""
        return self.slots.frames.tolist()

    def set_context(self, row: int, phrases: Any) -> None:
        """Have a row go on with other phrases, which begin at the next frame.

        Matches in progress of the old ones are given up, and what they have earned is taken back.

        Args:
            row: its number.
            phrases: one context, see `GraphDecoder`; None for none.

        Raises:
            ValueError: no such row, or see `GraphDecoder.context`.
        """
        if not 0 <= row < self.batch_size:
            raise ValueError(f"row should lie in 0..{self.batch_size - 1}, got {row!r}")
        context = self.decoder.contexts.of(phrases, self._lms[row], self._lm_weights[row])
        models = self.slots.models
        is_wide = models.states.shape[1] > models.num_lms  # has room for an automaton of phrases
        if context is not None or is_wide:
            self._switch(row, context, is_wide)

    def _switch(self, row: int, booster: Booster | None, is_wide: bool) -> None:
        from .session import Switch

        slots, fusion = self.slots, self.decoder.fusion
        if not is_wide:
            models, shift = fusion.in_pool(slots.models, self.device)
            slots.widen(models.widened(), shift)
        phrases: Any = [] if booster is None else booster
        fusion.hold(phrases)
        (place,), pool = fusion.places([phrases], self.device)
        if pool.tensors is not slots.models.tensors:
            slots.use(pool.tensors)
        is_empty = (slots.history.sizes[row] == 0) & (not self._transcripts[row].ids)
        starts, roots = np.array([[place.start], [place.root]], dtype=np.int32)
        slots.switch(np.array([row]), Switch(starts, roots, torch.ones(1), is_empty[None]))
        if row in self._held:
            fusion.hold(self._held[row], -1)
        self._held[row] = phrases

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
        """The same for what has been checked."""
        logits, lengths = logits.detach().to(self.device), lengths.to(self.device)
        self.slots.classes = logits.shape[2]
        if logits.shape[1] > BLOCK_FRAMES:  # a frame of a later block may be broken
            bad = ~torch.isfinite(torch.logsumexp(logits.float(), -1))
            bad &= torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
            _refuse(torch.where(bad.any(1), bad.int().argmax(1), -1))
        for first in range(0, logits.shape[1], BLOCK_FRAMES):
            block = logits[:, first : first + BLOCK_FRAMES]
            self._search(block, (lengths - first).clamp(0, block.shape[1]).to(torch.int32))

    def _search(self, logits: Tensor, lengths: Tensor) -> None:
        slots, everything = self.slots, slice(None)
        state, frames = slots.search_frames(everything, slots.models, slots.state, logits, lengths)
        _refuse(frames.bad_frames)
        confidences = np.zeros(logits.shape[:2], dtype=np.float32)
        if self.decoder.confidence is not None:
            confidences = frame_confidence(logits, self.decoder.confidence).cpu().numpy()
        counts = lengths.cpu().numpy()
        slots.follow(self._rows, everything, state, frames, counts, confidences)
        slots.frames += counts
        common, spoken = slots.history.hand_over(self._rows, slots.live())
        columns = [column.tolist() for column in spoken]
        first = 0
        for transcript, count in zip(self._transcripts, common.tolist()):
            if count:
                transcript.extend(*(column[first : first + count] for column in columns))
                first += count

    def hypotheses(self) -> list[list[Hypothesis]]:
        """For each row up to `num_return_sequences` hypotheses, the best one first, as if its utterance ended here."""
        return self._ranked(self.decoder.score_eos, self.decoder.num_return_sequences)

    def partials(self) -> list[Hypothesis]:
        """The best hypothesis of each row so far, where more may come: `</s>` doesn't count."""
        return [best for (best,) in self._ranked(False, 1)]

    def _ranked(self, score_eos: bool, most: int) -> list[list[Hypothesis]]:
        from ..partials import Spoken

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


def _refuse(bad_frames: Tensor) -> None:
    """Raise for the first row with a bad frame (not -1), before anything of the block is kept."""
    for row, frame in enumerate(bad_frames.tolist()):
        if frame >= 0:
            raise InvalidLogitsError(
                f"the logits of row {row} hold NaN or infinity at frame {frame}: the model's output is broken "
                "(an overflow in half precision, or broken weights or audio)"
            )


def _release(fusion: Fusion, held: dict[int, Any]) -> None:
    for phrases in held.values():
        fusion.hold(phrases, -1)
