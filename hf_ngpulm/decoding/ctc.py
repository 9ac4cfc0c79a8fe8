"""CTCDecoder: from logits to hypotheses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..common.batches import Outputs, tensor_of
from ..engines.devices import numbered
from ..fusion.fusion import RowModels, weights_of
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..search import ctc_greedy as greedy
from ..text.hashing import text_hashes
from ..text.words import WordSplitter
from .decoder import Decoder
from .hypotheses import Hypothesis
from .options import CTCOptions, takes
from .sessions.blocks import BlockStream, check_utterances, refuse_probabilities
from .sessions.ctc import CoreSlots, Prepared, ctc_slots, label_frames

# `beta` for an LM weight of 1. By log(V), about what the average token costs in a unigram model: with less, words are left out
# where recognisers hear badly (benchmarks/joined.py). Single sentences bear less of it with weights above `MOST_SHARED`: from
# there on it stays, until it is what the average token costs in an LM.
BETA_SHARE, MOST_SHARED, BETA_PER_WEIGHT = 0.85, 0.8, 3.0


class CTCDecoder(Decoder, caches={"_text_hashes": dict, "_prepared": lambda: None}):
    """Decoding of CTC outputs, greedily or with a beam, with n-gram language models fused in.

    Args:
        tokenizer_or_processor: the ASR model's tokenizer, or a processor that has it.
        lm: a language model for all rows, the id of its Hub repo, a folder or a file (see `load_language_model`), several as
            `LogLinear`, or a list with one of these (or None) per row; None decodes without.
        lm_weight: weight of the LM's log-probabilities, one number or a tensor `[B]` with one per row. By default what the LM
            remembers for `model`, with the rest of what was tuned for it (see `hf_ngpulm.config.tuned`); or else 0.5.
        phrases: phrases that shall be recognised, for all rows: a `PhraseBooster`, or what one is made of; or a list with such
            a context (or None) per row.
        phrase_weight: what their bonuses are multiplied with, one number or a tensor `[B]` (default 1).
        num_beams: prefixes that the search keeps; 1 searches greedily; "auto" is 4 (or `num_return_sequences`, if that is
            more), most of the gain at little cost. The default is "auto" with `lm` or `phrases`, lists of them included, and 1
            without. A call with phrases counts, too. With `repeats` the default is 1.
        beta: bonus for each token (natural log), against an LM's liking for short transcripts: a number or a tensor `[B]`. In
            beam search with an LM of V tokens the default is 0.85 log(V) times the LM's weight, nearly what chance would cost;
            weights above 0.8 count as 0.8 there, but it is at least 3 times the weight (for V = 256: 3.3 for a weight of 0.7,
            3.8 for 1). Without one it is 0, and where the LM has a bonus for words (`word_bonus`, see
            `hf_ngpulm.lexicon.compose`). For beam search only.
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
        source_lm: an n-gram model of the text that the recogniser was trained on, whose log-probabilities are subtracted (the
            density ratio, McDermott et al., ASRU 2019; with a bigram LODR, Zheng et al., Interspeech 2022).
        source_weight: with what weight, a number or a tensor `[B]`; half of `lm_weight` if left out.
        model: the CTC model (of Transformers) whose outputs will be decoded, for settings that were tuned for it; it isn't run.

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range or without meaning for the search, or a tokenizer without padding token and no
            `blank_id`.
    """

    kind = CTCOptions
    options: CTCOptions
    splitter: WordSplitter

    @takes(CTCOptions)
    def __init__(
        self,
        tokenizer_or_processor: Any,
        lm: NGramLM | LogLinear | Sequence[NGramLM | LogLinear | None] | None = None,
        lm_weight: float | Tensor | None = None,
        phrases: Any = None,
        phrase_weight: float | Tensor | None = None,
        *,
        model: Any = None,
        **options: Any,
    ) -> None:
        given = {"lm_weight": lm_weight, "phrase_weight": phrase_weight, **options}
        super().__init__(tokenizer_or_processor, lm, phrases, model, given)
        self.blank_id = blank_of(self.tokenizer, self.options.blank_id)
        lms = self.fusion.lms
        if self.options.num_beams > 1 and self.options.beta is None and lms and all(map(_has_word_bonus, lms)):
            self.options = replace(self.options, beta=0.0)
        self._text_hashes: dict[tuple[int, torch.device], Tensor] = {}
        # For the last batch, and others like it: models, options, and what the core reads of them.
        self._prepared: tuple[RowModels, CTCOptions, Prepared] | None = None

    def __call__(self, logits: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            logits: `[B, T, C]`, the model's outputs (log-probabilities will do): a tensor, an array or lists.
            lengths: integers `[B]`, frames of each row. If left out, all T but for padding at the end: frames whose classes all
                have one and the same number, such as the -100 with which the Trainer of Transformers pads predictions.
            phrases: for this batch in place of the decoder's: one context, or a list with one (or None) per row.

        Returns:
            For each row up to `num_return_sequences` hypotheses, the best one first.

        Raises:
            InvalidLogitsError: NaN or infinite logits, probabilities (pass their logarithms), or a wrong shape.
            ValueError: lengths that don't fit the logits.
        """
        logits = tensor_of(logits, "logits")
        lengths = self.check(logits, lengths)
        hypotheses = self.guided(phrases).decode_checked(logits, lengths, phrases)
        refuse_probabilities(logits, lengths)  # a GPU would have had to wait for it before
        return hypotheses

    def check(self, logits: Tensor, lengths: Outputs | None) -> Tensor:
        """Return lengths of the rows of some logits, int32 `[B]`. Raises what a call raises, but for probabilities."""
        return check_utterances(logits, lengths, self.blank_id)

    def decode_checked(self, logits: Tensor, lengths: Tensor, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode what `check` has seen."""
        models = self.fusion.shared_rows(logits.shape[0], logits.device, phrases)
        stream = self._stream(models)
        slots = stream.slots
        if isinstance(slots, CoreSlots):
            slots.prepared = self._prepared_for(models)
        stream.add_checked(logits, lengths)
        return stream.hypotheses()

    def _prepared_for(self, models: RowModels) -> Prepared:
        last = self._prepared
        if last is None or last[0] is not models or last[1] is not self.options:
            self._prepared = last = models, self.options, Prepared(self, models.composed())
        return last[2]

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
        return self.guided(phrases)._stream(self.fusion.rows(batch_size, numbered(device), phrases))

    def _stream(self, models: RowModels) -> BlockStream:
        return BlockStream(ctc_slots(self, models))

    def label_frames(self, logits: Outputs, lengths: Outputs | None = None) -> greedy.GreedyLabels:
        """Return the class that greedy search gives each frame, before blanks and repeats are dropped. Arguments as for a
        call."""
        logits = tensor_of(logits, "logits")
        lengths = self.check(logits, lengths)
        refuse_probabilities(logits, lengths)
        models = self.fusion.rows(logits.shape[0], logits.device)
        before = torch.full((logits.shape[0], 2), self.blank_id, dtype=torch.int32, device=logits.device)
        return label_frames(self, models, models.states, before, logits.detach(), lengths)

    def token_bonuses(self, models: RowModels) -> Tensor:
        """Return what beam search adds for each token, float32 `[B]`."""
        return bonuses_of(self.options.beta, models)

    def text_hashes(self, classes: int, device: torch.device) -> Tensor | None:
        """Return what beam search joins prefixes by, see `hf_ngpulm.text.hashing`; None if it joins none."""
        if self.options.merge == "tokens":
            return None
        key = classes, device
        if key not in self._text_hashes:
            self._text_hashes[key] = text_hashes(self.tokenizer, classes).to(device)
        return self._text_hashes[key]


def bonuses_of(beta: float | Tensor | None, models: RowModels) -> Tensor:
    """Return the bonus for each token, float32 `[B]`.

    Raises:
        ValueError: a tensor for another number of rows.
    """
    lm_weights = models.lm_weights
    if beta is None:
        shared = BETA_SHARE * math.log(max(models.vocab_size, 1)) * lm_weights.clamp(max=MOST_SHARED)
        return shared.maximum(BETA_PER_WEIGHT * lm_weights)
    return weights_of(beta, "beta", len(lm_weights), lm_weights.device)


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
