"""Decodings in progress: what a graph decoder keeps of a batch between one block of frames and the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..confidence import frame_confidence
from ..ctc.decoder import check_logits
from ..errors import InvalidLogitsError
from ..hypotheses import Hypothesis
from ..streaming.partials import Transcript
from .arcs import biased_arcs
from .search import graph_search, initial_state

if TYPE_CHECKING:
    from ..language_model import NGramLM
    from .decoder import GraphDecoder

# Frames that are searched before what all hypotheses have in common is put aside.
BLOCK_FRAMES = 256


class GraphStream:
    """A batch that is being decoded. Made by `GraphDecoder.stream`.

    Frames come in blocks of any size (`add`), phrases may change between any two of them (`set_context`), and what has been
    said can be asked for at any time. The result doesn't depend on how the frames are cut, and what is kept doesn't grow with
    their number: all hypotheses begin alike, and of that only the tokens are kept.
    """

    def __init__(self, decoder: GraphDecoder, batch_size: int, device: torch.device, phrases: Any) -> None:
        from ..streaming.history import History  # compiled loops: they aren't loaded before they are needed

        fusion = decoder.fusion
        self.decoder = decoder
        self.batch_size = batch_size
        self.device = device
        self.models = fusion.rows(batch_size, device)
        self._lms: list[NGramLM | None] = [*fusion.models * batch_size] if decoder.per_row is None else decoder.per_row
        self._roots = fusion.lm_roots(self.models, self._lms)
        self._contexts = decoder.contexts.of_rows(phrases, self._lms)
        self._biased = biased_arcs(self._contexts, self._roots, device)
        self._bonuses: Tensor | None = None
        self.state = initial_state(decoder.max_active, self.models.states[:, 0])
        self.history = History(batch_size, decoder.max_active, goes_on=True)
        self._rows = np.arange(batch_size)
        self._frames = np.zeros(batch_size, dtype=np.int64)
        self._sums = np.zeros(batch_size)  # of the confidences of all frames
        self._transcripts = [
            Transcript(decoder.splitter, decoder.frame_seconds, decoder.confidence is not None) for _ in range(batch_size)
        ]

    @property
    def frames(self) -> list[int]:
        """How many frames of each row have been decoded."""
        return self._frames.tolist()

    def set_context(self, row: int, phrases: Any) -> None:
        """Have a row go on with other phrases: arcs that are taken from the next frame on get their discounts, and no others.

        Args:
            row: its number.
            phrases: one context, see `GraphDecoder`; None for none.

        Raises:
            ValueError: no such row, or see `GraphDecoder.context`.
        """
        if not 0 <= row < self.batch_size:
            raise ValueError(f"row should lie in 0..{self.batch_size - 1}, got {row!r}")
        self._contexts[row] = self.decoder.contexts.of_row(phrases, self._lms[row], row)
        self._biased = biased_arcs(self._contexts, self._roots, self.device)

    def add(self, logits: Tensor, lengths: Tensor | None = None) -> None:
        """Decode more frames.

        Args:
            logits: `[B, T, C]`, the model's outputs (log-probabilities will do).
            lengths: integers `[B]`, frames of each row; all T if left out.

        Raises:
            InvalidLogitsError: NaN or infinite logits, or a wrong shape. The stream stays as it was.
            ValueError: lengths that don't fit the logits.
        """
        lengths = check_logits(logits, lengths, self.decoder.blank_id)
        if logits.shape[0] != self.batch_size:
            raise ValueError(f"the logits have {logits.shape[0]} rows, the stream was opened for {self.batch_size}")
        if self._bonuses is not None and self._bonuses.shape[1] != logits.shape[2]:
            raise InvalidLogitsError(f"the logits have {logits.shape[2]} classes, before they had {self._bonuses.shape[1]}")
        self.add_checked(logits, lengths)

    def add_checked(self, logits: Tensor, lengths: Tensor) -> None:
        """The same for what has been checked."""
        logits, lengths = logits.detach().to(self.device), lengths.to(self.device)
        if self._bonuses is None:
            self._bonuses = self.decoder.bonuses(self.models, logits.shape[2])
        if logits.shape[1] > BLOCK_FRAMES:  # a frame of a later block may be broken
            bad = ~torch.isfinite(torch.logsumexp(logits.float(), -1))
            bad &= torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
            _refuse(torch.where(bad.any(1), bad.int().argmax(1), -1))
        for first in range(0, logits.shape[1], BLOCK_FRAMES):
            block = logits[:, first : first + BLOCK_FRAMES]
            self._search(block, (lengths - first).clamp(0, block.shape[1]).to(torch.int32))

    def _search(self, logits: Tensor, lengths: Tensor) -> None:
        decoder, history = self.decoder, self.history
        assert self._bonuses is not None
        state, frames = graph_search(
            self.models.tensors, self.state, logits, lengths, self.models.weights[:, 0].contiguous(), self._bonuses,
            self._biased, decoder.blank_id, self.models.vocab_size, decoder.beam_threshold, decoder.blank_threshold,
            decoder.engine,
        )  # fmt: skip
        _refuse(frames.bad_frames)
        self.state = state
        confidences = np.zeros(logits.shape[:2], dtype=np.float32)
        if decoder.confidence is not None:
            confidences = frame_confidence(logits, decoder.confidence).cpu().numpy()
        counts, live = lengths.cpu().numpy(), self._live()
        links, labels = frames.links.cpu().numpy(), frames.labels.cpu().numpy()
        history.follow_frames(self._rows, links, labels, counts, self._frames, self._sums, confidences, live)
        self._frames += counts
        common, spoken = history.hand_over(self._rows, live)
        columns = [column.tolist() for column in spoken]
        first = 0
        for transcript, count in zip(self._transcripts, common.tolist()):
            if count:
                transcript.extend(*(column[first : first + count] for column in columns))
                first += count

    def _live(self) -> np.ndarray:
        return (self.state.scores > -torch.inf).cpu().numpy()

    def hypotheses(self) -> list[list[Hypothesis]]:
        """For each row up to `num_return_sequences` hypotheses, the best one first, as if its utterance ended here."""
        return self._ranked(self.decoder.score_eos, self.decoder.num_return_sequences)

    def partials(self) -> list[Hypothesis]:
        """The best hypothesis of each row so far, where more may come: `</s>` doesn't count."""
        return [best for (best,) in self._ranked(False, 1)]

    def _ranked(self, score_eos: bool, most: int) -> list[list[Hypothesis]]:
        state = self.state
        ends = (state.lm_scores[..., None], state.lm_states[..., None])
        scores, lm_scores, _ = self.models.at_end(state.scores, *ends, score_eos, self.decoder.engine)
        # The same tokens may have come to two search states: behind a blank, and with the last of them going on.
        scores, places = scores.topk(min(2 * most, scores.shape[1]) if most > 1 else 1, dim=1)
        acoustic_scores = state.scores - state.fused
        parts = (value.gather(1, places) for value in (acoustic_scores, lm_scores, state.phrase_scores))
        columns = torch.stack([scores, *parts], 2).tolist()
        rows = self._rows.repeat(places.shape[1])
        sizes, tails = self.history.tails_of(rows, places.cpu().numpy().reshape(-1))
        found: list[list[Hypothesis]] = []
        for row, (transcript, figures) in enumerate(zip(self._transcripts, columns)):
            n_best: dict[bytes, Hypothesis] = {}
            for at, (score, acoustic_score, lm_score, phrase_score) in enumerate(figures, row * places.shape[1]):
                tail = type(tails)(*(array[at, : sizes[at]] for array in tails))
                tokens = tail.ids.tobytes()
                if len(n_best) < most and tokens not in n_best and (score > -torch.inf or not n_best):
                    n_best[tokens] = transcript.hypothesis(
                        len(transcript.ids), tail, int(self._frames[row]), score, acoustic_score, lm_score, phrase_score
                    )
            found.append([*n_best.values()])
        return found


def _refuse(bad_frames: Tensor) -> None:
    """Raise for the first row with a bad frame (not -1), before anything of the block is kept."""
    for row, frame in enumerate(bad_frames.tolist()):
        if frame >= 0:
            raise InvalidLogitsError(
                f"the logits of row {row} hold NaN or infinity at frame {frame}: the model's output is broken "
                "(an overflow in half precision, or broken weights or audio)"
            )
