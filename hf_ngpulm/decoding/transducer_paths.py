"""TransducerSearch: from an encoder's frames to paths, greedily or with a beam, with language models or without."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.arguments import check_number, whole
from ..common.batches import checked_lengths
from ..common.pickling import WithoutCaches
from ..config.tuned import with_remembered
from ..engines.choice import check_engine
from ..errors import InvalidLogitsError
from ..fusion.fusion import LM_WEIGHT, Fusion, RowModels, settled
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..lexicon.lazy_search import LazySearch
from ..search.networks.graphs import Kept
from ..search.networks.model import TransducerModel
from ..search.transducer_beam import BeamHypotheses, beam_search
from ..search.transducer_greedy import greedy
from ..search.transducer_greedy.rows import GreedySteps
from .options import TransducerOptions


class Paths(NamedTuple):
    """What was found for `B` rows, `N` paths each, best first; on the CPU. Entries after a path's last step mean nothing.

    Args:
        counts: int64 `[B, N]`, number of steps; -1 where there is no path.
        labels, frames, durations: int64 `[B, N, S]`, of each step: the class, a token or the blank; the frame; and the frames
            that the search moved on after it.
        scores: float64 `[B, N]`, what was maximised (but for the division by the length).
        acoustic_scores, lm_scores, phrase_scores: float64 `[B, N]`, see `hf_ngpulm.Hypothesis`.
        confidences: float32 `[B, N, S]` of the frames of tokens, if asked for.
    """

    counts: Tensor
    labels: Tensor
    frames: Tensor
    durations: Tensor
    scores: Tensor
    acoustic_scores: Tensor
    lm_scores: Tensor
    phrase_scores: Tensor
    confidences: Tensor | None


class TransducerSearch(WithoutCaches, caches={"_kept": dict}):
    """A search with its settings, which `hf_ngpulm.TransducerDecoder` explains. Raises what that raises."""

    def __init__(
        self,
        model: TransducerModel,
        lm: NGramLM | LogLinear | Sequence[NGramLM | LogLinear | None] | None = None,
        lm_weight: float | Tensor | None = None,
        phrases: Any = None,
        phrase_weight: float | Tensor | None = None,
        tokenizer: Any = None,
        engine: str = "auto",
        **options: Any,
    ) -> None:
        given = TransducerOptions(**options)
        remembered = {name: getattr(given, name) for name in given.names() if name != "num_return_sequences"}
        weights = {"lm_weight": lm_weight, "phrase_weight": phrase_weight}
        found = with_remembered(lm, getattr(model, "model", None), weights | remembered)
        lm_weight, phrase_weight = found.pop("lm_weight"), found.pop("phrase_weight")
        given = replace(given, **found)
        self.model = model
        self.settings = given.settings(model)
        most = self.settings.num_beams
        self.num_return_sequences = whole("num_return_sequences", given.num_return_sequences, most, " (num_beams)")
        self.length_normalization = True if given.length_normalization is None else bool(given.length_normalization)
        self.score_eos = True if given.score_eos is None else bool(given.score_eos)
        self.engine = check_engine(engine)
        lm_weight, phrase_weight = (
            LM_WEIGHT if lm_weight is None else lm_weight,
            1.0 if phrase_weight is None else phrase_weight,
        )
        self.fusion = Fusion(lm, lm_weight, phrases, phrase_weight, tokenizer)
        self._kept: Kept = {}

    def with_phrases(self, phrases: Any, phrase_weight: float | Tensor = 1.0) -> TransducerSearch:
        """Return the same with other phrases, as cheaply as phrases can be changed."""
        selected = copy.copy(self)
        selected.fusion = self.fusion.with_phrases(phrases, phrase_weight)
        return selected

    def with_weights(
        self,
        lm_weight: float | Tensor | None = None,
        phrase_weight: float | Tensor | None = None,
        ilm_weight: float | None = None,
    ) -> TransducerSearch:
        """Return the same with other weights; None leaves one as it is."""
        selected = copy.copy(self)
        selected.fusion = self.fusion.with_weights(lm_weight, phrase_weight)
        if ilm_weight is not None:
            selected.settings = self.settings._replace(ilm_weight=check_number(ilm_weight, "ilm_weight"))
        return selected

    def select(self, rows: Sequence[int]) -> TransducerSearch:
        """Return the same search for a batch of some of the rows that LMs, phrases and weights list, in this order."""
        selected = copy.copy(self)
        selected.fusion = self.fusion.select(rows)
        return selected

    @torch.inference_mode()
    def search(
        self, frames: Tensor, lengths: Tensor | None = None, confidence: str | None = None, phrases: Any = None
    ) -> Paths:
        """Find the best paths of a batch.

        Args:
            frames: `[B, T, D]`, as the model's `encode` gives them.
            lengths: integers `[B]`, frames of each row; all T if left out.
            confidence: a measure, see `hf_ngpulm.search.confidence`.
            phrases: for this batch in place of the search's.
        """
        if frames.dim() != 3 or not frames.dtype.is_floating_point:
            raise InvalidLogitsError(
                "encoder_hidden_states should be floating point of the shape [B, T, D], got "
                f"{frames.dtype} {tuple(frames.shape)}"
            )
        batch_size, device = frames.shape[0], frames.device
        lengths = checked_lengths(lengths, batch_size, frames.shape[1], device)
        models = self.fusion.rows(batch_size, device, phrases)
        if self.settings.strategy == "greedy":
            return self._greedy(frames, lengths, models, confidence)
        return self._beam(frames, lengths, models, confidence)

    def _greedy(self, frames: Tensor, lengths: Tensor, models: RowModels, confidence: str | None) -> Paths:
        def search(models: RowModels) -> GreedySteps:
            return greedy(
                self.model, frames, lengths, models.tensors, models.states, models.weights, models.vocab_size,
                self.settings.max_symbols, self.settings.ilm_weight, confidence, self.engine, kept=self._kept,
            )  # fmt: skip

        def replay(lazy: LazySearch, found: GreedySteps) -> bool:
            steps = torch.arange(found.tokens.shape[1], device=found.counts.device)
            tokens = found.tokens.masked_fill(steps >= found.counts[:, None], -1)[..., None]
            return lazy.replay(models.states[:, None], None, tokens.cpu().numpy(), self.model.blank_id)

        found = settled(models, search, replay)
        _refuse(found.bad_frames)
        scores = found.acoustic_scores + (models.weights * found.lm_scores.double()).sum(1)
        scores = (scores - self.settings.ilm_weight * found.ilm_scores)[:, None]
        scores, of_lms, of_phrases = models.at_end(
            scores, found.lm_scores[:, None], found.lm_states[:, None], False, self.engine
        )
        return Paths(
            found.counts[:, None].cpu(),
            found.tokens[:, None].cpu(),
            (found.durations.cumsum(1) - found.durations)[:, None].cpu(),
            found.durations[:, None].cpu(),
            scores.cpu(),
            found.acoustic_scores[:, None].cpu(),
            of_lms.cpu(),
            of_phrases.cpu(),
            None if found.confidences is None else found.confidences[:, None].cpu(),
        )

    def _beam(self, frames: Tensor, lengths: Tensor, models: RowModels, confidence: str | None) -> Paths:
        def search(models: RowModels) -> BeamHypotheses:
            return beam_search(
                self.model, frames, lengths, models.tensors, models.states, models.weights, models.vocab_size,
                self.settings._replace(num_lms=models.num_lms), self.engine, self._kept, confidence,
            )  # fmt: skip

        def replay(lazy: LazySearch, found: BeamHypotheses) -> bool:
            states = models.states[:, None].expand(-1, self.settings.num_beams, -1)
            links, labels = (part.swapaxes(0, 1) for part in found.steps)
            return lazy.replay(states, links, labels, self.model.blank_id)

        found = settled(models, search, replay)
        _refuse(found.bad_frames)
        scores, of_lms, of_phrases = models.at_end(found.scores, found.lm_scores, found.lm_states, self.score_eos, self.engine)
        inside = torch.arange(found.labels.shape[2], device=found.labels.device) < found.counts[..., None]
        sizes = ((found.labels != self.model.blank_id) & inside).sum(2)
        ranks = scores / (sizes + 1) if self.length_normalization else scores
        _, places = ranks.topk(self.num_return_sequences, dim=1)
        scores, counts = scores.gather(1, places), found.counts.gather(1, places)
        counts = counts.masked_fill(scores == -torch.inf, -1)
        counts[:, :1].clamp_(min=0)  # where nothing is possible, no tokens
        each = places[..., None].expand(-1, -1, found.labels.shape[2])
        return Paths(
            counts,
            found.labels.gather(1, each),
            found.frames.gather(1, each),
            found.durations.gather(1, each),
            scores,
            found.acoustic_scores.gather(1, places),
            of_lms.gather(1, places),
            of_phrases.gather(1, places),
            None if confidence is None else found.confidences.gather(1, each),
        )


def _refuse(bad_frames: Tensor) -> None:
    for row, frame in enumerate(bad_frames.tolist()):
        if frame >= 0:
            raise InvalidLogitsError(
                f"the outputs for row {row} hold NaN or infinity at frame {frame}: the model's output is broken "
                "(an overflow in half precision, or broken weights or audio)"
            )
