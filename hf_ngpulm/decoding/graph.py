"""Define `GraphDecoder`, which decodes CTC outputs in the graph of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.batches import Outputs, tensor_of
from ..fusion.rows import RowModels
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..phrases import Booster
from ..phrases.contexts import GraphContexts, checked_discounts, is_per_row
from .ctc_defaults import blank_of, bonuses_of
from .decoder import Decoder, in_forms
from .hypotheses import Hypothesis
from .options import GraphOptions, takes
from .sessions.blocks import BlockStream, check_utterances, refuse_probabilities
from .sessions.ctc import unscored
from .sessions.graph import GraphSlots


class GraphDecoder(Decoder):
    """Decode CTC outputs by Viterbi search in a graph: the CTC topology composed with the automaton of a language model.

        decoder = GraphDecoder(processor, lm, phrases=["ryanair one sierra golf"])
        hypotheses = decoder(logits, lengths)
        stream = decoder.stream(batch_size)  # frames block by block; `stream.set_context(row, phrases)` at any time

    Two hypotheses in the same LM state have the same future, so the search keeps only the better one (Viterbi recombination).
    In contrast, `CTCDecoder` with a beam keeps every token sequence, even if several sequences have the same ending, and sums
    over the alignments of a sequence. Here a hypothesis is a single alignment, and `max_active` hypotheses cover more different
    endings. See `hf_ngpulm.search.ctc_graph`.

    The search runs on the CPU. Logits may be on any device; they are copied.

    Each row can have its own phrases, and phrases can change during an utterance. The search tracks phrases outside the graph
    (`hf_ngpulm.phrases.booster`). Each token of a phrase earns a bonus. A hypothesis that leaves an unfinished phrase repays
    the bonus, so a thousand phrases at once do little harm. Inside a phrase, a token that the LM hasn't seen costs at most as
    much as in a uniform model.

    Args:
        tokenizer_or_processor: the ASR model's tokenizer, or the processor that contains it.
        lm: the language model of all rows, or a list with one model (or None) per row. A model of words must be composed with
            its lexicon (`composition="static"`).
        lm_weight: weight of the LM's log-probabilities: a number, or a tensor `[B]` with one per row. The default is the weight
            that was tuned for `model` with `GraphDecoder` and saved with the LM, along with the other tuned settings (see
            `hf_ngpulm.config.tuned`), or else 0.5.
        max_active: number of hypotheses that the search keeps (default 64).
        beam_threshold: drops a hypothesis if its score is more than this below the best score (natural log, default 14).
        beta: bonus per token (natural log), a number or a tensor `[B]`; it balances an LM's preference for short transcripts.
            The default is as for `hf_ngpulm.CTCDecoder`.
        phrases: phrases to favour in all rows: texts, pairs of a text and a discount, a mapping from texts to discounts, a
            `PhraseBooster`, or the result of `context`. A list has one such context (or None) per row.
        discount: bonus per token of a phrase (natural log), at least 0 (default 1).
        num_return_sequences: number of hypotheses per row, at most `max_active`. The hypotheses differ in their tokens. If
            several hypotheses end in the same LM state, only the best one is returned.
        engine: "auto", "cpu" or "reference".
        rescorer, rescorer_weight, word_bonus, rescorer_best: as for `hf_ngpulm.CTCDecoder`.
        blank_threshold, score_eos, blank_id, frame_seconds, confidence, model: as for `hf_ngpulm.CTCDecoder`.

    Raises:
        TokenizerMismatchError: an LM belongs to another tokenizer.
        ValueError: an argument is out of range, or there is neither a padding token nor `blank_id`.
    """

    kind = GraphOptions
    options: GraphOptions

    @takes(GraphOptions)
    def __init__(
        self,
        tokenizer_or_processor: Any,
        lm: NGramLM | Sequence[NGramLM | None],
        lm_weight: float | Tensor | None = None,
        *,
        phrases: Any = None,
        model: Any = None,
        **options: Any,
    ) -> None:
        if any(isinstance(each, LogLinear) for each in (lm if isinstance(lm, Sequence) else [lm])):
            raise ValueError("a graph takes one language model per row, got LogLinear; pass one of its models")
        super().__init__(tokenizer_or_processor, lm, None, model, {"lm_weight": lm_weight, **options})
        if not self.fusion.models:
            raise ValueError(f"lm={lm}: a graph needs a language model; CTCDecoder decodes without one")
        self.blank_id = blank_of(self.tokenizer, self.options.blank_id, model)
        if self.fusion.is_lazy:
            raise ValueError(
                "GraphDecoder needs all states of the language model, but this one is composed lazily; load the word-level "
                'model with composition="static"'
            )
        self.contexts = GraphContexts(self.fusion.contexts, self.options.discount)
        self._take_phrases(phrases)

    def __call__(self, logits: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode a batch. Arguments and errors are as for `hf_ngpulm.CTCDecoder`.

        Returns:
            Up to `num_return_sequences` hypotheses per row, the best one first. `acoustic_score` is the score of one alignment,
            `phrase_score` the sum of the phrases' bonuses.
        """
        logits = tensor_of(logits, "logits").cpu()
        lengths = check_utterances(logits, lengths, self.blank_id)
        refuse_probabilities(logits, lengths)
        contexts = self._contexts(logits.shape[0], phrases)
        stream = self.stream(logits.shape[0], phrases=contexts)
        stream.add_checked(logits, lengths)
        return in_forms(stream.hypotheses(), contexts)

    def stream(self, batch_size: int = 1, device: torch.device | str = "cpu", phrases: Any = None) -> BlockStream:
        """Open a batch whose frames arrive in blocks. Arguments are as for `hf_ngpulm.CTCDecoder.stream`.

        `device` has no effect: frames may be on any device, and are searched on the CPU.
        """
        contexts = self._contexts(batch_size, phrases)
        has_phrases = any(context is not None for context in contexts)
        models = self.fusion.rows(batch_size, torch.device("cpu"), contexts if has_phrases else None)
        return BlockStream(self.slots(models))

    def _contexts(self, batch_size: int, phrases: Any) -> list[Booster | None]:
        """Return the compiled phrases of each row."""
        lms, weights = self._lms(batch_size), self.lm_weights(batch_size)
        return self.contexts.of_rows(self.phrases if phrases is None else phrases, lms, weights)

    def slots(self, models: RowModels) -> GraphSlots:
        """Return a new search. It has a slot for each row of `models`."""
        return GraphSlots(self, models)

    def followed(self, phrases: Any, lm: Any, lm_weight: float, phrase_weight: float | None) -> tuple[Booster | None, float]:
        contexts = self.contexts if phrase_weight is None else self.contexts.with_discount(phrase_weight)
        return contexts.of(phrases, lm, lm_weight), 1.0

    def fused_with(self, row: int) -> tuple[Any, float, float | None]:
        return self._lms(row + 1)[row], self.lm_weights(row + 1)[row], None

    def context(self, phrases: Any, lm: NGramLM | None = None) -> Booster | None:
        """Compile phrases once, so that many batches and streams can use them.

        Args:
            phrases: texts, pairs of a text and a discount, or a mapping from texts to discounts.
            lm: a language model of the decoder. It is required if there are several models, because bonuses depend on the LM.

        Returns:
            The context, which this decoder's methods accept as `phrases`. None if there are no phrases.

        Raises:
            ValueError: `lm` is missing or isn't a model of the decoder, a phrase is empty, or a discount isn't a finite number
                of at least 0.
        """
        if lm is None and len(self.fusion.models) > 1:
            raise ValueError(f"the decoder has {len(self.fusion.models)} language models; name one: context(..., lm=...)")
        if lm is not None and all(other is not lm for other in self.fusion.models):
            raise ValueError("this lm isn't among the decoder's; make the decoder with it: lm=[...]")
        lm = self.fusion.models[0] if lm is None else lm
        if isinstance(self.fusion.weight, Tensor):
            raise ValueError(
                "the bonuses of phrases depend on lm_weight, which differs by row; pass the phrases instead of a context"
            )
        return self.contexts.of(phrases, lm, self.lm_weights(1)[0])

    def with_phrases(self, phrases: Any, phrase_weight: float | Tensor | None = None) -> GraphDecoder:
        """Return a copy with other phrases; models and compiled contexts are shared.

        Args:
            phrases: as for the decoder.
            phrase_weight: discount of phrases without their own discount, a number or a tensor `[B]`; None keeps the decoder's
                discount.
        """
        selected = self._with()
        selected._take_phrases(phrases, phrase_weight)
        return selected

    @property
    def given_phrases(self) -> Any:
        return self._given_phrases

    def select(self, rows: Sequence[int]) -> GraphDecoder:
        selected = super().select(rows)
        if isinstance(self.phrases, list):
            selected.phrases = [self.phrases[row] for row in rows]
        if is_per_row(self.given_phrases):
            selected._given_phrases = [self.given_phrases[row] for row in rows]
        return selected

    def with_weights(
        self, lm_weight: float | Tensor | None = None, phrase_weight: float | Tensor | None = None, **more: Any
    ) -> GraphDecoder:
        """Return a copy with other weights; None keeps the present weight.

        Args:
            lm_weight: as for the decoder.
            phrase_weight: as for `with_phrases`.
            more: `beta`.
        """
        selected = super().with_weights(lm_weight, None, **more)
        selected._take_phrases(self.given_phrases, phrase_weight)
        return selected

    def lm_weights(self, batch_size: int) -> list[float]:
        """Return the weight of the language model in each row."""
        weight = self.fusion.weight
        return weight.tolist() if isinstance(weight, Tensor) else [weight] * batch_size

    def _lms(self, batch_size: int) -> Sequence[Any]:
        """Return the language model of each row."""
        return [*self.fusion.models * batch_size] if self.fusion.per_row is None else self.fusion.per_row

    def _take_phrases(self, phrases: Any, discounts: float | Tensor | None = None) -> None:
        """Compile the decoder's phrases now, so that invalid phrases raise errors before there is audio."""
        if isinstance(discounts, float | int):
            self.contexts = self.contexts.with_discount(discounts)
        if not isinstance(phrases, Booster | Sequence | Mapping | None):  # read an iterator once
            phrases = checked_discounts(phrases, self.contexts.discount)
        self.phrases: Any = None
        self._given_phrases = phrases  # compiled anew when the language model or its weight changes
        if phrases is None:
            return
        listed = [self.fusion.per_row, phrases if is_per_row(phrases) else None, discounts, self.fusion.weight]
        sizes = [len(rows) for rows in listed if isinstance(rows, list | tuple | Tensor)]
        if not sizes:
            self.phrases = self.contexts.of(phrases, self.fusion.models[0], self.lm_weights(1)[0])
            return
        lms = self._lms(sizes[0])
        weights = self.lm_weights(len(lms))
        if not isinstance(discounts, Tensor):
            self.phrases = self.contexts.of_rows(phrases, lms, weights)
            return
        if len(set(sizes)) > 1:
            raise ValueError(
                f"phrases, phrase_weight, lm or lm_weight are listed for different numbers of rows: {sorted(set(sizes))}"
            )
        each = [self.contexts.with_discount(discount) for discount in discounts.tolist()]
        contexts = list(phrases) if is_per_row(phrases) else [phrases] * len(lms)
        self.phrases = [of_row.of(*row) for of_row, *row in zip(each, contexts, lms, weights, strict=True)]

    def bonuses(self, models: RowModels, classes: int) -> Tensor:
        """Return the bonus of each class, which the search adds to the LM scores, float32 `[B, C]`."""
        bonuses = bonuses_of(self.options.beta, models)[:, None].repeat(1, classes)
        bonuses[:, models.vocab_size :] += unscored(models)[:, None]
        return bonuses.contiguous()
