"""What a call of a decoder asks for, and what is found: this package's search with pyctcdecode's settings."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..common.pickling import WithoutCaches
from ..decoding.ctc import CTCDecoder
from ..decoding.hypotheses import Hypothesis
from ..decoding.options import MOST_BEAMS
from ..decoding.sessions.blocks import BlockStream
from ..decoding.sessions.ctc import BeamSlots
from ..formats.wav2vec2.alphabet import Alphabet
from ..formats.wav2vec2.word_files import CUTTINGS, Attrs
from ..language_model.model import NGramLM
from ..phrases import PhraseBooster
from .hotwords import HotwordScorer, booster_of
from .outputs import log_probs_of, without_unlikely
from .transcripts import Transcript, Writing, merged
from .weighed_lm import FusedModel, LMState

logger = logging.getLogger(__name__)

MOST_ENTRIES = 1 << 25  # of a batch: rows x frames x prefixes
KEPT_HOTWORDS = 16
MORE_PREFIXES = 16  # of pieces a text has several, until they are joined
LEAST_THRESHOLD = 1e-5  # what scores that are the same may differ by in single precision


class Searches(WithoutCaches, caches={"_made": OrderedDict, "_hotwords": OrderedDict}):
    """Makes the searches of a decoder, and keeps what they are made of.

    Args:
        alphabet: labels of the outputs.
        tokenizer: of the labels, or of the recogniser.
        fused: the language models, if there are any.
    """

    def __init__(self, alphabet: Alphabet, tokenizer: Any, fused: FusedModel | None) -> None:
        self.alphabet, self.tokenizer, self.fused = alphabet, tokenizer, fused
        self._made: OrderedDict[Any, CTCDecoder] = OrderedDict()
        self._hotwords: OrderedDict[Any, PhraseBooster] = OrderedDict()

    def search(
        self,
        beam_width: int,
        beam_prune_logp: float,
        token_min_logp: float,
        hotwords: HotwordScorer | None = None,
        lm_start_state: LMState | None = None,
        prefixes: int = MOST_BEAMS,
    ) -> Search:
        """Return what a call asks for, checked; `prefixes`: of how many, the best ones, transcripts are made."""
        if isinstance(beam_width, bool) or not isinstance(beam_width, Integral) or beam_width < 1:
            raise ValueError(f"beam_width should be a whole number of at least 1, got {beam_width!r}")
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
        attrs = () if self.fused is None else self.fused.attrs
        lms = () if self.fused is None else tuple(self.fused.weighed(attrs))
        decoder = self._decoder(attrs, lms, int(beam_width), threshold, prefixes)
        booster = None if hotwords is None else self._booster(hotwords)
        if booster is not None:
            decoder = decoder.with_phrases(booster)
        starts = None if lm_start_state is None else lm_start_state.of(self.fused)
        return Search(self, decoder, attrs, lms, booster, int(beam_width), threshold, float(token_min_logp), starts)

    def _decoder(
        self, attrs: tuple[Attrs, ...], lms: tuple[NGramLM, ...], beam_width: int, threshold: float, prefixes: int
    ) -> CTCDecoder:
        """Return the decoder of this package, with the language models as they are weighed at the moment."""
        if self._made and next(iter(self._made))[0] != attrs:
            self._made.clear()
        key = (attrs, beam_width, threshold, prefixes)
        if key not in self._made:
            # 1 would be another search, that of alignments.
            num_beams = min(MOST_BEAMS, max(2, beam_width + MORE_PREFIXES * self.alphabet.is_bpe))
            self._made[key] = CTCDecoder(
                self.tokenizer, None if self.fused is None else self.fused.together(lms), 1.0, num_beams=num_beams, beta=0.0,
                beam_threshold=threshold, score_eos=bool(attrs) and all(of_lm.score_boundary for of_lm in attrs),
                merge="text" if self.alphabet.is_bpe else None, num_return_sequences=min(prefixes, num_beams),
                blank_id=self.alphabet.labels.index(""), confidence=None,
            )  # fmt: skip
        return self._made[key]

    def _booster(self, hotwords: HotwordScorer) -> PhraseBooster | None:
        """Return the automaton of some hotwords, None of none."""
        words = hotwords.words
        if not words:
            return None
        key = (words, hotwords.weight)
        if key not in self._hotwords:
            size = None if self.fused is None else self.fused.vocab_size
            has_words = self.alphabet.is_bpe or " " in self.alphabet.labels
            self._hotwords[key] = booster_of(words, hotwords.weight, self.tokenizer, has_words, CUTTINGS, size)
            if len(self._hotwords) > KEPT_HOTWORDS:
                self._hotwords.popitem(last=False)
        return self._hotwords[key]


@dataclass(frozen=True)
class Search:
    """What a call asks for, checked. Made by `Searches.search`.

    Args:
        of: what made it.
        decoder: this package's, with its settings and the hotwords.
        attrs, lms: what language models are weighed with, and as they are.
        booster: of the hotwords.
        beam_width, threshold, token_min_logp: as pyctcdecode has them; the threshold of the other sign.
        starts: the states that the language models begin in, if not at the beginning.
    """

    of: Searches
    decoder: CTCDecoder
    attrs: tuple[Attrs, ...]
    lms: tuple[NGramLM, ...]
    booster: PhraseBooster | None
    beam_width: int
    threshold: float
    token_min_logp: float
    starts: tuple[int, ...] | None

    @property
    def begins(self) -> tuple[int, ...]:
        """The states that the language models begin in."""
        return tuple(int(lm.starts[0]) for lm in self.lms) if self.starts is None else self.starts

    @property
    def writing(self) -> Writing:
        """Return how its labels make up words."""
        alphabet, special = self.of.alphabet, self.decoder.splitter.special
        return Writing(["" if token in special else label for token, label in enumerate(alphabet.labels)], alphabet.is_bpe)

    def transcripts(self, logits_list: list[Any]) -> list[list[Transcript]]:
        """Return transcripts of utterances, decoded in batches of similar length."""
        rows = [log_probs_of(logits, len(self.of.alphabet.labels)) for logits in logits_list]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        found: list[list[Transcript]] = [[] for _ in rows]
        while order:
            count = max(1, MOST_ENTRIES // (max(1, len(rows[order[-1]])) * self.decoder.options.num_beams))
            batch = [row for row in order[-count:] if rows[row].device == rows[order[-1]].device]
            order = [row for row in order if row not in set(batch)]
            for row, beams in zip(batch, self._batch([rows[row] for row in batch])):
                found[row] = beams
        return found

    def _batch(self, rows: list[Tensor]) -> list[list[Transcript]]:
        decoder = self.decoder
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=padded.device)
        kept, left_out = without_unlikely(padded, lengths, self.token_min_logp)
        lengths = decoder.check(kept, lengths)
        if not self.lms or (self.starts is None and decoder.options.score_eos):
            batch = decoder.decode_checked(kept, lengths)
        else:
            batch = self._batch_from(kept, lengths)
        return [
            merged(n_best, offset, self.begins, self.threshold, self.beam_width, self.writing)
            for n_best, offset in zip(batch, left_out.tolist(), strict=True)
        ]

    def _batch_from(self, logits: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode from other states of the language models, or without `</s>`, where the last word ends by itself."""
        decoder, count = self.decoder, len(self.lms)
        models = decoder.fusion.rows(len(logits), logits.device)
        # Of the automata, where they lie beside others.
        starts, begins = torch.tensor([[int(lm.starts[0]) for lm in self.lms], self.begins], device=logits.device)
        places = models.states[0, :count] - starts.to(torch.int32)
        states = models.states.clone()
        states[:, :count] = places + begins.to(torch.int32)
        slots = BeamSlots(decoder, models._replace(states=states))
        stream = BlockStream(slots)
        stream.add_checked(logits, lengths)
        if self.of.fused is not None and not decoder.options.score_eos:
            own = (slots.state.lm_states[..., :count] - places).flatten(0, 1)
            ends = self.of.fused.end_scores(self.attrs, self.lms, own, True).view(slots.state.fused.shape)
            slots.state = slots.state._replace(fused=slots.state.fused + ends)
        return stream.hypotheses()
