"""CTCDecoder: from logits to hypotheses."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.arguments import check_weight, one_of, refuse_idle, whole
from ..common.batches import Outputs, tensor_of
from ..common.pickling import WithoutCaches
from ..config.tuned import with_remembered
from ..engines.choice import check_engine, engine_name
from ..engines.devices import numbered
from ..fusion.fusion import LM_WEIGHT, Fusion, RowModels, select_rows
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..phrases import Booster
from ..search import ctc_greedy as greedy
from ..search.confidence import MEASURES
from ..search.ctc_beam.tracing import TracedTokens
from ..search.ctc_beam.whole import Found as FoundWhole
from ..search.ctc_beam.whole import WholeSearch
from ..text.hashing import text_hashes
from ..text.vocabulary import tokenizer_of
from ..text.words import WordSplitter
from .hypotheses import Hypothesis
from .sessions.blocks import BlockStream, check_logits, refuse_broken
from .sessions.ctc import BeamSlots, GreedySlots, confidences_of, label_frames, unscored

MOST_BEAMS = 1024
MERGES = ("tokens", "text")
# Default of `beta` for an LM weight of 1: about what the average token costs in an LM, as STAY_COST is.
BETA_PER_WEIGHT = 3.0


class CTCDecoder(WithoutCaches, caches={"_text_hashes": dict, "_prepared": lambda: None}):
    """Decoding of CTC outputs, greedily or with a beam, with n-gram language models fused in.

    Args:
        tokenizer_or_processor: the ASR model's tokenizer, or a processor that has it.
        lm: a language model for all rows, several as `LogLinear`, or a list with one of these (or None) per row; None decodes
            without.
        lm_weight: weight of the LM's log-probabilities, one number or a tensor `[B]` with one per row. By default what the LM
            remembers for `model`, with the rest of what was tuned for it (see `hf_ngpulm.config.tuned`); or else 0.5.
        phrases: phrases that shall be recognised, for all rows: a `PhraseBooster`, or what one is made of; or a list with such
            a context (or None) per row.
        phrase_weight: what their bonuses are multiplied with, one number or a tensor `[B]` (default 1).
        num_beams: prefixes that the search keeps; 1, the default, searches greedily.
        beta: bonus for each token (natural log), against an LM's liking for short transcripts: a number or a tensor `[B]`. In
            beam search with an LM the default is 3 for a weight of 1, in proportion; without one it is 0, and where the LM has
            a bonus for words (`word_bonus`, see `hf_ngpulm.lexicon.compose`). For beam search only.
        beam_threshold: prefixes that score so much less than the best one are dropped; for beam search only.
        blank_threshold: frames whose blank is likelier than this can only be blanks, which saves time; None asks every
            frame. For beam search only.
        score_eos: whether the LM's score of `</s>` counts when the hypotheses of an utterance are ranked; switch it off for
            utterances that may end within a sentence. For beam search only.
        merge: which prefixes of the search are one: those of the same "tokens" (the default), or those of the same "text",
            however it is cut into pieces: their probabilities are added. For language models of words with several `cuttings`,
            which otherwise fill the beam. For beam search only.
        num_return_sequences: hypotheses that are returned for each row; at most `num_beams`.
        repeats: in greedy search with an LM, when a frame goes on with the label before it: "stay" (if that scores better;
            the default), "label" (NeMo's rule) or "run", see `hf_ngpulm.search.ctc_greedy`. On the project's development set
            "stay" has the lowest word error rate.
        blank_id: class of the blank; the tokenizer's padding token if left out.
        frame_seconds: how long a frame of the logits is; without it words have no times in seconds.
        confidence: measure of confidence of tokens and words: "max_prob", "gibbs", "tsallis" or "renyi" (see
            `hf_ngpulm.search.confidence`); None for none.
        engine: "auto" (by device), "reference", "cpu" or "gpu".
        model: the CTC model (of Transformers) whose outputs will be decoded, for settings that were tuned for it; it isn't run.

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range or without meaning for the search, or a tokenizer without padding token and no
            `blank_id`.
    """

    def __init__(
        self,
        tokenizer_or_processor: Any,
        lm: NGramLM | LogLinear | Sequence[NGramLM | LogLinear | None] | None = None,
        lm_weight: float | Tensor | None = None,
        phrases: Any = None,
        phrase_weight: float | Tensor | None = None,
        num_beams: int | None = None,
        beta: float | Tensor | None = None,
        beam_threshold: float | None = None,
        blank_threshold: float | None = None,
        score_eos: bool | None = None,
        merge: str | None = None,
        num_return_sequences: int = 1,
        repeats: str | None = None,
        blank_id: int | None = None,
        frame_seconds: float | None = None,
        confidence: str | None = "max_prob",
        engine: str = "auto",
        model: Any = None,
    ) -> None:
        self.tokenizer = tokenizer_of(tokenizer_or_processor)
        blank_id = blank_of(self.tokenizer, blank_id)
        given = {
            "lm_weight": lm_weight, "phrase_weight": phrase_weight, "num_beams": num_beams, "beta": beta, "repeats": repeats,
            "beam_threshold": beam_threshold, "blank_threshold": blank_threshold, "score_eos": score_eos,
            "merge": merge,
        }  # fmt: skip
        lm_weight, phrase_weight, num_beams, beta, repeats, beam_threshold, blank_threshold, score_eos, merge = with_remembered(
            lm, model, given, came_with=True
        ).values()
        num_beams = whole("num_beams", 1 if num_beams is None else num_beams, MOST_BEAMS)
        num_return_sequences = whole("num_return_sequences", num_return_sequences, num_beams, " (num_beams)")
        if num_beams == 1:
            idle = {"beta": beta, "beam_threshold": beam_threshold, "blank_threshold": blank_threshold}
            refuse_idle(
                {**idle, "score_eos": score_eos, "merge": merge}, "without a beam to act on: pass num_beams=8, or so, too"
            )
        elif repeats is not None:
            raise ValueError(f"repeats={repeats!r} is a rule of greedy search, it has no meaning with num_beams={num_beams}")
        if repeats is not None:
            one_of("repeats", repeats, greedy.RULES)
        if beam_threshold is not None and not beam_threshold > 0:
            raise ValueError(f"beam_threshold should be above 0, got {beam_threshold!r}")
        if blank_threshold is not None and not 0 < blank_threshold <= 1:
            raise ValueError(f"blank_threshold should be a probability above 0, got {blank_threshold!r}")
        if frame_seconds is not None and not 0 < frame_seconds < float("inf"):
            raise ValueError(f"frame_seconds should be above 0, got {frame_seconds!r}")
        if confidence is not None and confidence not in MEASURES:
            raise ValueError(f"confidence must be one of {MEASURES} or None, got {confidence!r}")
        if merge is not None:
            one_of("merge", merge, MERGES)
        self.num_beams = num_beams
        self.beam_threshold = 20.0 if beam_threshold is None else float(beam_threshold)
        self.blank_threshold = float("inf") if blank_threshold is None else float(blank_threshold)
        self.score_eos = True if score_eos is None else bool(score_eos)
        self.num_return_sequences = num_return_sequences
        self.merge = merge or "tokens"
        self.blank_id = blank_id
        self.repeats = repeats or "stay"
        self.frame_seconds = frame_seconds
        self.confidence = confidence
        self.engine = check_engine(engine)
        self.splitter = WordSplitter(self.tokenizer)
        self._text_hashes: dict[tuple[int, torch.device], Tensor] = {}
        weights = (LM_WEIGHT if lm_weight is None else lm_weight, 1.0 if phrase_weight is None else phrase_weight)
        self.fusion = Fusion(lm, weights[0], phrases, weights[1], self.tokenizer)
        if beta is None and self.fusion.models and all(map(_has_word_bonus, self.fusion.models)):
            beta = 0.0
        self.beta = None if beta is None else check_weight(beta, "beta")
        # For the last batch, and others like it: models, settings, hashes of texts, and the search.
        self._prepared: tuple[RowModels, tuple[Any, ...], Tensor | None, WholeSearch] | None = None

    def __call__(self, logits: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            logits: `[B, T, C]`, the model's outputs (log-probabilities will do): a tensor, an array or lists.
            lengths: integers `[B]`, frames of each row; all T if left out.
            phrases: for this batch in place of the decoder's: one context, or a list with one (or None) per row.

        Returns:
            For each row up to `num_return_sequences` hypotheses, the best one first.

        Raises:
            InvalidLogitsError: NaN or infinite logits, or a wrong shape.
            ValueError: lengths that don't fit the logits.
        """
        logits = tensor_of(logits, "logits")
        return self.decode_checked(logits, self.check(logits, lengths), phrases)

    def decode_checked(self, logits: Tensor, lengths: Tensor, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode what `check` has seen."""
        logits, models = logits.detach(), self.fusion.shared_rows(logits.shape[0], logits.device, phrases)
        if self.num_beams == 1:
            found = self._search_greedily(logits, lengths, models)
        # Language models that grow have searches stop and go on.
        elif models.growth is None and engine_name(self.engine, logits.device) == "cpu":
            found = self._whole_search(logits, models)(logits, lengths)
        else:
            stream = self._stream(models)
            stream.add_checked(logits, lengths)
            return stream.hypotheses()
        refuse_broken(found.bad_frames)
        return self._hypotheses(found, confidences_of(logits, lengths, self.confidence))

    def _search_greedily(self, logits: Tensor, lengths: Tensor, models: RowModels) -> FoundWhole:
        before = torch.full((logits.shape[0], 2), self.blank_id, dtype=torch.int32, device=logits.device)
        found = label_frames(self, models, models.states, before, logits, lengths)
        score = found.acoustic_scores + (models.weights * found.lm_scores).sum(1)
        ended = models.at_end(score[:, None], found.lm_scores[:, None].double(), found.states[:, None], False, self.engine)
        scores = torch.stack([ended[0], found.acoustic_scores[:, None], *ended[1:]], 2)
        traced = trace_labels(found.labels.cpu().numpy(), self.blank_id)
        return FoundWhole(traced, scores.cpu().numpy(), found.bad_frames.cpu().numpy())

    def _hypotheses(self, found: FoundWhole, confidences: np.ndarray) -> list[list[Hypothesis]]:
        """Return what was found of whole utterances, given the confidence of each frame, `[B, T]`."""
        sums = np.zeros((len(confidences), confidences.shape[1] + 1))
        np.cumsum(confidences, axis=1, out=sums[:, 1:])
        measured = self.confidence is not None
        tokens, starts, ends = found.traced.tokens, found.traced.starts, found.traced.ends
        hypotheses: list[list[Hypothesis]] = []
        for row, counts in enumerate(found.traced.counts.tolist()):
            hypotheses.append([])
            for n, count in enumerate(counts):
                score, acoustic_score, lm_score, phrase_score = found.scores[row, n].tolist()
                if score == -math.inf:
                    continue
                ids, first, last = (part[row, n, :count] for part in (tokens, starts, ends))
                of_tokens = (sums[row, last] - sums[row, first]) / (last - first) if measured else sums[row, :0]
                hypothesis = Hypothesis(
                    text=self.splitter.text(ids.tolist()), token_ids=ids.tolist(), score=score,
                    acoustic_score=acoustic_score, lm_score=lm_score, phrase_score=phrase_score, token_frames=first.tolist(),
                    token_ends=last.tolist(), token_confidences=of_tokens.tolist(),
                    frame_seconds=self.frame_seconds, splitter=self.splitter,
                )  # fmt: skip
                hypotheses[-1].append(hypothesis)
        return hypotheses

    def _whole_search(self, logits: Tensor, models: RowModels) -> WholeSearch:
        classes = logits.shape[2]
        num_beams, count, thresholds = self.num_beams, self.num_return_sequences, (self.beam_threshold, self.blank_threshold)
        kind = (self.blank_id, num_beams, count, *thresholds, self.score_eos)
        hashes = self.text_hashes(classes, logits.device)  # kept, too
        known = self._prepared
        if known is None or known[0] is not models or known[1] != kind or known[2] is not hashes:
            bonuses = self.token_bonuses(models.lm_weights)
            search = WholeSearch(models, bonuses, unscored(models), *kind, hashes)
            self._prepared = known = models, kind, hashes, search
        return known[3]

    def with_phrases(self, phrases: Any, phrase_weight: float | Tensor = 1.0) -> CTCDecoder:
        """Return the same with other phrases, as cheaply as phrases can be changed."""
        selected = self._copy()
        selected.fusion = self.fusion.with_phrases(phrases, phrase_weight)
        return selected

    def with_weights(
        self,
        lm_weight: float | Tensor | None = None,
        phrase_weight: float | Tensor | None = None,
        beta: float | Tensor | None = None,
    ) -> CTCDecoder:
        """Return the same with other weights, numbers or tensors `[B]`; None leaves one as it is."""
        if self.num_beams == 1:
            refuse_idle({"beta": beta}, "without a beam to act on: make the decoder with num_beams=8, or so")
        selected = self._copy()
        selected.fusion = self.fusion.with_weights(lm_weight, phrase_weight)
        selected.beta = self.beta if beta is None else check_weight(beta, "beta")
        return selected

    def select(self, rows: Sequence[int]) -> CTCDecoder:
        """Return the same decoder for a batch of some of the rows that LMs, phrases, weights and `beta` list, in this order."""
        selected = self._copy()
        selected.fusion = self.fusion.select(rows)
        selected.beta = None if self.beta is None else select_rows(self.beta, rows)
        return selected

    def _copy(self) -> CTCDecoder:
        other = copy.copy(self)
        other._prepared = None
        return other

    def stream(self, batch_size: int = 1, device: torch.device | str = "cpu", phrases: Any = None) -> BlockStream:
        """Begin to decode a batch whose frames come block by block.

            stream = decoder.stream(batch_size)
            stream.add(logits)  # [B, T, C], as often as there is more
            hypotheses = stream.hypotheses()

        Args:
            batch_size: B.
            device: where to search.
            phrases: as for a call.
        """
        return self._stream(self.fusion.shared_rows(batch_size, numbered(device), phrases))

    def _stream(self, models: RowModels) -> BlockStream:
        def context_of(row: int, phrases: Any) -> tuple[Booster | None, float]:
            weight = self.fusion.phrase_weight
            return self.fusion.contexts.booster(phrases), float(weight[row]) if isinstance(weight, Tensor) else weight

        return BlockStream((GreedySlots if self.num_beams == 1 else BeamSlots)(self, models), context_of)

    def label_frames(self, logits: Outputs, lengths: Outputs | None = None) -> greedy.GreedyLabels:
        """Return the class that greedy search gives each frame, before blanks and repeats are dropped. Arguments as for a
        call."""
        logits = tensor_of(logits, "logits")
        lengths = self.check(logits, lengths)
        models = self.fusion.rows(logits.shape[0], logits.device)
        before = torch.full((logits.shape[0], 2), self.blank_id, dtype=torch.int32, device=logits.device)
        return label_frames(self, models, models.states, before, logits.detach(), lengths)

    def token_bonuses(self, lm_weights: Tensor) -> Tensor:
        """Return what beam search adds for each token, float32 `[B]`, given the weights of the LMs, `[B]`."""
        if self.beta is None:
            return BETA_PER_WEIGHT * lm_weights
        if isinstance(self.beta, Tensor):
            if self.beta.shape != lm_weights.shape:
                raise ValueError(f"beta has the shape {tuple(self.beta.shape)}, the batch has {len(lm_weights)} rows")
            return self.beta.detach().to(lm_weights.device, torch.float32)
        return torch.full_like(lm_weights, self.beta)

    def text_hashes(self, classes: int, device: torch.device) -> Tensor | None:
        """Return what beam search joins prefixes by, see `hf_ngpulm.text.hashing`; None if it joins none."""
        if self.merge == "tokens":
            return None
        key = classes, device
        if key not in self._text_hashes:
            self._text_hashes[key] = text_hashes(self.tokenizer, classes).to(device)
        return self._text_hashes[key]

    def check(self, logits: Tensor, lengths: Outputs | None) -> Tensor:
        """Return lengths of the rows of some logits, int32 `[B]`. Raises what a call raises."""
        return check_logits(logits, lengths, self.blank_id)


def trace_labels(labels: np.ndarray, blank: int) -> TracedTokens:
    """Return the tokens of frames `[B, T]` that greedy search has labelled: runs of the same label, but for the blank."""
    padded = np.full((len(labels), labels.shape[1] + 2), blank, dtype=np.int32)
    padded[:, 1:-1] = labels
    rows, starts = np.nonzero(padded[:, 1:] != padded[:, :-1])  # frames with another label than the one before
    ids, ends = padded[rows, starts + 1], np.append(starts[1:], 0)
    is_token = ids != blank  # which ends before its row does, for that ends in a blank
    rows, columns = rows[is_token], (ids[is_token], starts[is_token], ends[is_token])
    counts = np.bincount(rows, minlength=len(labels))
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    parts = [np.zeros((len(labels), 1, int(counts.max(initial=0))), dtype=np.int32) for _ in columns]
    for part, column in zip(parts, columns):
        part[rows, 0, places] = column
    return TracedTokens(counts[:, None], *parts)


def blank_of(tokenizer: Any, blank_id: int | None) -> int:
    """Return the class of the blank: that which is given, or else the tokenizer's padding token."""
    if blank_id is None:
        blank_id = getattr(tokenizer, "pad_token_id", None)
    if blank_id is None or blank_id < 0:
        raise ValueError(f"the tokenizer has no padding token to be the blank; pass blank_id=... (got {blank_id})")
    return blank_id


def _has_word_bonus(lm: NGramLM) -> bool:
    words = getattr(getattr(lm, "config", None), "words", None)
    return words is not None and words.word_bonus != 0
