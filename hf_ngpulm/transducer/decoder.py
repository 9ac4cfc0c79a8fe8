"""TransducerDecoder: from audio features, or an encoder's frames, to hypotheses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import one_of, refuse_idle, whole
from ..automaton.ops import check_engine
from ..batches import checked_lengths
from ..confidence import MEASURES
from ..errors import InvalidLogitsError
from ..fusion import Fusion, RowModels, check_weight, no_models
from ..hypotheses import Hypothesis
from ..language_model import NGramLM
from ..vocabulary import tokenizer_of
from ..words import WordSplitter
from .beam import BeamSettings, beam_search
from .confidences import token_confidences
from .greedy import greedy
from .model import TransducerModel, TransformersTransducer

STRATEGIES = ("greedy", "alsd", "aes")
MOST_BEAMS = 1024
NUM_BEAMS = 4


class TransducerDecoder:
    """Decoding of transducers (RNN-T, TDT), greedily or with a beam, with n-gram language models fused in.

    In greedy search the blank stays where it is the model's own choice; any other token is chosen anew among those that the LM
    scores. Durations (TDT) are the model's own. The prediction network runs once for each token (label looping, Bataev et al.,
    SLT 2024). For the two beam searches see `hf_ngpulm.transducer.beam`.

    Args:
        model: a transducer of Transformers (Parakeet, Nemotron), or a `TransducerModel` of your own.
        tokenizer_or_processor: the model's tokenizer, or a processor that has it.
        lm: a language model for all rows, or a list with one (or None) per row; None decodes without.
        lm_weight: weight of the LM's log-probabilities, one number or a tensor `[B]` with one per row.
        strategy: "greedy"; "alsd", beam search by the length of alignments (RNN-T and TDT); or "aes", beam search by frames
            (RNN-T). By default "greedy" without `num_beams` (or with 1), else "alsd".
        num_beams: hypotheses that beam search keeps (default 4).
        num_return_sequences: hypotheses that are returned for each row; at most `num_beams`.
        max_symbols: tokens that may be emitted at one frame (but see `aes_steps`); the model's own number if left out.
        blank_scoring: in beam search, "lm_weighted" (default): the blank's score grows with the LM's weight, which keeps the LM
            from favouring short transcripts; or "none".
        pruning: in beam search, "late" (default): LM scores are added before the best extensions of a hypothesis are chosen;
            or "early": after.
        merging: in beam search, "log_sum" (default): the probabilities of all ways to the same tokens at the same frame are
            summed; or "max": the best one counts.
        length_normalization: whether beam search ranks the hypotheses of an utterance by their scores divided by the number
            of tokens and one more (default), or by their scores.
        score_eos: whether the LM's score of `</s>` counts there (default); switch it off for utterances that may end within a
            sentence.
        aes_steps: tokens that "aes" takes at one frame (default 2).
        aes_beta: classes, more than `num_beams`, that "aes" extends a hypothesis by at most (default 1).
        aes_gamma: how much less than its best class a class may score for that (natural log, default 2.3).
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
        strategy: str | None = None,
        num_beams: int | None = None,
        num_return_sequences: int = 1,
        max_symbols: int | None = None,
        blank_scoring: str | None = None,
        pruning: str | None = None,
        merging: str | None = None,
        length_normalization: bool | None = None,
        score_eos: bool | None = None,
        aes_steps: int | None = None,
        aes_beta: int | None = None,
        aes_gamma: float | None = None,
        frame_seconds: float | None = None,
        confidence: str | None = "max_prob",
        engine: str = "auto",
    ) -> None:
        if frame_seconds is None:
            frame_seconds = _frame_seconds(model, tokenizer_or_processor)
        self.model = model if isinstance(model, TransducerModel) else TransformersTransducer(model, frame_seconds)
        self.tokenizer = tokenizer_of(tokenizer_or_processor)
        if strategy is None:
            strategy = "greedy" if num_beams in (None, 1) else "alsd"
        self.strategy = one_of("strategy", strategy, STRATEGIES)
        of_aes = {"aes_steps": aes_steps, "aes_beta": aes_beta, "aes_gamma": aes_gamma}
        if strategy == "greedy":
            given = {
                "num_beams": None if num_beams == 1 else num_beams, "blank_scoring": blank_scoring, "pruning": pruning,
                "merging": merging, "length_normalization": length_normalization, "score_eos": score_eos, **of_aes,
            }  # fmt: skip
            refuse_idle(given, 'without a beam search to act on: pass strategy="alsd" too')
            num_beams = 1
        if strategy == "alsd":
            refuse_idle(of_aes, 'without strategy="aes" to act on')
        if strategy == "aes" and self.model.durations is not None:
            raise ValueError('strategy="aes" goes frame by frame, but a TDT model skips frames; use strategy="alsd"')
        self.num_beams = whole("num_beams", NUM_BEAMS if num_beams is None else num_beams, MOST_BEAMS)
        self.num_return_sequences = whole("num_return_sequences", num_return_sequences, self.num_beams, " (num_beams)")
        max_symbols = None if max_symbols is None else whole("max_symbols", max_symbols)
        if aes_gamma is not None and not aes_gamma > 0:
            raise ValueError(f"aes_gamma should be above 0, got {aes_gamma!r}")
        if frame_seconds is not None and not 0 < frame_seconds < float("inf"):
            raise ValueError(f"frame_seconds should be above 0, got {frame_seconds!r}")
        if confidence is not None and confidence not in MEASURES:
            raise ValueError(f"confidence must be one of {MEASURES} or None, got {confidence!r}")
        self.max_symbols = self.model.max_symbols if max_symbols is None else max_symbols
        self.length_normalization = True if length_normalization is None else bool(length_normalization)
        self.score_eos = True if score_eos is None else bool(score_eos)
        self.beam = BeamSettings(
            num_beams=self.num_beams,
            strategy=strategy,
            blank_aware=one_of("blank_scoring", blank_scoring or "lm_weighted", ("lm_weighted", "none")) == "lm_weighted",
            late=one_of("pruning", pruning or "late", ("late", "early")) == "late",
            log_sum=one_of("merging", merging or "log_sum", ("log_sum", "max")) == "log_sum",
            max_symbols=self.max_symbols,
            aes_steps=whole("aes_steps", 2 if aes_steps is None else aes_steps),
            aes_beta=whole("aes_beta", 1 if aes_beta is None else aes_beta, least=0),
            aes_gamma=2.3 if aes_gamma is None else float(aes_gamma),
        )
        self.frame_seconds = self.model.frame_seconds if frame_seconds is None else frame_seconds
        self.confidence = confidence
        self.engine = check_engine(engine)
        self._kept: dict[Hashable, Any] = {}
        self.splitter = WordSplitter(self.tokenizer)
        check_weight(lm_weight, "lm_weight")
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
            For each row up to `num_return_sequences` hypotheses, the best one first.

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
        found = (self._greedy if self.strategy == "greedy" else self._beam)(frames, lengths, models)
        ends = (found.frames + found.durations.clamp(min=1)).minimum(lengths.to(found.frames.device)[:, None, None])
        columns = (found.counts, found.scores, found.acoustic_scores, found.lm_scores, found.tokens, found.frames, ends)
        lists = [column.tolist() for column in columns]
        confidences = None if found.confidences is None else found.confidences.tolist()
        return [
            [
                self._hypothesis(values, None if confidences is None else confidences[row][n])
                for n, values in enumerate(zip(*of_row))
                if values[0] >= 0
            ]
            for row, of_row in enumerate(zip(*lists))
        ]

    def _hypothesis(self, values: tuple[Any, ...], confidences: list[float] | None) -> Hypothesis:
        count, score, acoustic_score, lm_score, tokens, starts, ends = values
        return Hypothesis(
            text=self.splitter.text(tokens[:count]),
            token_ids=tokens[:count],
            score=score,
            acoustic_score=acoustic_score,
            lm_score=lm_score,
            token_frames=starts[:count],
            token_ends=ends[:count],
            token_confidences=[] if confidences is None else confidences[:count],
            frame_seconds=self.frame_seconds,
            splitter=self.splitter,
        )

    def _greedy(self, frames: Tensor, lengths: Tensor, models: RowModels) -> Found:
        found = greedy(
            self.model, frames, lengths, models.tensors, models.states, models.weights, models.vocab_size,
            self.max_symbols, self.confidence, self.engine,
        )  # fmt: skip
        _refuse(found.bad_frames)
        lm_scores = found.lm_scores.double().masked_fill(~models.present, 0.0)
        scores = found.acoustic_scores + (models.weights * lm_scores).sum(1)
        return Found(
            found.counts[:, None],
            scores[:, None],
            found.acoustic_scores[:, None],
            lm_scores.sum(1, keepdim=True),
            found.tokens[:, None],
            found.frames[:, None],
            found.durations[:, None],
            None if found.confidences is None else found.confidences[:, None],
        )

    def _beam(self, frames: Tensor, lengths: Tensor, models: RowModels) -> Found:
        found = beam_search(
            self.model, frames, lengths, models.tensors, models.states, models.weights, models.vocab_size, self.beam,
            self.engine, self._kept,
        )  # fmt: skip
        _refuse(found.bad_frames)
        scores = found.scores
        present, weights = models.present.cpu()[:, None], models.weights.cpu()[:, None]
        if self.score_eos and models.vocab_size:
            states = found.lm_states.flatten().to(frames.device)
            ends = torch.full_like(states, models.vocab_size)
            finals, _ = torch.ops.hf_ngpulm.step(list(models.tensors), states, ends, models.vocab_size + 1, self.engine)
            scores = scores + (weights.double() * finals.view(found.lm_states.shape).cpu()).sum(2)
        is_token = torch.arange(found.labels.shape[2]) < found.counts[..., None]
        is_token &= found.labels != self.model.blank_id
        counts = is_token.sum(2)
        ranks = scores / (counts + 1) if self.length_normalization else scores
        _, places = ranks.topk(self.num_return_sequences, dim=1)
        scores, acoustic_scores, counts = (values.gather(1, places) for values in (scores, found.acoustic_scores, counts))
        lm_scores = found.lm_scores.masked_fill(~present, 0.0).sum(2).gather(1, places)
        # Of the steps the tokens, moved to the front.
        each = places[..., None].expand(-1, -1, is_token.shape[2])
        order = (
            (~is_token)
            .gather(1, each)
            .to(torch.int8)
            .argsort(dim=2, stable=True)[..., : int(counts.max()) if counts.numel() else 0]
        )
        tokens, token_frames, durations = (
            values.gather(1, each).gather(2, order) for values in (found.labels, found.frames, found.durations)
        )
        confidences = None
        if self.confidence is not None:
            rows = torch.arange(len(frames), device=frames.device).repeat_interleave(places.shape[1])
            inside = torch.arange(tokens.shape[2]) < counts[..., None]
            ids, at = (torch.where(inside, values, 0).flatten(0, 1).to(frames.device) for values in (tokens, token_frames))
            confidences = token_confidences(self.model, frames, rows, ids, at, self.confidence).view(tokens.shape)
        counts = counts.masked_fill(scores == -torch.inf, -1)
        counts[:, 0].clamp_(min=0)  # where nothing is possible, no tokens
        return Found(counts, scores, acoustic_scores, lm_scores, tokens, token_frames, durations, confidences)


