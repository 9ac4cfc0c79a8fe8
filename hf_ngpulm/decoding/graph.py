"""GraphDecoder: CTC outputs decoded in the graph of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.batches import Outputs, tensor_of
from ..common.checks import check, one_of, refuse_idle
from ..engines.devices import numbered
from ..fusion.fusion import RowModels
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..phrases import Booster
from ..phrases.contexts import GraphContexts, checked_discounts, is_per_row
from .ctc import CTCDecoder, blank_of, bonuses_of
from .decoder import Decoder
from .hypotheses import Hypothesis
from .options import GraphOptions, takes
from .sessions.blocks import BlockStream, check_utterances, refuse_probabilities
from .sessions.ctc import unscored
from .sessions.graph import GraphSlots


class GraphDecoder(Decoder):
    """Viterbi decoding of CTC outputs in a graph: the CTC topology times the automaton of a language model.

        decoder = GraphDecoder(processor, lm, phrases=["ryanair one sierra golf"])
        hypotheses = decoder(logits, lengths)
        stream = decoder.stream(batch_size)  # frames block by block; `stream.set_context(row, phrases)` at any time

    Hypotheses that have come to the same state of the LM are one: the best of them goes on. `CTCDecoder` with a beam keeps
    token sequences apart however alike their ends are, and sums their alignments; here a hypothesis is one alignment, and a
    number of them covers more different endings. See `hf_ngpulm.search.ctc_graph`.

    Phrases can be other ones for each row, and change in mid-utterance. The search follows them beside the graph
    (`hf_ngpulm.phrases.booster`): what tokens earn is taken back where a phrase isn't completed, so that also one name
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
        beta: bonus for each token (natural log), against an LM's liking for short transcripts: a number or a tensor `[B]`. By
            default as for `hf_ngpulm.CTCDecoder`.
        phrases: what shall be recognised, for all rows: texts, pairs of a text and a discount, a mapping, a `PhraseBooster`, or
            what `context` returns; or a list with such a context (or None) per row.
        discount: what each token of a phrase adds (natural log), at least 0. By default 1.
        num_return_sequences: hypotheses that are returned for each row, which differ in their tokens; at most `max_active`. Of
            those that meet only the best goes on: ones that differ in nothing but what the LM no longer remembers at the end
            aren't among them.
        blank_threshold, score_eos, blank_id, frame_seconds, confidence, engine, model: as for `hf_ngpulm.CTCDecoder`.

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range, or a tokenizer without padding token and no `blank_id`.
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
            raise ValueError("a graph is that of one language model for each row, not of several as LogLinear")
        super().__init__(tokenizer_or_processor, lm, None, model, {"lm_weight": lm_weight, **options})
        if not self.fusion.models:
            raise ValueError(f"lm={lm}: there is no graph without a language model; CTCDecoder decodes without one")
        self.blank_id = blank_of(self.tokenizer, self.options.blank_id)
        if self.fusion.is_lazy:
            raise ValueError(
                "a graph has all states of its language model, but this one's are made as searches come to them; load the "
                'word-level model with composition="static"'
            )
        self.contexts = GraphContexts(self.fusion.contexts, self.options.discount)
        self._take_phrases(phrases)

    def __call__(self, logits: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode a batch. Arguments and errors as for `hf_ngpulm.CTCDecoder`.

        Returns:
            For each row up to `num_return_sequences` hypotheses, the best one first. Their `acoustic_score` is that of one
            alignment, their `phrase_score` the sum of what phrases add.
        """
        logits = tensor_of(logits, "logits")
        lengths = check_utterances(logits, lengths, self.blank_id)
        refuse_probabilities(logits, lengths)
        stream = self.stream(logits.shape[0], logits.device, phrases)
        stream.add_checked(logits, lengths)
        return stream.hypotheses()

    def stream(self, batch_size: int = 1, device: torch.device | str = "cpu", phrases: Any = None) -> BlockStream:
        """Begin to decode a batch whose frames come block by block. Arguments as for a call."""
        lms, weights = self._lms(batch_size), self.lm_weights(batch_size)
        contexts = self.contexts.of_rows(self.phrases if phrases is None else phrases, lms, weights)
        has_phrases = any(context is not None for context in contexts)
        models = self.fusion.rows(batch_size, numbered(device), contexts if has_phrases else None)
        return BlockStream(GraphSlots(self, models))

    def followed(self, phrases: Any, lm: Any, lm_weight: float, phrase_weight: float | None) -> tuple[Booster | None, float]:
        contexts = self.contexts if phrase_weight is None else self.contexts.with_discount(phrase_weight)
        return contexts.of(phrases, lm, lm_weight), 1.0

    def fused_with(self, row: int) -> tuple[Any, float, float | None]:
        return self._lms(row + 1)[row], self.lm_weights(row + 1)[row], None

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
        """Return the same with other weights; None leaves one as it is. `more` may be `beta`; arguments as for the decoder, and
        for `with_phrases`."""
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
        """Make of phrases what is followed, before there is audio, to tell of mistakes."""
        if isinstance(discounts, float | int):
            self.contexts = self.contexts.with_discount(discounts)
        if not isinstance(phrases, Booster | Sequence | Mapping | None):  # may be read only once
            phrases = checked_discounts(phrases, self.contexts.discount)
        self.phrases: Any = None
        self._given_phrases = phrases  # what they are made into depends on the language model and its weight
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
        given = list(phrases) if is_per_row(phrases) else [phrases] * len(lms)
        self.phrases = [of_row.of(*row) for of_row, *row in zip(each, given, lms, weights, strict=True)]

    def bonuses(self, models: RowModels, classes: int) -> Tensor:
        """Return what each token adds besides LM scores, float32 `[B, C]`."""
        bonuses = bonuses_of(self.options.beta, models)[:, None].repeat(1, classes)
        bonuses[:, models.vocab_size :] += unscored(models)[:, None]
        return bonuses.contiguous()


def ctc_decoder(tokenizer: Any, strategy: str | None = None, **settings: Any) -> CTCDecoder | GraphDecoder:
    """Return the decoder of CTC outputs for settings as pipelines call them: `strategy="graph"` for one in a graph.

    Raises:
        ValueError: another strategy, or settings that the decoder doesn't have.
    """
    if strategy is None:
        return CTCDecoder(tokenizer, **settings)
    check("strategy", strategy, one_of("graph"))
    of_others = {name: settings.pop(name, None) for name in ("repeats", "merge", "source_lm", "source_weight")}
    refuse_idle(of_others, "has no meaning in a graph; leave it out, or strategy='graph'")
    own = {known: name for name, known in GraphOptions.known_as.items()}
    return GraphDecoder(tokenizer, **{own.get(name, name): value for name, value in settings.items()})
