"""What is returned of a search: texts, each once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..hypotheses import Hypothesis
from .fused import FusedModel, LMState

WordFrames = tuple[str, tuple[int, int]]


class OutputBeam(NamedTuple):
    """One transcript.

    Args:
        text: words with a space between them.
        last_lm_state: for `lm_start_state`; None without a language model.
        text_frames: each word with its first frame and the one behind its last.
        logit_score: natural log-probability of the outputs, summed over all alignments that were kept.
        lm_score: `logit_score` with what language model, beta and hotwords add: what transcripts are ranked by.
    """

    text: str
    last_lm_state: LMState | None
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float


class OutputBeamMPSafe(NamedTuple):
    """The same without the state, as batches give it."""

    text: str
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float


class Transcript(NamedTuple):
    """What was found of one text: its scores, its likeliest prefix, and the state that it began in."""

    lm_score: float
    logit_score: float
    text: str
    best: Hypothesis
    start: int

    def beam(self, fused: FusedModel | None) -> OutputBeam:
        state = None if fused is None else LMState(fused, self.start, self.best.token_ids)
        return OutputBeam(self.text, state, self.text_frames(), self.logit_score, self.lm_score)

    def beam_without_state(self) -> OutputBeamMPSafe:
        return OutputBeamMPSafe(self.text, self.text_frames(), self.logit_score, self.lm_score)

    def text_frames(self) -> list[WordFrames]:
        best, splitter = self.best, self.best.splitter
        assert splitter is not None
        spans, words = splitter.spans(best.token_ids), self.text.split()
        if len(spans) == len(words):
            named = [(word, first, last) for word, (first, last) in zip(words, spans)]
        else:  # marks of words' beginnings without a word
            named = splitter.words(best.token_ids)
        return [(word, (best.token_frames[first], best.token_ends[last - 1])) for word, first, last in named]


def merged(n_best: list[Hypothesis], offset: float, start: int, threshold: float, most: int) -> list[Transcript]:
    """Transcripts of different texts: those with spaces more or less at an end, or cut into other pieces, are one.

    Args:
        n_best: best first.
        offset: natural log of how likely the labels are that weren't left out.
        start: the state that the language model began in.
        threshold: texts that score so much less than the best one are left out.
        most: texts.
    """
    of_text: dict[str, list[Hypothesis]] = {}
    for hypothesis in n_best:
        of_text.setdefault(hypothesis.text, []).append(hypothesis)
    found = []
    for text, same in of_text.items():
        logit_score = offset + _log_sum([hypothesis.acoustic_score for hypothesis in same])
        # What the search added is the same for one text, but for spaces at its ends, and pieces that are unknown words.
        lm_score = logit_score + max(hypothesis.score - hypothesis.acoustic_score for hypothesis in same)
        found.append(Transcript(lm_score, logit_score, text, same[0], start))
    found.sort(key=lambda transcript: -transcript.lm_score)
    return [transcript for transcript in found if transcript.lm_score >= found[0].lm_score - threshold][:most]


def _log_sum(values: list[float]) -> float:
    return values[0] if len(values) == 1 else float(np.logaddexp.reduce(values))
