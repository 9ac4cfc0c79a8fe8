"""What is returned of a search: texts, each once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..decoding.hypotheses import Hypothesis
from ..formats.wav2vec2.alphabet import BPE_TOKEN
from .weighed_lm import FusedModel, LMState

Frames = tuple[int, int]
WordFrames = tuple[str, Frames]
NULL_FRAMES: Frames = (-1, -1)  # of no word


class Writing(NamedTuple):
    """How labels make up words.

    Args:
        labels: of the classes of the outputs; empty where they say nothing.
        is_bpe: whether words begin at labels with `▁`; otherwise there is a space between them.
    """

    labels: list[str]
    is_bpe: bool


class Words:
    """The words that some labels make up, and their frames.

    Args:
        writing: of the labels.
        text, text_frames: words that have ended.
        partial, frames: the beginning of the one that hasn't.
    """

    def __init__(
        self,
        writing: Writing,
        text: str = "",
        text_frames: list[Frames] | None = None,
        partial: str = "",
        frames: Frames = NULL_FRAMES,
    ) -> None:
        self._writing, self.text, self.text_frames = writing, text, text_frames or []
        self.partial, self.frames = partial, frames

    def go_on(self, end: int) -> None:
        """Have the last label go on until a frame."""
        if self.partial:
            self.frames = self.frames[0], end

    def add(self, token: int, first: int, end: int) -> None:
        """Add a label, its first frame, and the one after its last."""
        label, is_bpe = self._writing.labels[token], self._writing.is_bpe
        begins = is_bpe and label.startswith(BPE_TOKEN)
        if begins or (not is_bpe and label == " "):
            self.end_word()
        letters = label.strip(BPE_TOKEN if is_bpe else " ")
        if letters or begins:
            self.partial, self.frames = self.partial + letters, (first if self.frames[0] < 0 else self.frames[0], end)
        if is_bpe and label[1:].endswith(BPE_TOKEN):
            self.end_word()

    def end_word(self) -> None:
        if self.partial:
            self.text, self.text_frames = joined(self.text, self.partial), [*self.text_frames, self.frames]
        self.partial, self.frames = "", NULL_FRAMES


def joined(text: str, word: str) -> str:
    """Return a text with one more word, if there is one."""
    return f"{text} {word}" if text and word else text or word


class OutputBeamMPSafe(NamedTuple):
    """An `OutputBeam` without the state, as batches give it."""

    text: str
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float

    @property
    def last_lm_state(self) -> None:
        """None."""


class OutputBeam(NamedTuple):
    """One transcript.

    Args:
        text: words with a space between them.
        last_lm_state: for `lm_start_state`; None without a language model.
        text_frames: each word with its first frame and the one after its last.
        logit_score: natural log-probability of the outputs, summed over all alignments that were kept.
        lm_score: `logit_score` with what language model, beta and hotwords add: what transcripts are ranked by.
    """

    text: str
    last_lm_state: LMState | None
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float

    def get_mp_safe_beam(self) -> OutputBeamMPSafe:
        """Return the same without the state."""
        return OutputBeamMPSafe(self.text, self.text_frames, self.logit_score, self.lm_score)


def merged(
    n_best: list[Hypothesis],
    offset: float,
    threshold: float,
    most: int,
    writing: Writing,
    fused: FusedModel | None,
    starts: tuple[int, ...],
) -> list[OutputBeam]:
    """Return transcripts of different texts: those with spaces more or less at an end, or cut into other pieces, are one.

    Args:
        n_best: best first.
        offset: natural log of how likely the labels are that weren't left out.
        threshold: texts that score so much less than the best one are left out.
        most: texts.
        writing: of the labels.
        fused, starts: the language models, and the states that they began in.
    """
    of_text: dict[str, list[Hypothesis]] = {}
    for hypothesis in n_best:
        of_text.setdefault(hypothesis.text, []).append(hypothesis)
    ranked = []
    for text, same in of_text.items():
        logit_score = offset + log_sum([hypothesis.acoustic_score for hypothesis in same])
        # What the search added is the same for one text, but for spaces at its ends, and pieces that are unknown words.
        lm_score = logit_score + max(hypothesis.score - hypothesis.acoustic_score for hypothesis in same)
        ranked.append((-lm_score, text, logit_score, same[0]))
    ranked.sort(key=lambda found: found[:2])
    found = []
    for negative_score, text, logit_score, best in ranked[:most]:
        if negative_score <= ranked[0][0] + threshold:
            state = None if fused is None else LMState(fused, starts, best.token_ids)
            found.append(OutputBeam(text, state, _text_frames(best, writing), logit_score, -negative_score))
    return found


def _text_frames(best: Hypothesis, writing: Writing) -> list[WordFrames]:
    """Return each word with its first frame and the one after its last."""
    words = Words(writing)
    for token, first, end in zip(best.token_ids, best.token_frames, best.token_ends):
        words.add(token, first, end)
    words.end_word()
    written = best.text.split()  # a tokenizer of its own may write labels otherwise
    return list(zip(written if len(written) == len(words.text_frames) else words.text.split(), words.text_frames))


def log_sum(values: list[float]) -> float:
    """Return log(sum(exp(value)))"""
    return values[0] if len(values) == 1 else float(np.logaddexp.reduce(values))
