"""Run this package's search with pyctcdecode's settings."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.batches import tensor_of
from ..common.checks import WEIGHT, check, whole
from ..common.pickling import WithoutCaches
from ..decoding.ctc import CTCDecoder
from ..decoding.hypotheses import Hypothesis
from ..decoding.options import MOST_BEAMS
from ..decoding.sessions.blocks import BlockStream
from ..errors import InvalidLogitsError
from ..formats.wav2vec2.alphabet import Alphabet
from ..formats.wav2vec2.constants import MIN_TOKEN_CLIP_P
from ..formats.wav2vec2.word_files import CUTTINGS
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..phrases import PhraseBooster
from .beams import LabelWriting, OutputBeam, WordFrames, WordsOfLabels
from .language_model import HotwordScorer
from .weighed_lm import LMState, Models

logger = logging.getLogger(__name__)

MOST_ENTRIES = 1 << 25  # largest batch: rows x frames x prefixes
KEPT = 16  # number of cached decoders and automata of hotwords
MORE_PREFIXES = 16  # additional prefixes for pieces: a text may have several segmentations, until they are merged
LEAST_THRESHOLD = 1e-5  # minimum threshold, so that rounding in single precision doesn't drop equal scores
LEAST_LOG_PROB = math.log(MIN_TOKEN_CLIP_P)
NEVER = -1e4  # log-probability of a label that is left out


class Searches(WithoutCaches, caches={"_kept": OrderedDict}):
    """Make the searches of a decoder, and cache decoders and automata of hotwords. `alphabet`: labels of the outputs.
    `tokenizer`: the tokenizer of the labels, or the recogniser's tokenizer. `models`: the language models.
    """

    def __init__(self, alphabet: Alphabet, tokenizer: Any, models: Models) -> None:
        self.labels, self.is_bpe, self.tokenizer, self.models = alphabet.labels, alphabet.is_bpe, tokenizer, models
        self.share = 1 / max(1, len(models))  # weight of each model
        self._attrs: Any = None  # the weights of the cached parts
        self._kept: OrderedDict[Any, Any] = OrderedDict()

    def search(
        self,
        beam_width: int,
        beam_prune_logp: float,
        token_min_logp: float,
        hotwords: HotwordScorer | None = None,
        lm_start_state: LMState | None = None,
        prefixes: int = MOST_BEAMS,
    ) -> CallSearch:
        """Check the settings of a call to `decode_beams`, and return its search. `prefixes`: number of best prefixes that can
        become transcripts. Raises ValueError if a setting is out of range, TypeError if `lm_start_state` is of another class.
        """
        beam_width = check("beam_width", beam_width, whole())
        if beam_width > MOST_BEAMS:
            logger.warning("beam_width=%s: the search keeps %s prefixes, no more are possible", beam_width, MOST_BEAMS)
        if not beam_prune_logp <= 0:
            raise ValueError(f"beam_prune_logp should be at most 0, got {beam_prune_logp!r}")
        if math.isnan(token_min_logp):
            raise ValueError(f"token_min_logp should be a number, got {token_min_logp!r}")
        if lm_start_state is not None and not isinstance(lm_start_state, LMState):
            raise TypeError(
                "lm_start_state should be the last_lm_state of a beam that this decoder has returned, got "
                f"{type(lm_start_state).__module__}.{type(lm_start_state).__name__}"
            )
        threshold = min(max(-float(beam_prune_logp), LEAST_THRESHOLD), 1e9)
        attrs = [model.language_model.attrs for model in self.models]
        if attrs != self._attrs:
            self._attrs = attrs
            self._kept.clear()
        lms = tuple(model.weighed(of_model) for model, of_model in zip(self.models, attrs, strict=True))
        key = (beam_width, threshold, prefixes)
        decoder = self._keep(key, lambda: self._decoder(lms, *key))
        booster = None
        if hotwords is not None and hotwords.words:
            earning = (hotwords.words, hotwords.weight)
            booster = self._keep(earning, lambda: self._booster(lms, *earning))
            decoder = decoder.with_phrases(booster)
        starts = None if lm_start_state is None else lm_start_state.of(self.models)
        return CallSearch(self, decoder, lms, booster, beam_width, threshold, float(token_min_logp), starts)

    def _keep(self, key: Any, make: Callable[[], Any]) -> Any:
        made = self._kept.get(key)
        if made is None:
            made = self._kept[key] = make()
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def _decoder(self, lms: tuple[NGramLM, ...], beam_width: int, threshold: float, prefixes: int) -> CTCDecoder:
        """Return a decoder of this package with the weighted language models `lms`. `threshold`: minus `beam_prune_logp`.
        `prefixes`: maximum number of prefixes that become transcripts.
        """
        # With 1 the decoder would search alignments instead of prefixes.
        num_beams = min(MOST_BEAMS, max(2, beam_width + MORE_PREFIXES * self.is_bpe))
        lm = LogLinear(lms, [self.share] * len(lms)) if len(lms) > 1 else lms[0] if lms else None
        return CTCDecoder(
            self.tokenizer, lm, 1.0, num_beams=num_beams, beta=0.0, beam_threshold=threshold,
            merge="text" if self.is_bpe else None, num_return_sequences=min(prefixes, num_beams),
            blank_id=self.labels.index(""), confidence=None, lm_guard="off",
        )  # fmt: skip

    def _booster(self, lms: tuple[NGramLM, ...], words: tuple[str, ...], weight: float) -> PhraseBooster:
        """Return a booster of hotwords. Each label earns its share of the weight, so a complete word earns the whole weight."""
        return PhraseBooster(
            list(words), self.tokenizer, check("hotword_weight", weight, WEIGHT), "phrase", case="keep", tokenizations=CUTTINGS,
            whole_words=self.is_bpe or " " in self.labels, vocab_size=lms[0].vocab_size if lms else None,
        )  # fmt: skip


@dataclass(frozen=True)
class CallSearch:
    """Search with the settings of one call. `Searches.search` checks the settings and makes the search."""

    of: Searches
    decoder: CTCDecoder  # this package's decoder, with the settings and the hotwords
    lms: tuple[NGramLM, ...]  # the weighted language models
    booster: PhraseBooster | None  # the hotwords
    beam_width: int
    threshold: float  # minus pyctcdecode's `beam_prune_logp`
    token_min_logp: float
    starts: tuple[int, ...] | None  # initial states of the language models; None selects each model's start state

    @property
    def writing(self) -> LabelWriting:
        """Return the rule that forms words from labels."""
        special = self.decoder.splitter.special
        return LabelWriting(["" if token in special else label for token, label in enumerate(self.of.labels)], self.of.is_bpe)

    def log_probs(self, logits: Any) -> Tensor:
        """Return log-probabilities float32 `[T, C]` from logits, log-probabilities or probabilities."""
        values, classes = tensor_of(logits, "logits").detach().float(), len(self.of.labels)
        if values.dim() != 2 or values.shape[1] != classes:
            raise InvalidLogitsError(
                f"logits should have the shape [T, {classes}], a class for each label (the blank among them), got "
                f"{list(values.shape)}"
            )
        if len(values) and bool(values.min() >= 0) and abs(float(values.sum(1).mean()) - 1) < 1e-3:
            return values.clamp(MIN_TOKEN_CLIP_P, 1.0).log()
        return values.log_softmax(-1).clamp(min=LEAST_LOG_PROB)

    def without_unlikely(self, log_probs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Mask labels below `token_min_logp` in log-probabilities `[B, T, C]`. The likeliest label of each frame is kept.

        Returns:
            The masked log-probabilities, and for each row the sum of log p over the row's frames, `[B]`. Here p is the total
            probability of a frame's unmasked labels. The caller adds this sum to the scores, because the search normalises each
            frame.
        """
        kept = log_probs
        if self.token_min_logp > LEAST_LOG_PROB:
            unlikely = (log_probs < self.token_min_logp) & (log_probs < log_probs.amax(-1, keepdim=True))
            kept = log_probs.masked_fill(unlikely, NEVER)
        inside = torch.arange(log_probs.shape[1], device=log_probs.device) < lengths[:, None]
        return kept, kept.logsumexp(-1).masked_fill(~inside, 0.0).sum(1, dtype=torch.float64)

    def transcripts(self, logits_list: list[Any], most: int | None = None) -> list[list[OutputBeam]]:
        """Return up to `most` transcripts of each utterance; by default up to `beam_width`. Utterances of similar length are
        decoded together.
        """
        rows = [self.log_probs(logits) for logits in logits_list]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        transcripts: list[list[OutputBeam]] = [[] for _ in rows]
        while order:
            count = max(1, MOST_ENTRIES // (max(1, len(rows[order[-1]])) * self.decoder.options.num_beams))
            batch = [row for row in order[-count:] if rows[row].device == rows[order[-1]].device]
            order = [row for row in order if row not in set(batch)]
            for row, beams in zip(batch, self._batch([rows[row] for row in batch], most or self.beam_width)):
                transcripts[row] = beams
        return transcripts

    def _batch(self, rows: list[Tensor], most: int) -> list[list[OutputBeam]]:
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=padded.device)
        kept, left_out = self.without_unlikely(padded, lengths)
        lengths = self.decoder.check(kept, lengths)
        if self.starts is None:
            starts, batch = tuple(int(lm.starts[0]) for lm in self.lms), self.decoder.decode_checked(kept, lengths)
        else:
            starts, batch = self.starts, self._batch_from(self.starts, kept, lengths)
        return [
            merged(n_best, offset, self.threshold, most, self.writing, self.of.models, starts)
            for n_best, offset in zip(batch, left_out.tolist(), strict=True)
        ]

    def _batch_from(self, starts: tuple[int, ...], logits: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode a batch of log-probabilities `[B, T, C]`. `starts`: the language models' states before the first frame."""
        models = self.decoder.fusion.rows(len(logits), logits.device)
        moved = [start - int(lm.starts[0]) for start, lm in zip(starts, self.lms, strict=True)]
        states = models.states + torch.tensor(moved + [0] * (self.booster is not None), dtype=torch.int32, device=logits.device)
        stream = BlockStream(self.decoder.slots(models._replace(states=states)))
        stream.add_checked(logits, lengths)
        return stream.hypotheses()


def merged(
    n_best: list[Hypothesis],
    offset: float,
    threshold: float,
    most: int,
    writing: LabelWriting,
    models: Models,
    starts: tuple[int, ...],
) -> list[OutputBeam]:
    """Merge hypotheses with the same text, and return the transcripts, best first.

    Hypotheses with the same text differ in their pieces, or in spaces at their ends.

    Args:
        n_best: hypotheses, best first.
        offset: sum over the frames of the natural log of p, where p is the total probability of a frame's unmasked labels.
        threshold: maximum distance of a text's score from the best score; other texts are dropped.
        most: maximum number of texts.
        writing: the rule that forms words from labels.
        models, starts: the language models, and their initial states.
    """
    of_text: dict[str, list[Hypothesis]] = {}
    for hypothesis in n_best:
        of_text.setdefault(hypothesis.text, []).append(hypothesis)
    ranked = []
    for text, same in of_text.items():
        logit_score = offset + log_sum([hypothesis.acoustic_score for hypothesis in same])
        # Hypotheses with one text have the same added score, except for spaces at the ends and pieces of unknown words.
        lm_score = logit_score + max(hypothesis.score - hypothesis.acoustic_score for hypothesis in same)
        ranked.append((-lm_score, text, logit_score, same[0]))
    ranked.sort(key=lambda found: found[:2])
    found = []
    for negative_score, text, logit_score, best in ranked[:most]:
        if negative_score <= ranked[0][0] + threshold:
            state = LMState(models, starts, best.token_ids) if models else None
            found.append(OutputBeam(text, state, _text_frames(best, writing), logit_score, -negative_score))
    return found


def _text_frames(best: Hypothesis, writing: LabelWriting) -> list[WordFrames]:
    """Return the words of a hypothesis, each with its first frame and the frame after its last frame."""
    words = WordsOfLabels(writing)
    for token, first, end in zip(best.token_ids, best.token_frames, best.token_ends):
        words.add(token, first, end)
    words.end_word()
    written = best.text.split()  # the recogniser's tokenizer may write labels differently
    if len(written) != len(words.words):
        return words.words
    return [(word, frames) for word, (_, frames) in zip(written, words.words)]


def log_sum(values: list[float]) -> float:
    """Return log(sum(exp(value))) over the values."""
    return values[0] if len(values) == 1 else float(np.logaddexp.reduce(values))
