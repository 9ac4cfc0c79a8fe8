"""TransducerDecoder: from audio features, or an encoder's frames, to hypotheses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.batches import Outputs, checked_lengths, tensor_of
from ..errors import InvalidLogitsError
from ..fusion.fusion import RowModels, settled, weights_of
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..lexicon.lazy_search import LazySearch
from ..search.networks.graphs import Kept
from ..search.networks.model import transducer_of
from ..search.transducer_beam import BeamHypotheses, BeamSettings, beam_search
from ..search.transducer_greedy import greedy
from ..search.transducer_greedy.rows import GreedySteps
from .decoder import Decoder, refuse_broken
from .hypotheses import Hypothesis
from .options import TransducerOptions, takes
from .pauses import Paths, Piece, by_pieces, pieces_of

ILM_SHARE = 0.5  # of the LM's weight: what the internal LM is subtracted with where nothing else is said
OUTPUTS = "outputs for"  # of which row, when they are broken


class TransducerDecoder(Decoder, caches={"_kept": dict}):
    """Decoding of transducers (RNN-T, TDT), greedily or with a beam, with n-gram language models fused in.

    In greedy search the blank stays where it is the model's own choice; any other token is chosen anew among those that the LM
    scores. Durations (TDT) are the model's own. The prediction network runs once for each token (label looping, Bataev et al.,
    SLT 2024). For the two beam searches see `hf_ngpulm.search.transducer_beam`.

    Args:
        model: a transducer of Transformers (Parakeet, Nemotron), or a `TransducerModel` of your own.
        tokenizer_or_processor: the model's tokenizer, or a processor that has it; None for hypotheses without texts.
        lm, lm_weight, phrases, phrase_weight, confidence, engine: as for `hf_ngpulm.CTCDecoder`.
        frame_seconds: how long a frame of the encoder is; by default what model and processor say. Where nothing says it,
            words have no times in seconds.
        strategy: "greedy"; "alsd", beam search by the length of alignments (RNN-T and TDT); or "aes", beam search by frames
            (RNN-T). By default "greedy" with `num_beams=1`, or without `num_beams`, `lm` and `phrases`; else "alsd".
        num_beams: hypotheses that beam search keeps; "auto" is 3 (or `num_return_sequences`, if that is more), most of the gain
            at little cost. The default is "auto" with `lm` or `phrases`, lists of them included; 4 if `strategy` asks for a
            beam search; else 1.
        num_return_sequences: hypotheses that are returned for each row; at most `num_beams`.
        max_symbols: tokens that may be emitted at one frame (but see `aes_steps`); the model's own number if left out.
        ilm_weight: weight with which the log-probabilities of the model's internal LM (what the joint network says without an
            encoder, Meng et al., SLT 2021) are subtracted from those of tokens: a number, or a tensor `[B]` with one per row.
            None, the default, for half the LM's weight where there is an LM and no `source_lm`; 0 for none.
        blank_scoring: in beam search, "lm_weighted" (default): the blank's score grows with the LM's weight, which keeps the LM
            from favouring short transcripts; or "none".
        pruning: in beam search, "late" (default): LM scores are added before the best extensions of a hypothesis are chosen;
            or "early": after, to those of the `num_beams` tokens that the model alone finds likeliest. (In a TDT the best pairs
            of token and duration are taken after that.)
        merging: in beam search, "log_sum" (default): the probabilities of all ways to the same tokens at the same frame are
            summed; or "max": the best one counts.
        length_normalization: whether beam search ranks the hypotheses of an utterance by their scores divided by the number
            of tokens and one more (default), or by their scores.
        score_eos: whether the LM's score of `</s>` counts there (default); switch it off for utterances that may end within a
            sentence.
        aes_steps: tokens that "aes" takes at one frame (default 2).
        aes_beta: classes, more than `num_beams`, that "aes" extends a hypothesis by at most (default 1).
        aes_gamma: how much less than its best class a class may score for that (natural log, default 2.3).
        source_lm, source_weight: as for `hf_ngpulm.CTCDecoder`; an alternative to the internal LM, which is then subtracted
            only if `ilm_weight` says so.
        pause_seconds: for recordings of several sentences: where nothing is heard for so long, a new sentence begins, for the
            prediction network, for LMs and for phrases (see `hf_ngpulm.decoding.pauses`). None, the default, for nowhere.

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range, or a model that isn't a transducer.
    """

    kind = TransducerOptions
    options: TransducerOptions

    @takes(TransducerOptions)
    def __init__(
        self,
        model: Any,
        tokenizer_or_processor: Any,
        lm: NGramLM | LogLinear | Sequence[NGramLM | LogLinear | None] | None = None,
        lm_weight: float | Tensor | None = None,
        phrases: Any = None,
        phrase_weight: float | Tensor | None = None,
        **options: Any,
    ) -> None:
        if options.get("frame_seconds") is None:
            options["frame_seconds"] = _frame_seconds(model, tokenizer_or_processor)
        self.model = transducer_of(model, options["frame_seconds"])
        if options["frame_seconds"] is None:
            options["frame_seconds"] = self.model.frame_seconds
        given = {"lm_weight": lm_weight, "phrase_weight": phrase_weight, **options}
        super().__init__(tokenizer_or_processor, lm, phrases, getattr(self.model, "model", None), given)
        _ = self.settings  # to tell of what doesn't suit the model
        if self.options.pause_seconds is not None and self.options.frame_seconds is None:
            raise ValueError("pause_seconds needs to know how long a frame is: pass frame_seconds too")
        self._kept: Kept = {}

    @property
    def _made_for(self) -> list[str]:
        return [type(getattr(self.model, "model", self.model)).__name__]

    @property
    def settings(self) -> BeamSettings:
        """Return what the search takes."""
        return self.options.settings(self.model)

    @property
    def has_ilm(self) -> bool:
        """Return whether an internal LM is subtracted in any row."""
        weight = self.options.ilm_weight
        if weight is None:
            return bool(self.fusion.lms) and self.fusion.source is None
        return isinstance(weight, Tensor) or weight != 0

    def ilm_weights(self, models: RowModels) -> Tensor | None:
        """Return with what weights the internal LM is subtracted in some rows, float32 `[B]`; None if it isn't.

        Raises:
            ValueError: a tensor of weights for another number of rows.
        """
        if not self.has_ilm:
            return None
        weight, lm_weights = self.options.ilm_weight, models.lm_weights
        if weight is None:
            return (ILM_SHARE * lm_weights).clamp(min=0)
        return weights_of(weight, "ilm_weight", len(lm_weights), lm_weights.device)

    @property
    def _device(self) -> torch.device | None:
        return next((weight.device for weight in self.model.parameters()), None)

    @torch.inference_mode()
    def __call__(
        self, input_features: Outputs, attention_mask: Outputs | None = None, phrases: Any = None, **kwargs: Any
    ) -> list[list[Hypothesis]]:
        """Encode and decode a batch.

        Args:
            input_features: what the model's feature extractor gives: a tensor; or an array or lists, which go to the model's
                device.
            attention_mask: the same; without it padding is decoded too.
            phrases: for this batch in place of the decoder's: one context, or a list with one (or None) per row.
            kwargs: for the encoder (such as `prompt_ids`).

        Returns:
            For each row up to `num_return_sequences` hypotheses, the best one first.

        Raises:
            InvalidLogitsError: the model's outputs hold NaN or infinity.
        """
        input_features = tensor_of(input_features, "input_features", self._device)
        if attention_mask is not None:
            attention_mask = tensor_of(attention_mask, "attention_mask", self._device)
        frames, lengths = self.model.encode(input_features, attention_mask, **kwargs)
        return self.decode(frames, lengths, phrases)

    @torch.inference_mode()
    def decode(
        self, encoder_hidden_states: Outputs, lengths: Outputs | None = None, phrases: Any = None
    ) -> list[list[Hypothesis]]:
        """Decode an encoder's frames.

        Args:
            encoder_hidden_states: `[B, T, D]`, projected for the joint network, as the model's `encode` gives them (in
                Transformers: `model.get_audio_features(...).pooler_output`): a tensor, an array or lists.
            lengths: integers `[B]`, frames of each row; all T if left out.
            phrases: as for a call.

        Raises:
            InvalidLogitsError: the frames, or the outputs for them, hold NaN or infinity, or have a wrong shape.
            ValueError: lengths that don't fit the frames.
        """
        frames = tensor_of(encoder_hidden_states, "encoder_hidden_states", self._device)
        paths = self.guided(phrases).paths(frames, lengths, phrases)
        return self._hypotheses(
            paths, [frames.shape[1]] * len(frames) if lengths is None else torch.as_tensor(lengths).tolist()
        )

    @torch.inference_mode()
    def paths(self, frames: Tensor, lengths: Outputs | None = None, phrases: Any = None) -> Paths:
        """Return the best paths of a batch, blanks included. Arguments and errors as for `decode`."""
        if frames.dim() != 3 or not frames.dtype.is_floating_point:
            problem = f"encoder_hidden_states should be floating point of the shape [B, T, D], got {frames.dtype} "
            problem += f"{tuple(frames.shape)}"
            if frames.dim() == 2:
                problem += "; of one utterance add a batch dimension: encoder_hidden_states[None]"
            raise InvalidLogitsError(problem)
        lengths = checked_lengths(lengths, frames.shape[0], frames.shape[1], frames.device)
        models = self.fusion.shared_rows(len(frames), frames.device, phrases)
        models = models._replace(ilm_weights=self.ilm_weights(models))
        search = self._greedy if self.options.strategy == "greedy" else self._beam
        if self.options.pause_seconds is None or not len(frames):
            return search(frames, lengths, models)
        pieces = pieces_of(self.model, frames, lengths, self._pause_frames)

        def searched(frames: Tensor, pieces: list[Piece]) -> tuple[Paths, Tensor]:
            rows, lengths = torch.tensor([(row, last - first) for row, first, last in pieces], device=frames.device).unbind(1)
            paths = search(frames, lengths.to(torch.int32), models.of(rows), pieces)
            steps = torch.arange(paths.labels.shape[2])
            sizes = ((paths.labels != self.model.blank_id) & (steps < paths.counts[..., None])).sum(2)
            return paths, paths.scores[..., 0] / (sizes + 1 if self.options.length_normalization else 1)

        return by_pieces(pieces, frames, searched, len(frames))

    @property
    def _pause_frames(self) -> int:
        """Return how many frames a pause has at least."""
        seconds, frame_seconds = self.options.pause_seconds, self.options.frame_seconds
        assert seconds is not None and frame_seconds is not None  # checked when the decoder was made
        return max(1, math.ceil(seconds / frame_seconds - 1e-6))

    def _greedy(self, frames: Tensor, lengths: Tensor, models: RowModels, pieces: Sequence[Piece] | None = None) -> Paths:
        settings, options = self.settings, self.options

        def search(models: RowModels) -> GreedySteps:
            return greedy(
                self.model, frames, lengths, models.tensors, models.states, models.weights, models.vocab_size,
                settings.max_symbols, models.ilm_weights, options.confidence, options.engine, kept=self._kept,
                composing=models.composing,
            )  # fmt: skip

        def replay(lazy: LazySearch, found: GreedySteps) -> bool:
            steps = torch.arange(found.tokens.shape[1], device=found.counts.device)
            tokens = found.tokens.masked_fill(steps >= found.counts[:, None], -1)[..., None]
            return lazy.replay(models.states[:, None], None, tokens.cpu().numpy(), self.model.blank_id)

        found = settled(models, search, replay)
        refuse_broken(found.bad_frames, OUTPUTS, pieces)
        scores = found.acoustic_scores + (models.weights * found.lm_scores.double()).sum(1)
        if models.ilm_weights is not None:
            scores = scores - models.ilm_weights * found.ilm_scores
        ended = models.at_end(scores[:, None], found.lm_scores[:, None], found.lm_states[:, None], False, options.engine)
        return Paths(
            found.counts[:, None].cpu(),
            found.tokens[:, None].cpu(),
            (found.durations.cumsum(1) - found.durations)[:, None].cpu(),
            found.durations[:, None].cpu(),
            torch.stack([ended[0], found.acoustic_scores[:, None], *ended[1:]], 2).cpu(),
            None if found.confidences is None else found.confidences[:, None].cpu(),
        )

    def _beam(self, frames: Tensor, lengths: Tensor, models: RowModels, pieces: Sequence[Piece] | None = None) -> Paths:
        settings, options = self.settings._replace(num_lms=models.num_lms), self.options

        def search(models: RowModels) -> BeamHypotheses:
            return beam_search(
                self.model, frames, lengths, models.tensors, models.states, models.weights, models.vocab_size,
                settings, options.engine, self._kept, options.confidence, models.composing, models.ilm_weights,
            )  # fmt: skip

        def replay(lazy: LazySearch, found: BeamHypotheses) -> bool:
            states = models.states[:, None].expand(-1, settings.num_beams, -1)
            links, labels = (part.swapaxes(0, 1) for part in found.steps)
            return lazy.replay(states, links, labels, self.model.blank_id)

        found = settled(models, search, replay)
        refuse_broken(found.bad_frames, OUTPUTS, pieces)
        places, scores = self.ranked(models, found, found.sizes)
        counts = found.counts.gather(1, places).masked_fill(scores[..., 0] == -torch.inf, -1)
        counts[:, :1].clamp_(min=0)  # where nothing is possible, no tokens
        each = places[..., None].expand(-1, -1, found.labels.shape[2])
        of_steps = (found.labels, found.frames, found.durations, found.confidences)
        labels, times, durations, confidences = (part.gather(1, each) for part in of_steps)
        return Paths(counts, labels, times, durations, scores, confidences)

    def ranked(self, models: RowModels, found: Any, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best hypotheses of beams if their utterances end here.

        Args:
            models: of the rows.
            found: has `scores`, `acoustic_scores` `[B, K]`, `lm_scores` and `lm_states` `[B, K, M]`.
            sizes: `[B, K]`, their tokens.

        Returns:
            Their places in the beam, int64 `[B, N]`, the best one first; and their scores, see `Paths`.
        """
        options = self.options
        ended = models.at_end(found.scores, found.lm_scores, found.lm_states, options.score_eos, options.engine)
        ranks = ended[0] / (sizes + 1) if options.length_normalization else ended[0]
        places = ranks.argsort(dim=1, descending=True, stable=True)[:, : options.num_return_sequences]
        return places, torch.stack([part.gather(1, places) for part in (ended[0], found.acoustic_scores, *ended[1:])], 2)

    def _hypotheses(self, paths: Paths, lengths: list[int]) -> list[list[Hypothesis]]:
        """Return what was found of rows of some lengths: of the steps those with tokens."""
        writing, blank = self.writing, self.model.blank_id
        labels, frames, durations = paths.labels.numpy(), paths.frames.numpy(), paths.durations.numpy()
        confidences = labels if paths.confidences is None else paths.confidences.numpy()
        counts = paths.counts.numpy()
        taken = (labels != blank) & (np.arange(labels.shape[2]) < counts[..., None])
        starts, limits = frames[taken], np.repeat(lengths, taken.sum((1, 2)))
        ends = np.minimum(starts + np.maximum(durations[taken], 1), limits)
        of_tokens = [part.tolist() for part in (labels[taken], starts, ends, confidences[taken])]
        hypotheses: list[list[Hypothesis]] = [[] for _ in lengths]
        first = 0
        for row, (sizes, scores) in enumerate(zip(taken.sum(2).tolist(), paths.scores.tolist())):
            for n, size in enumerate(sizes):
                if counts[row, n] >= 0:
                    parts = (part[first : first + size] for part in of_tokens)
                    hypotheses[row].append(writing.hypothesis(scores[n], *parts))
                first += size
        return hypotheses


def _frame_seconds(model: Any, processor: Any) -> float | None:
    extractor: Any = getattr(processor, "feature_extractor", None)
    encoder = getattr(getattr(model, "config", None), "encoder_config", None)
    step, factor = getattr(extractor, "hop_length", None), getattr(encoder, "subsampling_factor", None)
    return None if step is None or factor is None else step * factor / extractor.sampling_rate
