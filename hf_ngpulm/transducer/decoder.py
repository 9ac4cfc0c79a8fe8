"""TransducerDecoder: from audio features, or an encoder's frames, to hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..automaton.ops import check_engine
from ..batches import checked_lengths
from ..confidence import MEASURES
from ..errors import InvalidLogitsError
from ..fusion import Fusion, check_number, check_weight, no_models
from ..hypotheses import Hypothesis
from ..language_model import NGramLM
from ..vocabulary import tokenizer_of
from ..words import WordSplitter
from .greedy import greedy
from .model import TransducerModel, TransformersTransducer


class TransducerDecoder:
    """Greedy decoding of transducers (RNN-T, TDT), with n-gram language models fused in.

    Where the model's own choice is the blank it stays; any other token is chosen anew among those that the LM scores. Durations
    (TDT) are the model's own. The prediction network runs once for each token (label looping, Bataev et al., SLT 2024).

    Args:
        model: a transducer of Transformers (Parakeet, Nemotron), or a `TransducerModel` of your own.
        tokenizer_or_processor: the model's tokenizer, or a processor that has it.
        lm: a language model for all rows, or a list with one (or None) per row; None decodes without.
        lm_weight: weight of the LM's log-probabilities, one number or a tensor `[B]` with one per row.
        ilm_weight: what the log-probabilities of the model's internal LM are subtracted with where a token is chosen anew: what
            it has learned of its training texts would else count beside the LM (Meng et al., SLT 2021). 0 leaves it out.
        max_symbols: tokens that may be emitted at one frame; the model's own number if left out.
        frame_seconds: how long a frame of the encoder is; by default what model and processor say. Where nothing says it,
            words have no times in seconds.
        confidence: measure of confidence of tokens and words: "max_prob", "gibbs", "tsallis" or "renyi" (see
            `hf_ngpulm.confidence`); None for none.
        engine: "auto" (by device), "reference", "cpu" or "gpu", for the LM's queries.

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range, or a model that isn't a transducer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer_or_processor: Any,
        lm: NGramLM | Sequence[NGramLM | None] | None = None,
        lm_weight: float | Tensor = 0.5,
        ilm_weight: float = 0.0,
        max_symbols: int | None = None,
        frame_seconds: float | None = None,
        confidence: str | None = "max_prob",
        engine: str = "auto",
    ) -> None:
        if frame_seconds is None:
            frame_seconds = _frame_seconds(model, tokenizer_or_processor)
        self.model = model if isinstance(model, TransducerModel) else TransformersTransducer(model, frame_seconds)
        self.tokenizer = tokenizer_of(tokenizer_or_processor)
        if max_symbols is not None and (isinstance(max_symbols, bool) or max_symbols < 1):
            raise ValueError(f"max_symbols should be a whole number above 0, got {max_symbols!r}")
        if frame_seconds is not None and not 0 < frame_seconds < float("inf"):
            raise ValueError(f"frame_seconds should be above 0, got {frame_seconds!r}")
        if confidence is not None and confidence not in MEASURES:
            raise ValueError(f"confidence must be one of {MEASURES} or None, got {confidence!r}")
        self.max_symbols = self.model.max_symbols if max_symbols is None else max_symbols
        self.frame_seconds = self.model.frame_seconds if frame_seconds is None else frame_seconds
        self.confidence = confidence
        self.engine = check_engine(engine)
        self.splitter = WordSplitter(self.tokenizer)
        check_weight(lm_weight, "lm_weight")
        self.ilm_weight = check_number(ilm_weight, "ilm_weight")
        self.fusion = None if lm is None else Fusion(lm, lm_weight)
        for language_model in self.fusion.models if self.fusion else []:
            language_model.check_tokenizer(self.tokenizer)

    @torch.inference_mode()
    def __call__(self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> list[list[Hypothesis]]:
        """Encode and decode a batch.

        Args:
            input_features: what the model's feature extractor gives.
            attention_mask: the same; without it padding is decoded too.
            kwargs: for the encoder (such as `prompt_ids`).

        Returns:
            For each row a list with its best hypothesis.

        Raises:
            InvalidLogitsError: the model's outputs hold NaN or infinity.
        """
        frames, lengths = self.model.encode(input_features, attention_mask, **kwargs)
        return self.decode(frames, lengths)

    @torch.inference_mode()
    def decode(self, encoder_hidden_states: Tensor, lengths: Tensor | None = None) -> list[list[Hypothesis]]:
        """Decode an encoder's frames.

        Args:
            encoder_hidden_states: `[B, T, D]`, projected for the joint network, as the model's `encode` gives them (in
                Transformers: `model.get_audio_features(...).pooler_output`).
            lengths: integers `[B]`, frames of each row; all T if left out.

        Raises:
            InvalidLogitsError: the frames, or the outputs for them, hold NaN or infinity, or have a wrong shape.
            ValueError: lengths that don't fit the frames.
        """
        frames = encoder_hidden_states
        if frames.dim() != 3 or not frames.dtype.is_floating_point:
            raise InvalidLogitsError(
                "encoder_hidden_states should be floating point of the shape [B, T, D], got "
                f"{frames.dtype} {tuple(frames.shape)}"
            )
        batch_size = frames.shape[0]
        lengths = checked_lengths(lengths, batch_size, frames.shape[1], frames.device)
        models = no_models(batch_size, frames.device) if self.fusion is None else self.fusion.rows(batch_size, frames.device)
        found = greedy(
            self.model, frames, lengths, models.tensors, models.states, models.weights, models.vocab_size,
            self.max_symbols, self.ilm_weight, self.confidence, self.engine,
        )  # fmt: skip
        bad_frames = found.bad_frames.tolist()
        for row, frame in enumerate(bad_frames):
            if frame >= 0:
                raise InvalidLogitsError(
                    f"the outputs for row {row} hold NaN or infinity at frame {frame}: the model's output is broken "
                    "(an overflow in half precision, or broken weights or audio)"
                )
        lm_scores = found.lm_scores.double().masked_fill(~models.present, 0.0)
        scores = found.acoustic_scores + (models.weights * lm_scores).sum(1) - self.ilm_weight * found.ilm_scores
        totals = zip(scores.tolist(), found.acoustic_scores.tolist(), lm_scores.sum(1).tolist(), lengths.tolist())
        return [
            [
                Hypothesis(
                    text=self.splitter.text(tokens),
                    token_ids=tokens,
                    score=score,
                    acoustic_score=acoustic_score,
                    lm_score=lm_score,
                    token_frames=starts,
                    token_ends=[min(start + max(duration, 1), length) for start, duration in zip(starts, durations)],
                    token_confidences=confidences,
                    frame_seconds=self.frame_seconds,
                    splitter=self.splitter,
                )
            ]
            for (tokens, starts, durations, confidences), (score, acoustic_score, lm_score, length) in zip(
                found.by_token(self.model.blank_id), totals
            )
        ]


def _frame_seconds(model: Any, processor: Any) -> float | None:
    extractor: Any = getattr(processor, "feature_extractor", None)
    encoder = getattr(getattr(model, "config", None), "encoder_config", None)
    step, factor = getattr(extractor, "hop_length", None), getattr(encoder, "subsampling_factor", None)
    return None if step is None or factor is None else step * factor / extractor.sampling_rate
