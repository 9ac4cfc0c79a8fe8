"""Hold the results of a search: beams, and the words in them."""

from __future__ import annotations

from typing import NamedTuple

from ..formats.wav2vec2.alphabet import BPE_TOKEN
from .weighed_lm import LMState

Frames = tuple[int, int]
WordFrames = tuple[str, Frames]
NULL_FRAMES: Frames = (-1, -1)  # stands for "no word"


class LabelWriting(NamedTuple):
    """Hold the rule that forms words from labels."""

    labels: list[str]  # labels of the classes; empty where a class has no text
    is_bpe: bool  # whether words begin at labels with `▁`; otherwise a space label separates words


class WordsOfLabels:
    """Form words from labels. Store the complete words, the beginning of the current word, and the frames of each word."""

    def __init__(self, writing: LabelWriting) -> None:
        self._writing = writing
        self.words: list[WordFrames] = []  # the complete words
        self.partial, self.frames = "", NULL_FRAMES

    def add(self, token: int, first: int, end: int) -> None:
        """Append a label with the frames from `first` to `end`, exclusive."""
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
            self.words.append((self.partial, self.frames))
        self.partial, self.frames = "", NULL_FRAMES


class OutputBeamMPSafe(NamedTuple):
    """Hold an `OutputBeam` without its language model state. Batch decoding returns beams of this class."""

    text: str
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float

    @property
    def last_lm_state(self) -> None:
        """Return None, because the state isn't kept."""


class OutputBeam(NamedTuple):
    """Hold one transcript.

    Args:
        text: the words with a space between them.
        last_lm_state: the state to pass as `lm_start_state`; None without a language model.
        text_frames: each word with its first frame and the frame after its last frame.
        logit_score: natural log-probability of the outputs, summed over the alignments that the search kept.
        lm_score: `logit_score` plus the scores of the language model, beta and the hotwords. Beams are ranked by this score.
    """

    text: str
    last_lm_state: LMState | None
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float

    def get_mp_safe_beam(self) -> OutputBeamMPSafe:
        """Return the transcript without the state."""
        return OutputBeamMPSafe(self.text, self.text_frames, self.logit_score, self.lm_score)
