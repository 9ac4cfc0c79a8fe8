"""GraphDecoder: CTC outputs decoded in the graph of a language model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.arguments import check_number, check_weight, one_of, whole
from ..common.batches import Outputs, tensor_of
from ..config.tuned import with_remembered
from ..engines.choice import check_engine
from ..engines.devices import numbered
from ..fusion.fusion import LM_WEIGHT, Fusion, RowModels, select_rows
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..phrases import Booster
from ..phrases.contexts import is_per_row
from ..phrases.graph_contexts import GraphContexts, checked_discounts
from ..search.confidence import MEASURES
from ..text.vocabulary import tokenizer_of
from ..text.words import WordSplitter
from .ctc import BETA_PER_WEIGHT, blank_of
from .hypotheses import Hypothesis
from .sessions.blocks import BlockStream, check_logits
from .sessions.ctc import unscored
from .sessions.graph import GraphSlots

MOST_ACTIVE = 1 << 14
BEAM_THRESHOLD = 14.0
DISCOUNT = 1.0


class GraphDecoder:
    """Viterbi decoding of CTC outputs in a graph: the CTC topology times the automaton of a language model.

        decoder = GraphDecoder(processor, lm, phrases=["ryanair one sierra golf"])
        hypotheses = decoder(logits, lengths)
        stream = decoder.stream(batch_size)  # frames block by block; `stream.set_context(row, phrases)` at any time

    Hypotheses that have come to the same state of the LM are one: the best of them goes on. `CTCDecoder` with a beam keeps
    token sequences apart however alike their ends are, and sums their alignments; here a hypothesis is one alignment, and a
    number of them covers more different endings. See `hf_ngpulm.search.ctc_graph`.

    Phrases can be other ones for each row, and change in mid-utterance. The search follows them beside the graph
    (`hf_ngpulm.phrases.graph_booster`): what tokens earn is taken back where a phrase isn't completed, so that also one name
    among a thousand is found; and what the LM hasn't seen costs no more, in a phrase, than if all tokens were equally likely.

    Args:
        tokenizer_or_processor: the ASR model's tokenizer, or a processor that has it.
        lm: the language model of all rows, or a list with one (or None) per row. One of words that has been composed with its
            lexicon is as good as one of tokens.
        lm_weight: weight of its log-probabilities, one number or a tensor `[B]` with one per row. By default what the LM
            remembers for `model` and graphs, with the rest of what was tuned for it (see `hf_ngpulm.config.tuned`); or else
            0.5.
        max_active: hypotheses that the search keeps at most (64).
        beam_threshold: hypotheses that score so much less than the best one are dropped (natural log; 14).
        beta: bonus for each token or word (natural log), against an LM's liking for short transcripts: a number or a tensor
            `[B]`. By default 3 for a weight of 1, in proportion.
        beta_per: "token" or "word": what `beta` is for. Words begin with a mark, or after a delimiter.
        phrases: what shall be recognised, for all rows: texts, pairs of a text and a discount, a mapping, a `PhraseBooster`, or
            what `context` returns; or a list with such a context (or None) per row.
        discount: what each token of a phrase adds (natural log), at least 0. By default 1.
        blank_threshold: frames whose blank is likelier than this can only be blanks, which saves time; None asks every frame.
        score_eos: whether the LM's score of `</s>` counts at the end; by default it does.
        num_return_sequences: hypotheses that are returned for each row, which differ in their tokens; at most `max_active`. Of
            those that meet only the best goes on: ones that differ in nothing but what the LM no longer remembers at the end
            aren't among them.
        blank_id: class of the blank; the tokenizer's padding token if left out.
        frame_seconds: how long a frame of the logits is; without it words have no times in seconds.
        confidence: measure of confidence of tokens and words (see `hf_ngpulm.search.confidence`); None for none.
        engine: "auto" (by device), "reference", "cpu" or "gpu".
        model: the CTC model (of Transformers) whose outputs will be decoded, for settings that were tuned for it; it isn't run.

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range, or a tokenizer without padding token and no `blank_id`.
    """

    def __init__(
        self,
        tokenizer_or_processor: Any,
        lm: NGramLM | Sequence[NGramLM | None],
        lm_weight: float | Tensor | None = None,
        max_active: int | None = None,
        beam_threshold: float | None = None,
        beta: float | Tensor | None = None,
        beta_per: str = "token",
        phrases: Any = None,
        discount: float | None = None,
        blank_threshold: float | None = None,
        score_eos: bool | None = None,
        num_return_sequences: int = 1,
        blank_id: int | None = None,
        frame_seconds: float | None = None,
        confidence: str | None = "max_prob",
        engine: str = "auto",
        model: Any = None,
    ) -> None:
        self.tokenizer = tokenizer_of(tokenizer_or_processor)
        self.blank_id = blank_of(self.tokenizer, blank_id)
        if lm is None:
            raise ValueError("lm=None: there is no graph without a language model; CTCDecoder decodes without one")
        if discount is not None:
            discount = _at_least_0(discount)
        given = {
            "lm_weight": lm_weight, "num_beams": max_active, "beam_threshold": beam_threshold, "beta": beta,
            "phrase_weight": discount, "blank_threshold": blank_threshold, "score_eos": score_eos,
            "strategy": "graph",
        }  # fmt: skip
        lm_weight, max_active, beam_threshold, beta, discount, blank_threshold, score_eos, _ = with_remembered(
            lm, model, given, came_with=True
        ).values()
        lm_weight = LM_WEIGHT if lm_weight is None else lm_weight
        max_active = 64 if max_active is None else max_active
        beam_threshold = BEAM_THRESHOLD if beam_threshold is None else beam_threshold
        if not beam_threshold > 0:
            raise ValueError(f"beam_threshold should be above 0, got {beam_threshold!r}")
        if blank_threshold is not None and not 0 < blank_threshold <= 1:
            raise ValueError(f"blank_threshold should be a probability above 0, got {blank_threshold!r}")
        if frame_seconds is not None and not 0 < frame_seconds < float("inf"):
            raise ValueError(f"frame_seconds should be above 0, got {frame_seconds!r}")
        if confidence is not None and confidence not in MEASURES:
            raise ValueError(f"confidence must be one of {MEASURES} or None, got {confidence!r}")
        self.max_active = whole("max_active", max_active, MOST_ACTIVE)
        self.beam_threshold = float(beam_threshold)
        self.beta = None if beta is None else check_weight(beta, "beta")
        self.beta_per = one_of("beta_per", beta_per, ("token", "word"))
        self.blank_threshold = float("inf") if blank_threshold is None else float(blank_threshold)
        self.score_eos = True if score_eos is None else bool(score_eos)
        self.num_return_sequences = whole("num_return_sequences", num_return_sequences, self.max_active, " (max_active)")
        self.frame_seconds = frame_seconds
        self.confidence = confidence
        self.engine = check_engine(engine)
        self.splitter = WordSplitter(self.tokenizer)
        if beta_per == "word" and self.splitter.mark is None and self.splitter.delimiter not in self.tokenizer.get_vocab():
            raise ValueError("beta_per='word': the tokenizer has neither marks nor a delimiter of words; use 'token'")
        if any(isinstance(model, LogLinear) for model in (lm if isinstance(lm, Sequence) else [lm])):
            raise ValueError("a graph is that of one language model for each row, not of several as LogLinear")
        self.fusion = Fusion(lm, lm_weight, None, 1.0, self.tokenizer)
        if self.fusion.grows:
            raise ValueError(
                "a graph has all states of its language model, but this one's are made as searches come to them; load the "
                'word-level model with composition="static"'
            )
        self.per_row: list[NGramLM | None] | None = list(lm) if isinstance(lm, Sequence) else None
        self.contexts = GraphContexts(self.fusion.contexts, DISCOUNT if discount is None else discount)
        self._take_phrases(phrases)

    def __call__(self, logits: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            logits: `[B, T, C]`, the model's outputs (log-probabilities will do): a tensor, an array or lists.
            lengths: integers `[B]`, frames of each row; all T if left out.
            phrases: for this batch in place of the decoder's: one context, or a list with one (or None) per row.

        Returns:
            For each row up to `num_return_sequences` hypotheses, the best one first. Their `acoustic_score` is that of one
            alignment, their `phrase_score` the sum of what phrases add.

        Raises:
            InvalidLogitsError: NaN or infinite logits, or a wrong shape.
            ValueError: lengths that don't fit the logits.
        """
        logits = tensor_of(logits, "logits")
        lengths = check_logits(logits, lengths, self.blank_id)
        stream = self.stream(logits.shape[0], logits.device, phrases)
        stream.add_checked(logits, lengths)
        return stream.hypotheses()

    def stream(self, batch_size: int = 1, device: torch.device | str = "cpu", phrases: Any = None) -> BlockStream:
        """Begin to decode a batch whose frames come block by block. Arguments as for a call."""
        lms: Sequence[NGramLM | None] = [*self.fusion.models * batch_size] if self.per_row is None else self.per_row
        weights = self.lm_weights(batch_size)
        contexts = self.contexts.of_rows(self.phrases if phrases is None else phrases, lms, weights)
        has_phrases = any(context is not None for context in contexts)
        models = self.fusion.rows(batch_size, numbered(device), contexts if has_phrases else None)

        def context_of(row: int, phrases: Any) -> tuple[Booster | None, float]:
            return self.contexts.of(phrases, lms[row], weights[row]), 1.0

        return BlockStream(GraphSlots(self, models), context_of)

    def context(self, phrases: Any, lm: NGramLM | None = None) -> Booster | None:
        """Make of some phrases what the search follows, to be passed in place of them.

        Args:
            phrases: texts, pairs of a text and a discount, or a mapping.
            lm: one of the decoder's language models, if there are several.

        Raises:
            ValueError: several language models and none named, or one that isn't the decoder's; an empty phrase, or a discount
                that isn't a finite number of at least 0.
        """
        if lm is None and len(self.fusion.models) > 1:
            raise ValueError(f"the decoder has {len(self.fusion.models)} language models; say which one: context(..., lm=...)")
        if lm is not None and all(other is not lm for other in self.fusion.models):
            raise ValueError("this lm isn't among the decoder's; make the decoder with it: lm=[...]")
        lm = self.fusion.models[0] if lm is None else lm
        if isinstance(self.fusion.weight, Tensor):
            raise ValueError(
                "what phrases earn depends on the LM's weight, and each row has its own; pass the phrases themselves"
            )
        return self.contexts.of(phrases, lm, self.lm_weights(1)[0])

    def with_phrases(self, phrases: Any, phrase_weight: float | Tensor | None = None) -> GraphDecoder:
        """Return the same with other phrases, as cheaply as phrases can be changed.

        Args:
            phrases: as for the decoder.
            phrase_weight: the discount of those without one of their own, a number or a tensor `[B]`; None: the decoder's.
        """
        selected = copy.copy(self)
        selected._take_phrases(phrases, phrase_weight)
        return selected

    def select(self, rows: Sequence[int]) -> GraphDecoder:
        """Return the same decoder for a batch of some of the rows that LMs, phrases, weights and `beta` list, in this order."""
        selected = copy.copy(self)
        selected.fusion = self.fusion.select(rows)
        selected.per_row = None if self.per_row is None else [self.per_row[row] for row in rows]
        selected.beta = None if self.beta is None else select_rows(self.beta, rows)
        if isinstance(self.phrases, list):
            selected.phrases = [self.phrases[row] for row in rows]
        if is_per_row(self.given_phrases):
            selected.given_phrases = [self.given_phrases[row] for row in rows]
        return selected

    def with_weights(
        self,
        lm_weight: float | Tensor | None = None,
        phrase_weight: float | Tensor | None = None,
        beta: float | Tensor | None = None,
    ) -> GraphDecoder:
        """Return the same with other weights; None leaves one as it is. Arguments as for the decoder, and for
        `with_phrases`."""
        selected = copy.copy(self)
        selected.fusion = self.fusion.with_weights(lm_weight)
        selected.beta = self.beta if beta is None else check_weight(beta, "beta")
        selected._take_phrases(self.given_phrases, phrase_weight)
        return selected

    def lm_weights(self, batch_size: int) -> list[float]:
        """Return the weight of the language model in each row."""
        weight = self.fusion.weight
        return weight.tolist() if isinstance(weight, Tensor) else [weight] * batch_size

    def _take_phrases(self, phrases: Any, discounts: float | Tensor | None = None) -> None:
        """Make of phrases what is followed, before there is audio, to tell of mistakes."""
        if isinstance(discounts, float | int):
            self.contexts = self.contexts.with_discount(_at_least_0(discounts))
        contexts = self.contexts
        if not isinstance(phrases, Booster | Sequence | Mapping | None):  # may be read only once
            phrases = checked_discounts(phrases, contexts.discount)
        self.phrases: Any = None
        self.given_phrases = phrases  # what they are made into depends on the language model and its weight
        if phrases is None:
            return
        listed = [self.per_row, phrases if is_per_row(phrases) else None, discounts, self.fusion.weight]
        sizes = [len(rows) for rows in listed if isinstance(rows, list | tuple | Tensor)]
        if isinstance(discounts, Tensor) and len(set(sizes)) > 1:
            raise ValueError(
                f"phrases, phrase_weight, lm or lm_weight are listed for different numbers of rows: {sorted(set(sizes))}"
            )
        if not sizes:
            self.phrases = contexts.of(phrases, self.fusion.models[0], self.lm_weights(1)[0])
            return
        models = [*self.fusion.models * sizes[0]] if self.per_row is None else self.per_row
        weights = self.lm_weights(len(models))
        if not isinstance(discounts, Tensor):
            self.phrases = contexts.of_rows(phrases, models, weights)
            return
        given = list(phrases) if is_per_row(phrases) else [phrases] * len(models)
        each = [contexts.with_discount(_at_least_0(discount)) for discount in discounts.tolist()]
        rows = zip(each, given, models, weights, strict=True)
        self.phrases = [of_row.of(context, model, weight) for of_row, context, model, weight in rows]

    def bonuses(self, models: RowModels, classes: int) -> Tensor:
        """Return what each token adds besides LM scores, float32 `[B, C]`."""
        lm_weights = models.lm_weights
        beta = BETA_PER_WEIGHT * lm_weights if self.beta is None else self.beta
        if isinstance(beta, Tensor):
            if beta.shape != lm_weights.shape:
                raise ValueError(f"beta has the shape {tuple(beta.shape)}, the batch has {len(lm_weights)} rows")
            beta = beta.detach().to(lm_weights.device, torch.float32)
        else:
            beta = torch.full_like(lm_weights, beta)
        bonuses = beta[:, None].repeat(1, classes)
        if self.beta_per == "word":
            bonuses = bonuses * self._begins_word(classes).to(bonuses.device)
        bonuses[:, models.vocab_size :] += unscored(models)[:, None]
        return bonuses.contiguous()

    def _begins_word(self, classes: int) -> Tensor:
        pieces = self.tokenizer.convert_ids_to_tokens(list(range(min(classes, len(self.tokenizer)))))
        mark, delimiter = self.splitter.mark, self.splitter.delimiter
        begins = [bool(piece) and (piece.startswith(mark) if mark else piece == delimiter) for piece in pieces]
        return torch.tensor(begins + [False] * (classes - len(begins)))


def _at_least_0(discount: float) -> float:
    if check_number(discount, "discount") < 0:
        raise ValueError(f"discount should be at least 0, got {discount!r}")
    return float(discount)