class Found(NamedTuple):
    """Hypotheses of `B` rows, `N` each, best first.

    Args:
        counts: int64 `[B, N]`, number of tokens; -1 where there is no hypothesis.
        scores, acoustic_scores, lm_scores: `[B, N]`.
        tokens, frames, durations: int64 `[B, N, L]`, of each token: its id, its frame, the frames moved on behind it.
        confidences: float32 `[B, N, L]`, or None.
    """

    counts: Tensor
    scores: Tensor
    acoustic_scores: Tensor
    lm_scores: Tensor
    tokens: Tensor
    frames: Tensor
    durations: Tensor
    confidences: Tensor | None


def _refuse(bad_frames: Tensor) -> None:
    for row, frame in enumerate(bad_frames.tolist()):
        if frame >= 0:
            raise InvalidLogitsError(
                f"the outputs for row {row} hold NaN or infinity at frame {frame}: the model's output is broken "
                "(an overflow in half precision, or broken weights or audio)"
            )


def _frame_seconds(model: Any, processor: Any) -> float | None:
    extractor: Any = getattr(processor, "feature_extractor", None)
    encoder = getattr(getattr(model, "config", None), "encoder_config", None)
    step, factor = getattr(extractor, "hop_length", None), getattr(encoder, "subsampling_factor", None)
    return None if step is None or factor is None else step * factor / extractor.sampling_rate
