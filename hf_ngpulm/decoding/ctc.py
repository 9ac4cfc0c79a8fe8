"""CTCDecoder: from logits to hypotheses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..common.batches import Outputs, tensor_of
from ..engines.choice import is_native
from ..engines.devices import numbered
from ..fusion.rows import RowModels
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..search import ctc_greedy as greedy
from ..text.hashing import text_hashes
from ..text.words import WordSplitter
from . import guard
from .ctc_defaults import blank_of, bonuses_of
from .decoder import Decoder
from .hypotheses import Hypothesis
from .options import CTCOptions, takes
from .sessions.blocks import BlockStream, check_utterances, refuse_probabilities
from .sessions.ctc import CTCSlots
from .sessions.ctc_native import CoreBeamSlots, CoreGreedySlots, CoreSlots
from .sessions.ctc_tensors import BeamSlots, GreedySlots, label_frames


class CTCDecoder(Decoder, caches={"_text_hashes": dict, "_kept": lambda: None}):
    """Decode CTC outputs, greedily or with a beam, with n-gram LMs and phrases (shallow fusion, contextual biasing).

    Args:
        tokenizer_or_processor: the ASR model's tokenizer, or the processor that contains it.
        lm: the language model of all rows: an `NGramLM`, a Hub repo id, a folder or a file (see `load_language_model`), or
            several models as `LogLinear`. A list has one model (or None) per row. None decodes without an LM.
        lm_weight: weight of the LM's log-probabilities: a number, or a tensor `[B]` with one per row. The default is the weight
            that was tuned for `model` and saved with the LM (see `hf_ngpulm.config.tuned`), or 0.8 if there is none.
        phrases: hotwords or phrases to favour in all rows: a `PhraseBooster`, or its arguments. A list has one entry (or None)
            per row.
        phrase_weight: factor of the phrases' bonuses: a number or a tensor `[B]` (default 1).
        num_beams: number of prefixes that the search keeps. 1 is greedy search. "auto" is 4, or `num_return_sequences` if that
            is more; 4 beams give most of the gain at little cost. With `lm` or `phrases` the default is "auto", also if a call
            passes the phrases. Without both, or with `repeats`, the default is 1.
        beta: bonus per token (natural log), a number or a tensor `[B]`; it balances an LM's preference for short transcripts.
            Beam search only. With an LM of V tokens the default is `max(0.85 log(V) min(weight, 0.8), 3 weight)`: for V = 256,
            3.3 at weight 0.7 and 3.8 at weight 1. Without an LM, or with a word bonus in the LM (`word_bonus`, see
            `hf_ngpulm.lexicon.compose`), the default is 0. In a grammar the default is at least `0.77 log(V)` minus the mean
            logarithm of the number of tokens that may follow (`CompiledGrammar.branching`).
        beam_threshold: drops a prefix if its score is more than this below the best score (natural log). Beam search only.
        blank_threshold: a frame counts as a blank frame if the probability of the blank is higher than this value. This saves
            time. None turns this off. Beam search only.
        score_eos: adds the LM's score of `</s>` when the hypotheses are ranked. Set it to False for utterances that may stop in
            mid-sentence. Beam search only.
        merge: "tokens" (default) merges alignments of the same tokens; "text" also merges prefixes that spell the same text
            with other tokens, and adds their probabilities. Use "text" for word-level LMs with several `cuttings`, because the
            cuttings of a word would otherwise fill the beam. Beam search only.
        num_return_sequences: number of hypotheses per row, at most `num_beams`.
        rescorer: a causal language model that reranks all hypotheses of the beam (see `hf_ngpulm.Rescorer`); the default
            `num_beams` is then 8.
        rescorer_weight: weight of the rescorer's log-probabilities, a number or a tensor `[B]` (default 0.3).
        word_bonus: bonus that rescoring adds for each word, a number or a tensor `[B]` (default 0).
        rescorer_best: number of hypotheses that the rescorer reads (default: all). It reads the best hypotheses of the beam.
            With `rescorer_every` this also holds during the search, and hypotheses that aren't read get an average score.
        rescorer_every: lets the rescorer take part in the search (delayed fusion, arXiv 2501.09258). A number is an interval in
            seconds of audio; "word" means an interval of one frame. After each interval, the rescorer scores the complete words
            of the hypotheses. From then on, the search ranks hypotheses with these scores; final scores are as without this
            option. In languages without spaces there are no complete words before the end. None (default): the rescorer ranks
            the hypotheses at the end only.
        repeats: rule by which greedy search with an LM continues the label of the previous frame: "stay" (default) continues it
            if that scores better; "label" is NeMo's rule; "run" is described in `hf_ngpulm.search.ctc_greedy`. "stay" has the
            lowest word error rate on the project's development set.
        blank_id: class of the blank; default: `blank_token_id` of the config of `model`, or else the tokenizer's padding token.
        frame_seconds: duration of a frame; without it words have no times.
        confidence: confidence measure of tokens and words: "max_prob", "gibbs", "tsallis" or "renyi" (see
            `hf_ngpulm.search.confidence`), a `Calibration` of such a measure, or None.
        engine: "auto" (by device), "reference", "cpu" or "gpu".
        source_lm: an n-gram model of the recogniser's training text. Its log-probabilities are subtracted (density ratio,
            McDermott et al., ASRU 2019; with a bigram model LODR, Zheng et al., Interspeech 2022).
        source_weight: weight of `source_lm`, a number or a tensor `[B]`; default: half of `lm_weight`.
        lm_guard: minimum evidence of an LM, in nats per token. Rows with less evidence are decoded again without the LM, so
            that an LM that was made for other speech does almost no harm (see `hf_ngpulm.decoding.guard`). "auto" (default) is
            0.5, or -0.5 for a word-level LM. With "auto", the LM may also cost at most 1 nat of acoustic score per token, or 2
            if it is word-level; "off" keeps the LM in all rows. See `Hypothesis.lm_left_out`.
        model: the CTC model of Transformers that computes the logits. The decoder doesn't run the model, but reads tuned
            settings and the blank for it.

    Raises:
        TokenizerMismatchError: an LM belongs to another tokenizer.
        ValueError: an argument is out of range or has no effect in this search, or there is neither a padding token nor
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
        self.blank_id = blank_of(self.tokenizer, self.options.blank_id, model)
        lms = self.fusion.lms
        if self.options.num_beams > 1 and self.options.beta is None and lms and all(map(_has_word_bonus, lms)):
            self.options = replace(self.options, beta=0.0)
        self._text_hashes: dict[tuple[int, torch.device], Tensor] = {}
        # The models and options of the last batch, and its search, for the next batch with the same ones.
        self._kept: tuple[RowModels, CTCOptions, BlockStream] | None = None

    def __call__(self, logits: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            logits: `[B, T, C]`, the model's outputs or log-probabilities: a tensor, an array or lists.
            lengths: integers `[B]`, number of frames of each row. The default is T minus the padding at the end. A frame is
                padding if all its classes have the same value, for example the -100 of the Trainer of Transformers.
            phrases: replaces the decoder's phrases in this batch: one context, or a list with one context (or None) per row.

        Returns:
            Up to `num_return_sequences` hypotheses per row, the best one first.

        Raises:
            InvalidLogitsError: the logits hold NaN or infinity, are probabilities (pass logarithms), or have a wrong shape.
            ValueError: the lengths don't fit the logits.
        """
        logits = tensor_of(logits, "logits")
        lengths = self.check(logits, lengths)
        phrases = list(phrases) if isinstance(phrases, Iterator) else phrases
        hypotheses = self.guided(phrases).decode_checked(logits, lengths, phrases)
        refuse_probabilities(logits, lengths)  # last, since it waits for the GPU
        return self.finished(hypotheses, phrases)

    def check(self, logits: Tensor, lengths: Outputs | None) -> Tensor:
        """Validate logits, and return the number of frames of each row, int32 `[B]`. Probabilities are refused later."""
        return check_utterances(logits, lengths, self.blank_id)

    def decode_checked(self, logits: Tensor, lengths: Tensor, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode logits that `check` has validated, without a rescorer."""
        if self.is_guarded and phrases is not None:  # they may be read once only
            phrases = self.fusion.contexts.of_rows(phrases, len(logits))
        models = self.fusion.shared_rows(logits.shape[0], logits.device, phrases)
        kept, self._kept = self._kept, None  # no other thread gets it meanwhile
        if kept is not None and kept[0] is models and kept[1] is self.options:
            stream = kept[2]
            stream.begin()
        else:
            stream = BlockStream(self.slots(models))
        stream.add_checked(logits, lengths)
        hypotheses = stream.searched()
        if stream.is_small and isinstance(stream.slots, CoreSlots) and self.fusion.shares(models):
            self._kept = models, self.options, stream
        if not self.is_guarded:
            return hypotheses

        def again(decoder: CTCDecoder, rows: Tensor, phrases: Any) -> list[list[Hypothesis]]:
            return decoder.decode_checked(logits[rows], lengths[rows], phrases)

        bests = [of_row[0] if of_row else None for of_row in hypotheses]
        judged = [self.judged(best.token_ids, best.lm_score, best.acoustic_score) if best else guard.NOTHING for best in bests]
        for row, found in self.guarded(judged, phrases, again, _best_acoustic_score, logits.device):
            hypotheses[row] = [replace(hypothesis, lm_left_out=True) for hypothesis in found]
        return hypotheses

    def _with(self, **attributes: Any) -> CTCDecoder:
        return super()._with(_kept=None, **attributes)

    def stream(self, batch_size: int = 1, device: torch.device | str = "cpu", phrases: Any = None) -> BlockStream:
        """Open a batch whose frames arrive in blocks.

            stream = decoder.stream(batch_size)
            stream.add(logits)  # [B, T, C], as often as there is more
            hypotheses = stream.hypotheses()

        `lm_guard` has no effect here, because blocks can't be decoded again.

        Args:
            batch_size: B.
            device: device of the search.
            phrases: as for a call.
        """
        return BlockStream(self.guided(phrases).slots(self.fusion.rows(batch_size, numbered(device), phrases)))

    def slots(self, models: RowModels) -> CTCSlots:
        """Return a new search. It has a slot for each row of `models`."""
        if is_native(self.options.engine, models.states.device):
            return (CoreGreedySlots if self.options.is_greedy else CoreBeamSlots)(self, models)
        return (GreedySlots if self.options.is_greedy else BeamSlots)(self, models)

    def label_frames(self, logits: Outputs, lengths: Outputs | None = None) -> greedy.GreedyLabels:
        """Return each frame's class in greedy search, including blanks and repeats. The arguments are as for a call."""
        logits = tensor_of(logits, "logits")
        lengths = self.check(logits, lengths)
        refuse_probabilities(logits, lengths)
        models = self.fusion.rows(logits.shape[0], logits.device)
        before = torch.full((logits.shape[0], 2), self.blank_id, dtype=torch.int32, device=logits.device)
        return label_frames(self, models, models.states, before, logits.detach(), lengths)

    def token_bonuses(self, models: RowModels) -> Tensor:
        """Return the bonus per token in beam search, float32 `[B]`."""
        bonuses = bonuses_of(self.options.beta, models)
        return bonuses if models.silent is None else bonuses.masked_fill(models.silent, 0.0)

    def text_hashes(self, classes: int, device: torch.device) -> Tensor | None:
        """Return the hashes that merge prefixes of the same text (see `hf_ngpulm.text.hashing`); None if `merge="tokens"`."""
        if self.options.merge == "tokens":
            return None
        key = classes, device
        if key not in self._text_hashes:
            self._text_hashes[key] = text_hashes(self.tokenizer, classes).to(device)
        return self._text_hashes[key]


def _best_acoustic_score(hypotheses: list[Hypothesis]) -> float:
    return hypotheses[0].acoustic_score if hypotheses else -math.inf


def _has_word_bonus(lm: NGramLM) -> bool:
    words = getattr(getattr(lm, "config", None), "words", None)
    return words is not None and words.word_bonus != 0
