"""Decodings in progress: what a decoder keeps of a batch between one block of frames and the next."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.ops import engine_name
from ...common.batches import Outputs, packed_frames, tensor_of
from ...errors import InvalidLogitsError
from ...fusion.fusion import RowModels, settled
from ...search import ctc_beam as beam
from ...search import ctc_greedy as greedy
from ...search.confidence import frame_confidence
from ...search.ctc_beam import cpu
from ...search.ctc_beam.ranking import rank, with_joined_texts
from ...search.ctc_beam.tracing import TracedTokens, trace
from ...search.ctc_beam.whole import WholeSearch
from ..hypotheses import Hypothesis

if TYPE_CHECKING:
    from ...lexicon.lazy_search import Growth
    from ..ctc import CTCDecoder

# What going on with a label costs under the rule "stay", per unit of LM weight: about what the average token costs in an LM.
# Without it staying would look cheap beside any new token, which the LM charges for.
STAY_COST = 3.0


class CTCStream(ABC):
    """A batch that is being decoded. Made by `CTCDecoder.stream`.

    Frames come in blocks of any size (`add`), and the hypotheses of what has come so far can be asked for at any time. The
    result doesn't depend on how the frames are cut.
    """

    def __init__(self, decoder: CTCDecoder, models: RowModels, device: torch.device) -> None:
        self.decoder = decoder
        self.models = models
        self.batch_size = len(models.states)
        self.device = device
        # Of each block: frames of each row, of the longest, and the confidence of each.
        self.lengths: list[np.ndarray] = []
        self.widths: list[int] = []
        self.confidences: list[list[np.ndarray]] = []

    def add(self, logits: Outputs, lengths: Outputs | None = None) -> None:
        """Decode more frames.

        Args:
            logits: `[B, T, C]`, the model's outputs (log-probabilities will do): a tensor, an array or lists.
            lengths: integers `[B]`, frames of each row; all T if left out.

        Raises:
            InvalidLogitsError: NaN or infinite logits, or a wrong shape.
            ValueError: lengths that don't fit the logits.
        """
        logits = tensor_of(logits, "logits")
        lengths = self.decoder.check(logits, lengths)
        if logits.shape[0] != self.batch_size:
            raise ValueError(f"the logits have {logits.shape[0]} rows, the stream was opened for {self.batch_size}")
        self.add_checked(logits, lengths)

    def add_checked(self, logits: Tensor, lengths: Tensor) -> None:
        """The same for what the decoder's `check` has seen."""
        self._search(logits.detach().to(self.device), lengths.to(self.device))
        self.lengths.append(lengths.cpu().numpy())
        self.widths.append(logits.shape[1])
        if self.decoder.confidence is not None:
            self.confidences.append(_confidences(logits, lengths, self.decoder.confidence))

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """What has been found so far: for each row a list of hypotheses, the best one first."""

    @abstractmethod
    def _search(self, logits: Tensor, lengths: Tensor) -> None:
        """Decode a block; where that fails the stream stays as it was."""

    def _refuse(self, bad_frames: Tensor) -> None:
        """Raise for the first row with a bad frame (not -1), before anything of the block is kept."""
        bad_frames = bad_frames.cpu()
        if (bad_frames >= 0).any():
            row = int(torch.nonzero(bad_frames >= 0)[0, 0])
            raise InvalidLogitsError(
                f"the logits of row {row} hold NaN or infinity at frame {int(bad_frames[row])}: the model's output is broken "
                "(an overflow in half precision, or broken weights or audio)"
            )

    def _own_frames(self, row: int, blocks: Sequence[Any]) -> np.ndarray:
        """A row's part of blocks `[B, T]`, without padding."""
        parts = [block[row][: lengths[row]] for block, lengths in zip(blocks, self.lengths)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _hypothesis(
        self, row: int, tokens: list[int], starts: list[int], ends: list[int], scores: Sequence[float]
    ) -> Hypothesis:
        """A hypothesis of a row; its scores: what was maximised, and the parts of the model, the LMs and the phrases."""
        decoder = self.decoder
        score, acoustic_score, lm_score, phrase_score = scores
        confidences: list[float] = []
        if decoder.confidence is not None and tokens:
            sums = np.concatenate(([0.0], np.cumsum(self._own_frames(row, self.confidences), dtype=np.float64)))
            first, last = np.asarray(starts), np.asarray(ends)
            confidences = ((sums[last] - sums[first]) / (last - first)).tolist()
        return Hypothesis(
            text=decoder.splitter.text(tokens),
            token_ids=tokens,
            score=score,
            acoustic_score=acoustic_score,
            lm_score=lm_score,
            phrase_score=phrase_score,
            token_frames=starts,
            token_ends=ends,
            token_confidences=confidences,
            frame_seconds=decoder.frame_seconds,
            splitter=decoder.splitter,
        )

    def _listed(self, traced: TracedTokens, scores: np.ndarray) -> list[list[Hypothesis]]:
        return [
            [
                self._hypothesis(
                    row,
                    traced.tokens[row, n, :count].tolist(),
                    traced.starts[row, n, :count].tolist(),
                    traced.ends[row, n, :count].tolist(),
                    row_scores[n],
                )
                for n, count in enumerate(traced.counts[row].tolist())
                if row_scores[n][0] > -math.inf
            ]
            for row, row_scores in enumerate(scores.tolist())
        ]


class GreedyStream(CTCStream):
    """Greedy search: one label a frame."""

    def __init__(self, decoder: CTCDecoder, models: RowModels, device: torch.device) -> None:
        super().__init__(decoder, models, device)
        self.labels: list[np.ndarray] = []
        self.states = models.states
        batch_size = self.batch_size
        self.before = torch.full((batch_size, 2), decoder.blank_id, dtype=torch.int32, device=device)
        self.acoustic_scores = torch.zeros(batch_size, dtype=torch.float64, device=device)
        self.lm_scores = torch.zeros(self.states.shape, dtype=torch.float64, device=device)

    def _search(self, logits: Tensor, lengths: Tensor) -> None:
        result = self.label_frames(logits, lengths)
        self._refuse(result.bad_frames)
        self.labels.append(result.labels.cpu().numpy())
        self.states, self.before = result.states, result.before
        self.acoustic_scores += result.acoustic_scores
        self.lm_scores += result.lm_scores

    def label_frames(self, logits: Tensor, lengths: Tensor) -> greedy.GreedyLabels:
        """The class of each frame, before blanks and repeats are dropped."""
        return label_frames(self.decoder, self.models, self.states, self.before, logits, lengths)

    def hypotheses(self) -> list[list[Hypothesis]]:
        models = self.models
        scores = self.acoustic_scores + (models.weights * self.lm_scores).sum(1)
        ended = models.at_end(scores[:, None], self.lm_scores[:, None], self.states[:, None], False, self.decoder.engine)
        scores, of_lms, of_phrases = (values[:, 0] for values in ended)
        columns = [tensor.tolist() for tensor in (scores, self.acoustic_scores, of_lms, of_phrases)]
        found = []
        for row, row_scores in enumerate(zip(*columns)):
            labels = self._own_frames(row, self.labels)
            changes = np.flatnonzero(np.diff(labels, prepend=-1)) if labels.size else labels
            ends = np.append(changes[1:], labels.size)
            is_token = labels[changes] != self.decoder.blank_id
            starts, ends = changes[is_token], ends[is_token]
            token_ids = labels[starts].tolist()
            best = self._hypothesis(row, token_ids, starts.tolist(), ends.tolist(), row_scores)
            found.append([best])
        return found


class BeamStream(CTCStream):
    """Prefix beam search."""

    def __init__(self, decoder: CTCDecoder, models: RowModels, device: torch.device) -> None:
        super().__init__(decoder, models, device)
        self.state = beam.initial_state(decoder.num_beams, models.states)
        self.bonuses = decoder.token_bonuses(models.lm_weights)
        self.unscored = unscored(models)
        nothing = np.zeros((self.batch_size, 0, decoder.num_beams), dtype=np.int32)
        self.links, self.labels = [nothing], [nothing]

    def _search(self, logits: Tensor, lengths: Tensor) -> None:
        state, frames = search_frames(self.decoder, self.models, self.state, logits, lengths, self.bonuses, self.unscored)
        self._refuse(frames.bad_frames)
        self.state = state
        self.links.append(frames.links.cpu().numpy())
        self.labels.append(frames.labels.cpu().numpy())

    def hypotheses(self) -> list[list[Hypothesis]]:
        state = with_joined_texts(self.state) if self.decoder.merge == "text" else self.state
        ranked = rank(self.models, state, self.decoder.num_return_sequences, self.decoder.score_eos, self.decoder.engine)
        traced = trace(_joined(self.links), _joined(self.labels), ranked.places, ranked.sizes)
        starts, ends = self._own_frame_numbers(traced.starts, traced.ends)
        return self._listed(traced._replace(starts=starts, ends=ends), ranked.scores)

    def _own_frame_numbers(self, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of frames without the padding of the blocks before them."""
        if len(self.lengths) <= 1:
            return starts, ends
        inside = np.zeros((self.batch_size, sum(self.widths) + 1), dtype=np.int32)
        at = 0
        for lengths, width in zip(self.lengths, self.widths):
            inside[:, at + 1 : at + width + 1] = np.arange(width) < lengths[:, None]
            at += width
        numbers = np.cumsum(inside, axis=1)
        rows = np.arange(self.batch_size)[:, None, None]
        return numbers[rows, starts], numbers[rows, ends - 1] + 1


class WholeBatch(CTCStream):
    """Beam search of utterances whose frames come all at once, on the CPU."""

    def __init__(self, decoder: CTCDecoder, models: RowModels, search: WholeSearch) -> None:
        super().__init__(decoder, models, models.states.device)
        self.search = search

    def _search(self, logits: Tensor, lengths: Tensor) -> None:
        self.found = self.search(logits, lengths)
        self._refuse(torch.from_numpy(self.found.bad_frames))

    def hypotheses(self) -> list[list[Hypothesis]]:
        return self._listed(self.found.traced, self.found.scores)


def label_frames(
    decoder: CTCDecoder, models: RowModels, states: Tensor, before: Tensor, logits: Tensor, lengths: Tensor
) -> greedy.GreedyLabels:
    """The class that greedy search gives each frame, before blanks and repeats are dropped.

    Args:
        states: int32 `[B, M]`, of the rows' automata.
        before: int32 `[B, 2]`, see `hf_ngpulm.search.ctc_greedy`.
    """
    if states.shape[1]:

        def search(models: RowModels) -> greedy.GreedyLabels:
            return greedy.ctc_greedy(
                list(models.tensors), logits, lengths, states, models.weights, STAY_COST * models.lm_weights, before,
                decoder.blank_id, models.vocab_size, decoder.repeats, decoder.engine,
            )  # fmt: skip

        def replay(growth: Growth, found: greedy.GreedyLabels) -> bool:
            goes_on = found.labels == torch.cat([before[:, :1], found.labels[:, :-1]], 1)
            tokens = found.labels.masked_fill(goes_on, -1)[..., None]
            return growth.replay(states[:, None], None, tokens.cpu().numpy(), decoder.blank_id)

        return settled(models, search, replay)
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    labels = logits.argmax(dim=-1)
    best = log_probs.gather(2, labels[..., None])[..., 0]
    inside = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
    bad = inside & ~torch.isfinite(best)
    first_bad = torch.where(bad.any(1), bad.int().argmax(1) if logits.shape[1] else 0, -1)
    return greedy.GreedyLabels(
        labels=torch.where(inside, labels, decoder.blank_id).to(torch.int32),
        acoustic_scores=torch.where(inside, best, 0.0).sum(dim=1),
        lm_scores=models.weights,
        states=states,
        bad_frames=first_bad.to(torch.int32),
        before=before,
    )


def search_frames(
    decoder: CTCDecoder,
    models: RowModels,
    state: beam.BeamState,
    logits: Tensor,
    lengths: Tensor,
    bonuses: Tensor,
    unscored: Tensor,
) -> tuple[beam.BeamState, beam.BeamFrames]:
    """Go on with a beam search over more frames; `bonuses` and `unscored` as for `hf_ngpulm.search.ctc_beam.ctc_beam`."""
    if models.growth is not None and engine_name(decoder.engine, logits.device) == "cpu":
        return cpu.ctc_beam(
            models.tensors, state, logits, lengths, models.weights, bonuses, unscored, decoder.blank_id, models.vocab_size,
            decoder.beam_threshold, decoder.blank_threshold, decoder.text_hashes(logits.shape[2], logits.device), models.growth,
        )  # fmt: skip

    def search(models: RowModels) -> tuple[beam.BeamState, beam.BeamFrames]:
        return beam.ctc_beam(
            list(models.tensors),
            state,
            logits,
            lengths,
            models.weights,
            bonuses,
            unscored,
            decoder.blank_id,
            models.vocab_size,
            decoder.beam_threshold,
            decoder.blank_threshold,
            decoder.engine,
            decoder.text_hashes(logits.shape[2], logits.device),
        )

    def replay(growth: Growth, found: tuple[beam.BeamState, beam.BeamFrames]) -> bool:
        return growth.replay(state.lm_states, found[1].links.cpu().numpy(), found[1].labels.cpu().numpy())

    return settled(models, search, replay)


def unscored(models: RowModels) -> Tensor:
    """What a class that no LM scores adds to the score of a prefix, float32 `[B]`.

    It counts as one of V tokens that are equally likely: otherwise it would come for free.
    """
    return -math.log(max(models.vocab_size, 1)) * models.lm_weights


def _joined(blocks: list[np.ndarray]) -> np.ndarray:
    """One block of all, in the place of the others."""
    blocks[:] = [np.concatenate(blocks, axis=1)] if len(blocks) > 1 else blocks
    return blocks[0]


def _confidences(logits: Tensor, lengths: Tensor, measure: str) -> list[np.ndarray]:
    """Confidence of each frame by row."""
    if logits.device.type != "cpu":  # padding costs less than taking rows apart
        return list(frame_confidence(logits, measure).cpu().numpy())
    starts, frames = packed_frames(logits, lengths)
    of_frames, bounds = frame_confidence(frames[None], measure)[0].numpy(), [*starts.tolist(), len(frames)]
    return [of_frames[first:last] for first, last in pairwise(bounds)]
