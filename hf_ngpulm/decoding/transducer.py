"""TransducerDecoder: from audio features, or an encoder's frames, to hypotheses."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.arguments import one_of
from ..common.batches import Outputs, tensor_of
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..search.confidence import MEASURES
from ..search.networks.model import transducer_of
from ..text.vocabulary import tokenizer_of
from ..text.words import WordSplitter
from .hypotheses import Hypothesis
from .transducer_paths import TransducerSearch

CPU = torch.device("cpu")  # not the default device, whatever that is


class TransducerDecoder:
    """Decoding of transducers (RNN-T, TDT), greedily or with a beam, with n-gram language models fused in.

    In greedy search the blank stays where it is the model's own choice; any other token is chosen anew among those that the LM
    scores. Durations (TDT) are the model's own. The prediction network runs once for each token (label looping, Bataev et al.,
    SLT 2024). For the two beam searches see `hf_ngpulm.search.transducer_beam`.

    Args:
        model: a transducer of Transformers (Parakeet, Nemotron), or a `TransducerModel` of your own.
        tokenizer_or_processor: the model's tokenizer, or a processor that has it.
        lm: a language model for all rows, or a list with one (or None) per row; None decodes without.
        lm_weight: weight of the LM's log-probabilities, one number or a tensor `[B]` with one per row. By default what the LM
            remembers for the model, with the rest of what was tuned for it (see `hf_ngpulm.config.tuned`); or else 0.5.
        phrases: phrases that shall be recognised, for all rows: a `PhraseBooster`, or what one is made of; or a list with such
            a context (or None) per row.
        phrase_weight: what their bonuses are multiplied with, one number or a tensor `[B]` (default 1).
        frame_seconds: how long a frame of the encoder is; by default what model and processor say. Where nothing says it,
            words have no times in seconds.
        confidence: measure of confidence of tokens and words: "max_prob", "gibbs", "tsallis" or "renyi" (see
            `hf_ngpulm.search.confidence`); None for none.
        strategy: "greedy"; "alsd", beam search by the length of alignments (RNN-T and TDT); or "aes", beam search by frames
            (RNN-T). By default "greedy" without `num_beams` (or with 1), else "alsd".
        num_beams: hypotheses that beam search keeps (default 4).
        num_return_sequences: hypotheses that are returned for each row; at most `num_beams`.
        max_symbols: tokens that may be emitted at one frame (but see `aes_steps`); the model's own number if left out.
        ilm_weight: weight with which the log-probabilities of the model's internal LM (what the joint network says without an
            encoder, Meng et al., SLT 2021) are subtracted from those of tokens; 0 by default, half the LM's weight is usual.
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
        engine: "auto" (by device), "reference", "cpu" or "gpu", for the LM's queries.

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range, or a model that isn't a transducer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer_or_processor: Any,
        lm: NGramLM | LogLinear | Sequence[NGramLM | LogLinear | None] | None = None,
        lm_weight: float | Tensor | None = None,
        phrases: Any = None,
        phrase_weight: float | Tensor | None = None,
        frame_seconds: float | None = None,
        confidence: str | None = "max_prob",
        **search: Any,
    ) -> None:
        if frame_seconds is None:
            frame_seconds = _frame_seconds(model, tokenizer_or_processor)
        if frame_seconds is not None and not 0 < frame_seconds < float("inf"):
            raise ValueError(f"frame_seconds should be above 0, got {frame_seconds!r}")
        if confidence is not None:
            one_of("confidence", confidence, MEASURES)
        self.model = transducer_of(model, frame_seconds)
        self.tokenizer = tokenizer_of(tokenizer_or_processor)
        self.frame_seconds = self.model.frame_seconds if frame_seconds is None else frame_seconds
        self.confidence = confidence
        self.splitter = WordSplitter(self.tokenizer)
        self.search = TransducerSearch(self.model, lm, lm_weight, phrases, phrase_weight, self.tokenizer, **search)

    @property
    def num_return_sequences(self) -> int:
        """Hypotheses that are returned for each row at most."""
        return self.search.num_return_sequences

    def with_phrases(self, phrases: Any, phrase_weight: float | Tensor = 1.0) -> TransducerDecoder:
        """Return the same with other phrases, as cheaply as phrases can be changed."""
        selected = copy.copy(self)
        selected.search = self.search.with_phrases(phrases, phrase_weight)
        return selected

    def with_weights(
        self,
        lm_weight: float | Tensor | None = None,
        phrase_weight: float | Tensor | None = None,
        ilm_weight: float | None = None,
    ) -> TransducerDecoder:
        """Return the same with other weights, numbers or (but for `ilm_weight`) tensors `[B]`; None leaves one as it is."""
        selected = copy.copy(self)
        selected.search = self.search.with_weights(lm_weight, phrase_weight, ilm_weight)
        return selected

    def select(self, rows: Sequence[int]) -> TransducerDecoder:
        """Return the same decoder for a batch of some of the rows that LMs, phrases and weights list, in this order."""
        selected = copy.copy(self)
        selected.search = self.search.select(rows)
        return selected

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
        lengths = None if lengths is None else torch.as_tensor(lengths)
        paths = self.search.search(frames, lengths, self.confidence, phrases)
        rows, _, longest = paths.labels.shape
        # Of the steps those with tokens, moved to the front.
        is_token = (paths.labels != self.model.blank_id) & (torch.arange(longest, device=CPU) < paths.counts[..., None])
        counts = is_token.sum(2)
        order = (~is_token).to(torch.int8).argsort(dim=2, stable=True)[..., : int(counts.max()) if rows else 0]
        inside = torch.arange(order.shape[2], device=CPU) < counts[..., None]
        tokens, starts, durations = (
            torch.where(inside, values.gather(2, order), 0) for values in (paths.labels, paths.frames, paths.durations)
        )
        most = torch.full((rows,), frames.shape[1], device=CPU) if lengths is None else lengths.cpu()
        ends = (starts + durations.clamp(min=1)).minimum(most[:, None, None])
        confidences = None if paths.confidences is None else paths.confidences.gather(2, order)
        scores = torch.stack([paths.scores, paths.acoustic_scores, paths.lm_scores, paths.phrase_scores], 2)
        columns = (counts, scores, tokens, starts, ends)
        lists = [paths.counts.tolist(), *(column.tolist() for column in columns)]
        lists.append(lists[0] if confidences is None else confidences.tolist())
        return [[self._hypothesis(*values[1:]) for values in zip(*of_row) if values[0] >= 0] for of_row in zip(*lists)]

    def _hypothesis(
        self,
        count: int,
        scores: list[float],
        tokens: list[int],
        starts: list[int],
        ends: list[int],
        confidences: Any,
    ) -> Hypothesis:
        score, acoustic_score, lm_score, phrase_score = scores
        return Hypothesis(
            text=self.splitter.text(tokens[:count]),
            token_ids=tokens[:count],
            score=score,
            acoustic_score=acoustic_score,
            lm_score=lm_score,
            phrase_score=phrase_score,
            token_frames=starts[:count],
            token_ends=ends[:count],
            token_confidences=[] if self.confidence is None else confidences[:count],
            frame_seconds=self.frame_seconds,
            splitter=self.splitter,
        )


def _frame_seconds(model: Any, processor: Any) -> float | None:
    extractor: Any = getattr(processor, "feature_extractor", None)
    encoder = getattr(getattr(model, "config", None), "encoder_config", None)
    step, factor = getattr(extractor, "hop_length", None), getattr(encoder, "subsampling_factor", None)
    return None if step is None or factor is None else step * factor / extractor.sampling_rate
